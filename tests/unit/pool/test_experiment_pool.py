"""What an experiment's file says of machines describes the nodes of its own pool."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.errors import UsageError
from everstep.job_file.load import load
from everstep.job_file.schema import Job
from everstep.pool.experiment_pool import PoolRequest, described, request_for, unused_on
from everstep.pool.pool_file import PoolSection, parse_pool_file

FILE = """
entrypoint: train.py
nodes: 1:4
workers_per_node: 2
image: example/everstep:1
setup: [module load cuda]
env: {NAME: a b}
time_limit: 12h
volumes: ["/data:/data:ro"]
resources: {cpu: 4, gpu: 2, memory: 16Gi, slots_per_trial: 8, priority: 3}
checkpoint: {uri: /shared/saved, grace: 30s}
platform: {slurm: {partition: gpu}, kubernetes: {namespace: training}}
"""


def job(text: str = FILE) -> Job:
    return load(text, name="exp.yaml").job


def request(platform: str, given: Job, *, address: str = "login1", experiment: str = "e") -> PoolRequest:
    return request_for(
        given, platform, experiment=experiment, num_nodes=None, find_address=lambda: address, env={"PATH": "/bin"}
    )


def section(made: PoolRequest) -> PoolSection:
    return parse_pool_file(made.file(7070)).pools[made.pool]


def test_slurm_gets_its_options_and_no_container() -> None:
    made = request("slurm", job())
    found = section(made)
    assert found.platform.slurm is not None and found.platform.slurm.partition == "gpu"
    assert (found.max_nodes, found.min_nodes, found.slots_per_node) == (4, 0, 2)
    assert (found.time_limit, found.grace, found.setup) == (12 * 3600, 30, ("module load cuda",))
    assert (found.env, found.resources.cpu, found.resources.gpu) == ({"NAME": "a b"}, 4, 2)
    assert (found.coordinator, found.image, found.volumes) == ("http://login1:7070", "", ())
    assert list(unused_on(job(), "slurm")) == ["image is not used on slurm", "volumes is not used on slurm"]
    assert described(made) == (
        "slurm: up to 4 nodes for this experiment, which reach this machine as login1; slots: 2 per node"
    )


def test_kubernetes_gets_the_image_and_an_address_of_any_kind() -> None:
    found = section(request("kubernetes", job(), address="fd00::1"))
    assert found.platform.kubernetes is not None and found.platform.kubernetes.namespace == "training"
    assert (found.image, len(found.volumes), found.coordinator) == ("example/everstep:1", 1, "http://[fd00::1]:7070")
    assert not list(unused_on(job(), "kubernetes"))


def test_nodes_here_need_no_address() -> None:
    def find() -> str:
        raise AssertionError("not asked")

    made = request_for(job(), "local", experiment="e", num_nodes=2, find_address=find, env={})
    assert (section(made).coordinator, section(made).max_nodes, made.address) == ("", 2, "")


def test_slots_are_those_of_each_node_unless_the_file_says_it() -> None:
    assert section(request("slurm", job("entrypoint: train.py"))).slots_per_node == "auto"
    assert section(request("slurm", job("{entrypoint: train.py, resources: {gpu: 4}}"))).slots_per_node == 4


def test_the_same_experiment_gets_the_same_pool_and_another_one_another(tmp_path: Path) -> None:
    made = request("slurm", job())
    assert request("slurm", job(), address="login2").pool == made.pool
    assert request("slurm", job(), experiment="other").pool != made.pool
    made.write(tmp_path)
    assert PoolRequest.read(tmp_path / made.pool) == made
    assert (tmp_path / made.pool / "request.json").stat().st_mode & 0o077 == 0


def test_what_cannot_be_is_refused_before_the_address_is_looked_for() -> None:
    with pytest.raises(UsageError, match="image is missing"):
        request("kubernetes", job("entrypoint: train.py"), address="never")
    with pytest.raises(UsageError) as refusal:
        request("oci", job())
    assert refusal.value.code == "pool-platform-unknown"
