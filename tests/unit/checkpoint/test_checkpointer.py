"""The Checkpointer in one process: what is kept, what is skipped, what is told."""

from __future__ import annotations

import errno
import json
import logging
import mmap
import os
import subprocess
import sys
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import everstep
from everstep.checkpoint import agreement
from everstep.checkpoint import checkpointer as module
from everstep.checkpoint.agreement import WorkerPlace
from everstep.checkpoint.code_snapshot import take_snapshot
from everstep.engine import process_engine
from everstep.engine.fixed_world import LoneMembership
from everstep.engine.step import Engine
from everstep.errors import CheckpointFailed, NoCheckpoint, UsageError
from everstep.ipc.progress_page import ProgressPage
from everstep.storage.local import LocalStorage


def steps(checkpointer: everstep.Checkpointer) -> list[int]:
    return [each.step for each in checkpointer.list() if each.is_whole]


def test_the_latest_two_and_the_best_are_kept(tmp_path: Path) -> None:
    with everstep.Checkpointer(tmp_path, metric="loss") as checkpointer:
        for step, loss in enumerate([5.0, 1.0, 4.0, 3.0, 2.0]):
            checkpointer.save(step, {"loss": loss}, metrics={"loss": loss})
        checkpointer.wait()

        assert steps(checkpointer) == [1, 3, 4]
        assert checkpointer.load("best") == {"loss": 1.0}
        assert checkpointer.load(3) == {"loss": 3.0}
        with pytest.raises(NoCheckpoint, match="no checkpoint of step 2"):
            checkpointer.load(2)


def test_only_due_steps_are_saved_unless_somebody_waits(tmp_path: Path) -> None:
    with everstep.Checkpointer(tmp_path, every=10, keep_latest=None) as checkpointer:
        assert [step for step in range(25) if checkpointer.save(step, {})] == [0, 10, 20]
        assert checkpointer.save(24, {}, wait=True)
        assert steps(checkpointer) == [0, 10, 20, 24]


def test_going_back_to_an_older_step_begins_a_new_history(tmp_path: Path) -> None:
    with everstep.Checkpointer(tmp_path) as checkpointer:
        for step in (10, 20, 30):
            checkpointer.save(step, {"run": 1, "step": step}, wait=True)
    with everstep.Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.load(20)["step"] == 20
        checkpointer.save(25, {"run": 2, "step": 25}, wait=True)

        assert checkpointer.load() == {"run": 2, "step": 25}
        assert [(each.key.generation, each.step) for each in checkpointer.list()] == [(0, 30), (1, 25)]
        checkpointer.save(5, {"run": 3, "step": 5}, wait=True)
        assert checkpointer.load() == {"run": 3, "step": 5}


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    with everstep.Checkpointer(tmp_path) as checkpointer:
        for value in range(3):
            checkpointer.save(7, {"value": value, "t": torch.ones(5) * value}, wait=True)
        assert checkpointer.load()["value"] == 2
        checkpointer.save(8, {}, wait=True)

        assert checkpointer.load(7)["t"].tolist() == [2.0] * 5
    assert len(list(tmp_path.glob("*-*7/*/state.json"))) == 1  # the others were swept


class Gate(LocalStorage):
    """A real directory whose writes wait until they may go on."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.may_go_on, self.has_begun = threading.Event(), threading.Event()

    def put(self, name: str, data: Any) -> None:
        self.has_begun.set()
        assert self.may_go_on.wait(60)
        super().put(name, data)


def gated(folder: Path, **options: Any) -> tuple[everstep.Checkpointer, Gate]:
    checkpointer = everstep.Checkpointer(folder, **options)
    gate = Gate(str(folder))
    checkpointer._storage = checkpointer._pipeline._storage = gate
    return checkpointer, gate


def test_a_save_is_skipped_and_says_so_while_the_last_is_being_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer, gate = gated(tmp_path, busy="skip")
    with checkpointer, caplog.at_level(logging.WARNING):
        assert checkpointer.save(1, {})
        assert gate.has_begun.wait(60)
        assert not checkpointer.save(2, {})
        gate.may_go_on.set()
        checkpointer.wait()
        assert checkpointer.save(3, {})
    assert "step 2 skipped: the last one is still being written" in caplog.text
    assert steps(checkpointer) == [1, 3]


def test_a_save_waits_for_memory_when_two_are_being_written(tmp_path: Path) -> None:
    checkpointer, gate = gated(tmp_path, keep_latest=None)
    with checkpointer:
        checkpointer.save(1, {})
        checkpointer.save(2, {})
        third = threading.Thread(target=checkpointer.save, args=(3, {}))
        third.start()
        third.join(0.1)
        assert third.is_alive()
        gate.may_go_on.set()
        third.join(60)
    assert steps(checkpointer) == [1, 2, 3]


class SlowSweep(LocalStorage):
    """A real directory that gives back no space until it may."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.may_go_on = threading.Event()

    def sweep(self) -> None:
        assert self.may_go_on.wait(60)
        super().sweep()


def test_a_save_is_told_durable_before_old_ones_are_cleared_away_and_they_are_not_listed(tmp_path: Path) -> None:
    with everstep.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"step": 1}, wait=True)
    with everstep.Checkpointer(tmp_path, keep_latest=1) as checkpointer:
        storage = checkpointer._storage = checkpointer._pipeline._storage = SlowSweep(str(tmp_path))
        checkpointer.save(2, {"step": 2}, wait=True)

        assert [each.step for each in checkpointer.list()] == [2] and checkpointer.load() == {"step": 2}
        storage.may_go_on.set()
    assert [path.name for path in tmp_path.iterdir()] == ["000000-000000000002"]


def test_what_a_killed_writer_has_hidden_is_cleared_away_after_the_next_save(tmp_path: Path) -> None:
    with everstep.Checkpointer(tmp_path, keep_latest=None) as checkpointer:
        checkpointer.save(1, {"w": torch.ones(9)}, wait=True)
    LocalStorage(str(tmp_path)).hide("000000-000000000001", "manifest.json")
    with everstep.Checkpointer(tmp_path) as checkpointer:
        assert steps(checkpointer) == [] and len(list(tmp_path.iterdir())) == 1
        checkpointer.save(2, {}, wait=True)
    assert [path.name for path in tmp_path.iterdir()] == ["000000-000000000002"]


@pytest.mark.parametrize("start", [0, 8])
def test_a_large_file_of_any_size_is_written_past_the_cache_or_through_it(start: int, tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    with mmap.mmap(-1, 3 << 20) as memory:
        memory[:] = os.urandom(3 << 20)
        for size in (1 << 20, (1 << 20) + 1, (2 << 20) + 4095):
            storage.put("x", memoryview(memory)[start : start + size])
            assert storage.read("x") == memory[start : start + size]


def test_a_state_may_grow_and_shrink(tmp_path: Path) -> None:
    with everstep.Checkpointer(tmp_path) as checkpointer:
        for step, size in enumerate([10, 100_000, 3, 50_000]):
            checkpointer.save(step, {"w": torch.full((size,), step)})
            checkpointer.wait()
            assert checkpointer.load()["w"].tolist() == [step] * size


def test_a_failed_save_is_told_to_whoever_waits_and_the_next_one_goes_well(tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    with everstep.Checkpointer(folder) as checkpointer:
        checkpointer.save(1, {"a": 1}, wait=True)
        folder.rename(tmp_path / "elsewhere")
        with pytest.raises(CheckpointFailed, match="has vanished") as failed:
            checkpointer.save(2, {"a": 2}, wait=True)
        assert "mounted" in str(failed.value)
        (tmp_path / "elsewhere").rename(folder)
        checkpointer.save(3, {"a": 3}, wait=True)

        assert checkpointer.load() == {"a": 3}


class Full(LocalStorage):
    """A real directory with no room for tensors."""

    def put(self, name: str, data: Any) -> None:
        if name.endswith(".safetensors"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().put(name, data)


def test_a_step_that_cannot_be_saved_again_stays_as_it_was(tmp_path: Path) -> None:
    with pytest.raises(CheckpointFailed, match="No space left"), everstep.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(7, {"t": torch.ones(5)}, wait=True)
        checkpointer._storage = checkpointer._pipeline._storage = Full(str(tmp_path))
        checkpointer.save(7, {"t": torch.zeros(5)}, wait=True)

    with everstep.Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.load()["t"].tolist() == [1.0] * 5


def test_the_manifest_tells_what_a_person_wants_to_know(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("print(1)\n")
    with everstep.Checkpointer(tmp_path / "ckpt", hparams={"lr": 0.1}, code=code) as checkpointer:
        checkpointer.save(3, {"loader": {"epoch": 1, "samples": 640}}, metrics={"loss": float("nan")}, wait=True)
        (found,) = checkpointer.list()
    manifest = found.manifest
    assert manifest is not None
    assert manifest.hparams == {"lr": 0.1} and manifest.data == {"epoch": 1, "samples": 640}
    assert manifest.metrics["loss"] != manifest.metrics["loss"]
    assert manifest.versions["torch"] == torch.__version__
    assert manifest.code is not None
    with tarfile.open(tmp_path / "ckpt" / manifest.code["archive"]) as archive:
        assert archive.getnames() == ["train.py"]


def test_a_position_whose_keys_are_no_text_does_not_break_the_manifest(tmp_path: Path) -> None:
    with everstep.Checkpointer(tmp_path) as checkpointer:
        for step, position in enumerate([{1: "a", 2: "b", 10: "c"}, {1: "a", "b": 2}, {1: "a", "1": "b"}]):
            checkpointer.save(step, {"data": position}, wait=True)

            assert checkpointer.load() == {"data": position}


@pytest.mark.parametrize("step", [np.int64(5), torch.tensor(5)])
def test_a_step_may_be_any_whole_number(tmp_path: Path, step: Any) -> None:
    with everstep.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(step, {"x": 1}, wait=True)

        assert checkpointer.load(step) == {"x": 1} and checkpointer.loaded.step == 5
        checkpointer.delete(step)
        assert checkpointer.list() == []
        with pytest.raises(UsageError, match=r"step=5\.0"):
            checkpointer.save(5.0, {"x": 1})


def test_saving_after_close_is_an_error_and_training_goes_on(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    checkpointer = everstep.Checkpointer(tmp_path)
    checkpointer.save(1, {"w": weight, "o": optimizer})
    checkpointer.close()
    with pytest.raises(UsageError) as refused:
        checkpointer.save(2, {"w": weight, "o": optimizer})
    assert refused.value.code == "save-after-close"

    weight.grad = torch.ones(3)
    optimizer.step()
    assert steps(checkpointer) == [1]


_FORK = """
import os, sys, torch, everstep
from everstep.errors import UsageError

torch.set_num_threads(1)
weight = torch.nn.Parameter(torch.zeros(8 << 20))
optimizer = torch.optim.SGD([weight], lr=1.0)
weight.grad = torch.ones(8 << 20)
optimizer.step()
with everstep.Checkpointer(sys.argv[1]) as checkpointer:
    checkpointer.save(1, {"w": weight, "o": optimizer})
    if (child := os.fork()) == 0:
        optimizer.step()
        try:
            checkpointer.save(2, {"w": weight})
        except UsageError as error:
            print(error.message, flush=True)
        checkpointer.wait()
        checkpointer.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_fork_trains_on_and_is_told_that_it_cannot_save(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", _FORK, tmp_path], capture_output=True, text=True)

    assert ended.returncode == 0 and "save() in a fork" in ended.stdout, ended.stderr
    with everstep.Checkpointer(tmp_path) as checkpointer:
        assert (checkpointer.load(1)["w"] == -1).all() and steps(checkpointer) == [1]


def test_two_runs_in_one_place_are_told_and_never_leave_a_broken_checkpoint_unsaid(tmp_path: Path) -> None:
    old = everstep.Checkpointer(tmp_path, keep_latest=1)
    with everstep.Checkpointer(tmp_path, keep_latest=1) as new:
        old.save(5, {"x": "old"}, wait=True)
        new.save(1, {"x": "new"}, wait=True)  # begins again: from now on it is the latest
        with pytest.raises(CheckpointFailed, match="is not the latest: 000001-000000000001 is"):
            old.save(6, {"x": "old"}, wait=True)
        new.save(7, {"x": "new"}, wait=True)
        with pytest.raises(CheckpointFailed, match="was written, but it was deleted again"):
            old.save(7, {"x": "old"}, wait=True)
        old.close()

        assert new.load() == {"x": "new"} and steps(new) == [7]


def test_many_may_write_the_same_name_at_once(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: storage.put("x", bytes([number]) * 1000), range(200)))

    assert len(set(storage.read("x"))) == 1 and storage.list() == {"x": 1000}


def test_a_load_looks_again_for_what_was_deleted_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with everstep.Checkpointer(tmp_path, keep_latest=1) as saving, everstep.Checkpointer(tmp_path) as loading:
        saving.save(1, {"x": 1}, wait=True)
        seen = loading.list()
        saving.save(2, {"x": 2}, wait=True)
        looks = [seen]
        find = loading.list
        monkeypatch.setattr(loading, "list", lambda: looks.pop() if looks else find())

        assert loading.load() == {"x": 2}


def test_the_code_snapshot_leaves_out_what_is_to_be_ignored(tmp_path: Path) -> None:
    for name in ("a.py", "big.bin", "data/x.csv", "lib/b.py", "lib/__pycache__/b.pyc", ".git/config", "lib/data/y"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / ".everstepignore").write_text("# large\n*.bin\n/data/\nlib/data/*\n")
    one = take_snapshot(tmp_path)
    (tmp_path / "a.py").touch()

    assert one.files.taken == (".everstepignore", "a.py", "lib/b.py") and take_snapshot(tmp_path).sha256 == one.sha256
    (tmp_path / "a.py").write_text("changed")
    assert take_snapshot(tmp_path).sha256 != one.sha256


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"mode": "smallest"}, "mode-unknown"),
        ({"keep_latest": 0}, "keep-too-few"),
        ({"busy": "drop"}, "busy-unknown"),
        ({"every": 0}, "every-not-positive"),
        ({"hparams": {"f": object()}}, "hparams-not-json"),
        ({"uri": "nonsense://x"}, "storage-driver-missing"),
        ({"uri": "github://x"}, "storage-not-opened"),
        ({"uri": ""}, "storage-uri-empty"),
    ],
)
def test_wrong_arguments_say_what_to_change(tmp_path: Path, arguments: dict[str, Any], code: str) -> None:
    with pytest.raises(UsageError) as refused:
        everstep.Checkpointer(**{"uri": tmp_path, **arguments})
    assert refused.value.code == code and refused.value.hint


@pytest.mark.parametrize(("step", "code"), [("best", "best-without-metric"), ("newest", "load-step-unknown")])
def test_wrong_loads_say_what_to_change(tmp_path: Path, step: str, code: str) -> None:
    with everstep.Checkpointer(tmp_path) as checkpointer, pytest.raises(UsageError) as refused:
        checkpointer.load(step)
    assert refused.value.code == code and refused.value.hint


def test_files_are_private_and_plain_json_and_safetensors(tmp_path: Path) -> None:
    folder = tmp_path / "ckpt"
    with everstep.Checkpointer(folder) as checkpointer:
        checkpointer.save(1, {"w": torch.ones(3)}, wait=True)
    for path in (folder, *folder.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0
    assert {path.suffix for path in folder.rglob("*.*")} == {".json", ".safetensors"}
    (manifest,) = folder.glob("*/manifest.json")
    assert json.loads(manifest.read_text())["step"] == 1


def test_delete_takes_one_or_all(tmp_path: Path) -> None:
    with everstep.Checkpointer(tmp_path, keep_latest=None) as checkpointer:
        for step in range(3):
            checkpointer.save(step, {})
        checkpointer.delete(1)
        assert steps(checkpointer) == [0, 2]
        checkpointer.delete()
        assert checkpointer.list() == [] and checkpointer.load() is None


def test_workers_of_a_plain_world_load_the_same_although_one_cannot_read_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with everstep.Checkpointer(tmp_path) as checkpointer:
        for step in (100, 200):
            checkpointer.save(step, {"step": step}, wait=True)
    store, here = torch.distributed.HashStore(), threading.local()
    monkeypatch.setattr(agreement, "_open_store", lambda *_: store)
    monkeypatch.setattr(module, "place_now", lambda: WorkerPlace(generation=0, rank=here.rank, size=2))
    read_state = module.read_state

    def flaky(storage: Any, manifest: Any) -> Any:
        if here.rank == 1 and manifest.step == 200:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))  # for this client only
        return read_state(storage, manifest)

    def load(rank: int) -> Any:
        here.rank = rank
        with everstep.Checkpointer(tmp_path) as checkpointer:
            return checkpointer.load()

    monkeypatch.setattr(module, "read_state", flaky)
    store.set("load/1/came/1", "1")  # both are there from the beginning
    with ThreadPoolExecutor(2) as pool:
        assert [each.result(60) for each in (pool.submit(load, 0), pool.submit(load, 1))] == [{"step": 100}] * 2


def test_a_save_that_is_written_has_the_workers_compare_their_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one that is kept in memory: there may be as many as steps, and a sum over all weights takes time."""
    engine = Engine(lambda board, closed: LoneMembership(), ProgressPage())
    monkeypatch.setattr(process_engine, "_engine", engine)
    monkeypatch.setattr(module, "place_now", lambda: WorkerPlace(generation=0, rank=0, size=1))
    with everstep.Checkpointer(tmp_path, every=2, memory_every=1) as checkpointer:
        wanted = []
        for step in (1, 2):
            checkpointer.save(step, {"weight": torch.ones(1)})
            wanted.append(engine.work.comparison.is_wanted)
    assert wanted == [False, True]
