"""What is submitted for a node of a pool."""

from __future__ import annotations

import sys
from pathlib import Path

from everstep.pool.join_command import JoinPlace
from everstep.pool.kubernetes_nodes import KubernetesNodes
from everstep.pool.node_folders import MadeNode, NodeFolders
from everstep.pool.pool_file import PoolSection, parse_pool_file
from everstep.pool.slurm_nodes import node_script

SLURM = """
platform: {slurm: {partition: low}}
max_nodes: 2
coordinator: http://login1:7070
time_limit: 90m
grace: 30s
setup: [module load cuda]
env: {NAME: a b}
resources: {cpu: 2, gpu: 1}
"""
POD = """
platform: {kubernetes: {security: baseline}}
max_nodes: 2
slots_per_node: 3
coordinator: http://c:7070
image: example/everstep
time_limit: 1h
setup: ["export HERE=$(hostname)"]
"""


def section(text: str) -> PoolSection:
    lines = "".join(f"    {line}\n" for line in text.strip().splitlines())
    return parse_pool_file(f"pools:\n  p:\n{lines}").pools["p"]


def test_a_job_of_slurm() -> None:
    place = JoinPlace(pool="p", coordinator="http://login1:7070", token_file="/shared/token")
    made = MadeNode(number=4, name="p-4", made_at=0.0)
    assert node_script(section(SLURM), place, "everstep-p", made, Path("/shared/4")).splitlines() == [
        "#!/bin/bash",
        "#SBATCH --job-name=everstep-p-4",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks=1",
        "#SBATCH --cpus-per-task=2",
        "#SBATCH --gpus-per-node=1",
        "#SBATCH --partition=low",
        "#SBATCH --time=90",
        "#SBATCH --no-requeue",
        "#SBATCH --open-mode=append",
        "#SBATCH --export=HOME,LANG,LOGNAME,PATH,PYTHONPATH,SHELL,USER",
        "#SBATCH --output=/shared/4/node.log",
        "umask 077",
        "export NAME='a b'",
        'ends_at=$(squeue -h -j "$SLURM_JOB_ID" -o %e)',
        'ends_at=$(date -d "${ends_at:-unknown}" +%s 2> /dev/null)',
        "until=()",
        '[ -z "$ends_at" ] || until=(--until $((ends_at - 30)))  # also if the time limit is the partition\'s',
        "module load cuda",
        f"exec {sys.executable} -u -m everstep pool join p --coordinator http://login1:7070 --token-file /shared/token "
        '--slots auto --patience 1800 --name p-4 --folder /shared/4/agent "${until[@]}"',
    ]


def test_a_pod_has_the_workers_token_and_no_other(tmp_path: Path) -> None:
    place = JoinPlace(pool="p", coordinator="http://c:7070")
    nodes = KubernetesNodes(section(POD), place, tmp_path, "p-1234", "worker:abc")
    pod, secret = nodes.pod(7), nodes.secret()
    (container,) = pod["spec"]["containers"]
    assert container["command"] == [
        "sh",
        "-c",
        "export HERE=$$(hostname)\nexec everstep pool join p --coordinator http://c:7070 --slots 3 "
        "--patience 1800 --name p-7 --folder /everstep/pool --until $$(($$(date +%s) + 3540))",
    ]
    token = {"secretKeyRef": {"name": secret["metadata"]["name"], "key": "worker"}}
    assert {"name": "EVERSTEP_TOKEN", "valueFrom": token} in container["env"]
    assert {"name": "EVERSTEP_IMAGE", "value": "example/everstep"} in container["env"]
    assert secret["data"] == {"worker": "d29ya2VyOmFiYw=="}
    assert (pod["metadata"]["name"], pod["metadata"]["labels"]["everstep.dev/number"]) == ("p-1234-worker-7", "7")
    assert pod["spec"]["activeDeadlineSeconds"] == 3600
    assert pod["spec"]["terminationGracePeriodSeconds"] == 70
    assert not pod["spec"]["automountServiceAccountToken"]


def test_folders_of_nodes_never_give_a_number_twice_and_keep_the_last_ones(tmp_path: Path) -> None:
    folders = NodeFolders(tmp_path)
    for number in range(25):
        assert folders.free_number(0) == number
        folders.make(MadeNode(number=number, name=f"n{number}", made_at=1.0))
        folders.note_end(number, "exit code 3", is_lost=number % 2 == 0)
    nodes = NodeFolders(tmp_path).nodes(now=100.0)
    assert [each.number for each in nodes] == list(range(5, 25))
    assert nodes[-1].is_over and nodes[-1].is_lost
    assert nodes[-1].reason == "n24: exit code 3"
    folders.make(MadeNode(number=25, name="n25", made_at=1.0, leaves_at=50.0))
    (tmp_path / "26").mkdir()  # killed before it was made
    (live,) = folders.live()
    assert (live.name, folders.nodes(now=49.0)[-1].is_leaving, folders.nodes(now=50.0)[-1].is_leaving) == (
        "n25",
        False,
        True,
    )
    assert folders.free_number(3) == 27
