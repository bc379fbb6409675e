"""What a machine offers, and what kind it is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from everstep.errors import UsageError
from everstep.launcher import machine
from everstep.launcher.machine import count_cpus, count_gpus
from everstep.pool.machine_kind import machine_kind, num_slots


def test_a_kind_names_processor_and_torch_and_is_always_the_same(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor: 0\nmodel name: AMD EPYC 7763 64-Core\n\nprocessor: 1\n")
    gpu = tmp_path / "driver/nvidia/gpus/0000"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text("Model: \t NVIDIA H200\n")
    kind = machine_kind(tmp_path)
    assert "AMD-EPYC-7763-64-Core NVIDIA-H200 torch-" in kind
    assert machine_kind() == machine_kind()
    assert len(kind) < 128


def test_another_torch_is_another_kind_however_long_the_names_of_the_parts_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"model name: {'Processor ' * 20}\n")

    def kind_with(version: str) -> str:
        monkeypatch.setattr("importlib.metadata.version", lambda name: version)
        return machine_kind(tmp_path)

    assert kind_with("2.9.0+cu128") != kind_with("2.9.1+cu128")
    assert kind_with("2.9.1+cu128").endswith(" torch-2.9.1-cu128")
    assert len(kind_with("2.9.0+" + "local" * 40)) <= 120


def test_a_machine_of_unknown_kind_has_a_name_too(tmp_path: Path) -> None:
    assert "torch-" in machine_kind(tmp_path)


def test_torch_is_not_imported_for_it() -> None:
    import subprocess

    code = (
        "import sys; from everstep.pool.machine_kind import machine_kind; machine_kind(); print('torch' in sys.modules)"
    )
    asked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert asked.stdout.strip() == "False"


def test_slots_are_gpus_or_else_cpus_or_as_many_as_asked_for() -> None:
    assert num_slots("auto") == (count_gpus() or count_cpus())
    assert num_slots("3") == 3
    assert num_slots("cpu") == count_cpus()


def test_slots_of_gpus_need_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpu_names", lambda _devices: ["0", "GPU-1"])
    assert (num_slots("gpu"), num_slots("auto"), num_slots("cpu")) == (2, 2, count_cpus())
    monkeypatch.setattr(machine, "gpu_names", lambda _devices: [])
    with pytest.raises(UsageError, match="this machine has no GPU") as refusal:
        num_slots("gpu")
    assert refusal.value.hint is not None and "--slots cpu" in refusal.value.hint


def test_a_kind_names_only_gpus_that_trials_see(tmp_path: Path) -> None:
    gpu = tmp_path / "driver/nvidia/gpus/0000"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text("Model: \t NVIDIA H200\n")
    assert "H200" in machine_kind(tmp_path)
    assert "H200" not in machine_kind(tmp_path, has_gpus=False)


@pytest.mark.parametrize("given", ["0", "-1", "many", "1025", "1.5", ""])
def test_other_numbers_of_slots_are_refused(given: str) -> None:
    with pytest.raises(UsageError) as refusal:
        num_slots(given)
    assert refusal.value.code == "slots-invalid"
