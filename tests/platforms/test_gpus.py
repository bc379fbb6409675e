"""A job gets as many GPUs as it has workers, and each node its own; if there are fewer, a message gives the numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep.job_file.load import load
from everstep.jobs import submitted
from everstep.platforms.base import Ticket, platform_of
from everstep.platforms.local_fleet import share_of
from everstep.platforms.oci.payload import gpus_of_shape
from everstep.storage.code_archive import Code
from lab.refused import refused

TICKET = Ticket(
    id="mnist-1", folder=Path("/shared/runs/mnist-1"), workdir=Path("/shared"), code=Code(sha256="c0de" * 16, data=b"")
)
OCI = {
    "compartment": "c", "project": "p", "shape": "BM.GPU.A10.4", "work_dir": "oci://b@n/p", "log_group": "l",
    "subnet": "s",
}  # fmt: skip
ASKED = {
    "compose": ["device_ids", "- '3'"],
    "kubernetes": ['"nvidia.com/gpu": "4"'],
    "slurm": ["#SBATCH --gpus-per-node=4"],
    "pbs": ["ngpus=4"],
    "oci": ["shapeName: BM.GPU.A10.4"],
    "local": ['"gpus":4'],
}
OURS = "entrypoint: train.py\nimage: i:1\nresources: {gpu: 4}\n"
DETERMINEDS = "entrypoint: python3 train.py\nenvironment: {image: 'i:1'}\nresources: {slots_per_trial: 4}\n"


def rendered(text: str, platform: str, **options: Any) -> str:
    changes = [f"platform.{platform}={yaml.safe_dump(options, default_flow_style=True)}", f"platform.name={platform}"]
    job = load(text, changes).job
    return platform_of(platform).render(job, TICKET).text


@pytest.mark.parametrize("platform", ASKED)
@pytest.mark.parametrize("text", [OURS, DETERMINEDS], ids=["gpu", "slots_per_trial"])
def test_each_platform_is_asked_for_a_gpu_for_each_worker(text: str, platform: str) -> None:
    shown = rendered(text, platform, **(OCI if platform == "oci" else {}))
    assert all(words in shown for words in ASKED[platform])
    assert '"workers":4' in shown


def test_nodes_of_one_docker_host_have_different_gpus() -> None:
    services = yaml.safe_load(rendered(f"{OURS.replace('gpu: 4', 'gpu: 2')}nodes: 3", "compose"))["services"]
    own = [
        services[f"node-{number}"]["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
        for number in range(3)
    ]
    assert own == [["0", "1"], ["2", "3"], ["4", "5"]]


def test_nodes_of_this_machine_have_different_gpus() -> None:
    gpus = ["0", "1", "GPU-a", "GPU-b"]
    assert [share_of(gpus, 2, place)["CUDA_VISIBLE_DEVICES"] for place in range(2)] == ["0,1", "GPU-a,GPU-b"]
    assert share_of(gpus, 0, 1) == {}  # workers see all GPUs of their machine


def test_a_machine_with_fewer_gpus_is_refused_before_anything_starts() -> None:
    job = load("entrypoint: train.py\nresources: {gpu: 2}\nnodes: 1:3").job
    with refused("local-gpus-missing", match="3 nodes with 2 GPUs each need 6, but this machine has 4") as caught:
        submitted.check_gpus(job, 4, print)
    assert "--set resources.gpu=0" in str(caught.value.hint)
    submitted.check_gpus(job, 6, print)


def test_on_a_machine_without_gpus_the_same_file_trains_on_cpus_and_says_so() -> None:
    said: list[str] = []
    submitted.check_gpus(load("entrypoint: train.py\nresources: {gpu: 1}").job, 0, said.append)
    assert said == ["resources.gpu: 1: this machine has no GPU, so the workers train on its CPUs"]
    submitted.check_gpus(load("entrypoint: train.py").job, 0, said.append)
    assert len(said) == 1


@pytest.mark.parametrize(
    ("shape", "num_gpus"),
    [
        *(("VM.GPU2.1", 1), ("VM.GPU3.4", 4), ("VM.GPU.A10.2", 2), ("BM.GPU4.8", 8), ("BM.GPU.H100.8", 8)),
        *(("VM.Standard.E4.Flex", 0), ("VM.Standard2.8", 0), ("BM.GPU.new", None)),
    ],
)
def test_a_shape_of_oci_says_how_many_gpus_it_has(shape: str, num_gpus: int | None) -> None:
    assert gpus_of_shape(shape) == num_gpus


def test_a_shape_with_fewer_gpus_is_refused_and_idle_ones_are_noted() -> None:
    with refused("oci-shape-has-fewer-gpus", match=r"resources.gpu: 4, but shape VM.GPU.A10.2 has 2"):
        rendered(OURS, "oci", **{**OCI, "shape": "VM.GPU.A10.2"})
    rendered(OURS, "oci", **{**OCI, "shape": "BM.GPU.new"})
    job = load(OURS, ["platform.name=oci", f"platform.oci={yaml.safe_dump(OCI, default_flow_style=True)}"]).job
    job = job.model_copy(update={"resources": job.resources.model_copy(update={"gpu": 1})})
    assert any("has 4 GPUs: the rest stay idle" in note for note in platform_of("oci").render(job, TICKET).notes)


@pytest.mark.parametrize(
    ("workers", "note"),
    [(4, "4 workers per node, but resources.gpu: 2"), (1, "workers_per_node: 1, but resources.gpu: 2")],
)
def test_a_note_says_that_the_numbers_of_workers_and_gpus_differ(
    workers: int, note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    text = f"entrypoint: train.py\nworkers_per_node: {workers}\nresources: {{gpu: 2}}\n"
    notes = submitted.prepare_text(text, name="job.yaml").notes
    assert any(note in each for each in notes)
    text += "backend: nccl\n"
    notes = submitted.prepare_text(text, name="job.yaml").notes
    assert any("backend: nccl will fail" in each for each in notes) == (workers > 2)
