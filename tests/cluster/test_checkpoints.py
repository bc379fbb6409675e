"""Checkpoints under real deaths, on disks that fill up, and in worlds of several workers."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import everstep
from everstep.checkpoint.catalog import find, verify
from everstep.checkpoint.failed_saves import EXIT_CODE
from everstep.storage.local import LocalStorage
from lab import command, nest
from lab.command import Command, keyboard, run
from lab.stage import SCRIPTS, Stage


def finish(script: object, *args: object, folder: Path) -> tuple[int, str, str]:
    words = [sys.executable, SCRIPTS / str(script), *args]
    with Command(*words, folder=folder, start=nest.start_script, are_errors_apart=True) as typed:
        return typed.exit_code(), typed.said, typed.errors


# --- deaths ---


@pytest.mark.slow
def test_killed_at_any_system_call_the_newest_whole_checkpoint_loads(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="everstep-") as folder:  # a kill loses no pages of a disk
        code, output, errors = finish("checkpoint_points.py", folder, folder=tmp_path)
    facts = [json.loads(line) for line in output.splitlines()]

    assert code == 0, errors
    assert len(facts) > 30 and facts[-1]["durable"] == 3
    for fact in facts:
        assert fact["is_right"] and fact["loaded"] >= fact["durable"], fact
        assert fact["left"] == ["000000-000000000004"], fact


def test_killed_at_random_times_nothing_durable_is_lost(tmp_path: Path) -> None:
    chance = random.Random(1)
    folder = tmp_path / "ckpt"
    words = [sys.executable, SCRIPTS / "checkpoint_loop.py", folder, 1000000, 2000000]

    def durable(saving: Command) -> list[int]:
        whole = saving.said.rpartition("\n")[0]
        return [int(line.split()[1]) for line in whole.splitlines() if line.startswith("durable")]

    for _ in range(4):
        num_durable = chance.randint(1, 6)
        with Command(*words, folder=tmp_path, start=nest.start_script) as saving:
            saving.until(lambda num=num_durable: len(durable(saving)) >= num, f"{num_durable} durable")
            saving.process.kill()
        with everstep.Checkpointer(folder) as checkpointer:
            state = checkpointer.load()
        assert state["step"] >= max(durable(saving))
        assert state["w"].unique().tolist() == [state["step"]]


# --- disks ---


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("needs root and mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.root
def test_a_full_disk_stops_no_training_and_spoils_no_checkpoint(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    with everstep.Checkpointer(small_disk / "ckpt") as checkpointer:
        state = {"w": torch.ones(250_000)}  # 1 MB
        assert checkpointer.save(1, state)
        checkpointer._pipeline.finish()
        ballast.write_bytes(bytes(1_500_000))
        for step in range(2, 5):
            assert checkpointer.save(step, state)
        checkpointer._pipeline.finish()
        assert checkpointer.load() is not None
        assert checkpointer.loaded is not None and checkpointer.loaded.step == 1
        ballast.unlink()
        checkpointer.save(5, state, wait=True)
        checkpointer.load()
        assert checkpointer.loaded.step == 5
        summary = checkpointer._failed_saves.summary()
        assert "3 of the saves" in summary and "No space left" in summary


@pytest.mark.root
def test_without_any_checkpoint_the_exit_code_says_so(small_disk: Path, tmp_path: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(2_900_000))
    code, output, errors = finish("checkpoint_loop.py", small_disk, 3, folder=tmp_path)

    assert "trained to 3" in output
    assert code == EXIT_CODE
    assert errors.count("HINT: free some space") == 1
    assert "3 of the saves" in errors and "no checkpoint could be written" in errors


@pytest.mark.root
def test_a_read_only_disk_is_told_and_what_is_there_loads(small_disk: Path, tmp_path: Path) -> None:
    with everstep.Checkpointer(small_disk) as checkpointer:
        checkpointer.save(7, {"step": 7}, wait=True)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    code, output, errors = finish("checkpoint_loop.py", small_disk, 2, folder=tmp_path)

    assert "trained to 9" in output
    assert code == EXIT_CODE and "read-only" in errors


def test_a_run_with_some_checkpoints_ends_well_and_tells_what_failed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import everstep, shutil\n"
        f"c = everstep.Checkpointer({str(tmp_path / 'ckpt')!r})\n"
        "c.save(1, {}, wait=True)\n"
        f"shutil.rmtree({str(tmp_path / 'ckpt')!r})\n"
        "c.save(2, {})\n"
        "c.save(3, {})\n"
        "print('done')\n"
    )
    code, output, errors = finish(script, folder=tmp_path)

    assert (code, output) == (0, "done\n")
    assert errors.count("HINT") == 1 and "2 of the saves" in errors


def test_what_is_being_written_at_the_end_of_the_script_is_finished(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import everstep, torch\n"
        f"everstep.Checkpointer({str(tmp_path / 'ckpt')!r}).save(1, {{'w': torch.ones(10_000_000)}})\n"
    )
    assert run(sys.executable, script, folder=tmp_path).returncode == 0  # a plain start, and so a plain end

    with everstep.Checkpointer(tmp_path / "ckpt") as checkpointer:
        assert checkpointer.load()["w"].sum() == 10_000_000


# --- worlds ---


def together(folder: Path, size: int, script: str, *args: object) -> list[str]:
    """What each worker of a plain torch.distributed world prints, by rank. They are forks: torch is imported once."""
    folder.mkdir(exist_ok=True)
    words = [sys.executable, SCRIPTS / script, *args]
    with keyboard(folder, WORLD_SIZE=str(size)) as start:
        workers = [start(*words, start=nest.start_script, RANK=str(rank)) for rank in range(size)]
        return [worker.finish() for worker in workers]


def world(folder: Path, size: int, mode: str = "all", num_steps: int = 3) -> list[dict[str, Any]]:
    """Facts of each worker, by rank."""
    store = folder.parent / f"store-{random.random()}"
    told = together(folder.parent / "told", size, "checkpoint_world.py", folder, store, mode, num_steps)
    return [json.loads(next(line for line in text.splitlines() if line.startswith("{"))) for text in told]


def test_workers_share_the_writing_and_any_number_of_them_loads(tmp_path: Path) -> None:
    one, other = world(tmp_path / "ckpt", 2, num_steps=5)
    assert one["step"] == other["step"] == 5 and one["sum"] == other["sum"]
    assert {name.rsplit("-", 1)[0] for name in one["files"]} == {
        "state.json",
        "part-00000-of-00002",
        "part-00001-of-00002",
    }

    three = world(tmp_path / "ckpt", 3, num_steps=4)
    assert {(each["before"], each["step"]) for each in three} == {(5, 9)}
    (alone,) = world(tmp_path / "ckpt", 1, num_steps=1)
    assert (alone["before"], alone["step"]) == (9, 10)
    storage = LocalStorage(str(tmp_path / "ckpt"))
    assert all(not list(verify(storage, each)) for each in find(storage))


def test_if_only_the_first_worker_saves_it_writes_everything(tmp_path: Path) -> None:
    facts = world(tmp_path / "ckpt", 2, mode="first only")

    assert {each["step"] for each in facts} == {3}
    assert set(facts[0]["files"]) == {"state.json", "part-00000-of-00001-000.safetensors"}


def test_a_sharded_state_is_written_in_pieces_and_loads_whole(tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    facts = world(folder, 2, mode="sharded", num_steps=1)
    with everstep.Checkpointer(folder) as checkpointer:
        tensors = checkpointer.load()["tensors"]
    whole = torch.arange(7 * 5, dtype=torch.float64).reshape(7, 5) + 1

    assert len(facts[0]["files"]) == 3
    assert torch.equal(tensors["rows"], whole) and torch.equal(tensors["same"], whole)
    assert torch.equal(tensors["columns"], whole.to(torch.complex128))

    target = tmp_path / "one.safetensors"
    done = command.everstep("checkpoint", "export", folder, target, "--only", "tensors", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    from safetensors.torch import load_file

    exported = load_file(target)
    assert torch.equal(exported["rows"], whole) and torch.equal(exported["same"], whole)
    assert torch.equal(torch.view_as_complex(exported["columns"]), whole.to(torch.complex128))


# --- jobs ---


def test_a_killed_worker_costs_no_checkpoint_that_was_whole(tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    with Stage(folder, "--steps", 16, script="checkpoint_job.py", workers=3, gates=[8]) as stage:
        stage.wait_at_gate(8)
        stage.kill(stage.rank(0))
        stage.wait("worker.dead")
        stage.open_gate(8)
        stage.finish()
    storage = LocalStorage(str(folder))
    found = find(storage)
    whole = [each for each in found if each.is_whole]

    assert not [problem for each in whole for problem in verify(storage, each)]
    assert whole[-1].step == 16 and whole[0].key.generation < whole[-1].key.generation
    assert {each.manifest.world_size for each in whole if each.manifest} == {3, 2}
    assert any(len(each.manifest.files) == 4 for each in whole if each.manifest)  # three shares and state.json
    with everstep.Checkpointer(folder) as checkpointer:
        assert int(checkpointer.load()["step"]) == 16


def test_an_fsdp2_model_gets_its_weights_back(tmp_path: Path) -> None:
    told = together(tmp_path / "told", 2, "checkpoint_fsdp.py", tmp_path / "ckpt", tmp_path / "store")
    assert ["True" in text.splitlines() for text in told] == [True, True]
