"""What each storage promises, and checkpoints on each of them."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

import everstep
from everstep.errors import CheckpointFailed, StorageUnreachable
from everstep.storage.base import Storage, open_storage
from everstep.storage.remote import RemoteStorage
from lab.command import until


def test_what_is_put_is_there(storage: Storage) -> None:
    storage.put("a/b/c.bin", b"hello world")
    storage.put("a/d.bin", b"")

    assert storage.read("a/b/c.bin") == b"hello world"
    assert storage.read("a/b/c.bin", 6, 3) == b"wor"
    assert storage.read("a/d.bin") == b""
    assert storage.read("a/b/c.bin", 9, 99) == b"ld" and storage.read("a/b/c.bin", 99, 9) == b""
    assert storage.list("a") == {"b": None, "d.bin": 0}
    assert storage.list("a/b") == {"c.bin": 11}
    assert set(storage.list()) == {"a"}


def test_a_folder_that_is_marked_is_not_hidden(storage: Storage) -> None:
    for name in ("kept", "gone"):
        storage.put(f"{name}/manifest", b"m")
        storage.put(f"{name}/data", b"d")
    storage.put("kept.mark", b"")
    for name in ("kept", "gone", "missing"):
        storage.hide(name, "manifest", unless=f"{name}.mark")
    storage.sweep()

    assert storage.list("kept") == {"data": 1, "manifest": 1} and storage.list("gone") == {}


def test_a_mark_that_comes_while_a_folder_is_hidden_brings_it_back(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.put("a/manifest", b"m")
    storage.put("a/data", b"d")
    if isinstance(storage, RemoteStorage):
        delete = storage.delete

        def and_mark(name: str) -> None:
            delete(name)
            storage.put("a.mark", b"")

        monkeypatch.setattr(storage, "delete", and_mark)
    else:
        rename = os.rename

        def rename_and_mark(old: Any, new: Any) -> None:
            rename(old, new)
            Path(storage.uri, "a.mark").touch()

        monkeypatch.setattr(os, "rename", rename_and_mark)
    storage.hide("a", "manifest", unless="a.mark")
    monkeypatch.undo()
    storage.sweep()

    assert storage.list("a") == {"data": 1, "manifest": 1} and storage.read("a/manifest") == b"m"


def test_a_put_replaces(storage: Storage) -> None:
    storage.put("x", b"long content")
    storage.put("x", b"short")

    assert storage.read("x") == b"short" and storage.list() == {"x": 5}


def test_many_buffers_are_filled_in_order(storage: Storage) -> None:
    storage.put("x", bytes(range(100)))
    buffers = [memoryview(bytearray(size)) for size in (3, 0, 50, 60)]

    assert storage.read_into("x", 10, buffers) == 90
    assert b"".join(buffers)[:90] == bytes(range(10, 100))


def test_what_is_not_there(storage: Storage) -> None:
    assert storage.list() == {} and storage.list("nothing") == {}
    storage.delete("nothing")
    with pytest.raises(FileNotFoundError):
        storage.read("nothing")


def test_deleting_a_folder_takes_all_that_is_in_it(storage: Storage) -> None:
    for name in ("a/b/c", "a/d", "ab"):
        storage.put(name, b"1")
    storage.delete("a")

    assert storage.list() == {"ab": 1}


def test_a_hidden_folder_is_not_found_and_its_space_comes_back(storage: Storage) -> None:
    for name in ("a/mark", "a/b/c", "ab"):
        storage.put(name, b"1")
    storage.hide("a", "mark")
    storage.hide("nothing", "mark")
    assert storage.list("a") == {}
    storage.sweep()

    assert storage.list() == {"ab": 1}


def test_all_who_see_a_storage_know_it_by_the_same_name(storage: Storage, tmp_path: Path) -> None:
    with closing(open_storage(storage.uri)) as again, closing(open_storage(tmp_path / "another")) as other:
        assert storage.identity() == again.identity() != other.identity()


def test_many_who_come_first_at_once_give_a_storage_one_name(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        names = set(pool.map(lambda _: open_storage(tmp_path / "new").identity(), range(32)))
    assert len(names) == 1 and list((tmp_path / "new").iterdir()) == [tmp_path / "new" / ".everstep-storage"]


def test_the_same_path_on_two_disks_is_two_storages(tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    seen = {each: open_storage(each).identity() for each in (here, elsewhere)}
    here.rename(tmp_path / "moved")

    assert open_storage(tmp_path / "moved").identity() == seen[here] != seen[elsewhere]


def test_a_large_file_arrives_whole(storage: Storage) -> None:
    data = bytes(torch.randint(0, 256, (40 << 20,), dtype=torch.uint8).numpy())
    storage.put("large", memoryview(data))

    buffer = memoryview(bytearray(len(data)))
    assert storage.read_into("large", 0, [buffer]) == len(data) and bytes(buffer) == data


def test_checkpoints_are_saved_kept_and_loaded(uri: str) -> None:
    with everstep.Checkpointer(uri, metric="loss") as checkpointer:
        for step, loss in enumerate([3.0, 1.0, 2.0, 4.0]):
            checkpointer.save(step, {"w": torch.full((1000,), step), "loss": loss}, metrics={"loss": loss})
        checkpointer.wait()
        assert [each.step for each in checkpointer.list()] == [1, 2, 3]
        assert all(each.is_whole for each in checkpointer.list())
    with everstep.Checkpointer(uri, metric="loss") as again:
        assert again.load()["w"].unique().tolist() == [3]
        assert again.load("best")["loss"] == 1.0
        again.delete()
        assert again.load() is None


def test_an_upload_goes_on_when_the_storage_is_back(gateway: Any, bucket: str) -> None:
    with everstep.Checkpointer(f"s3://{bucket}/run") as checkpointer:
        checkpointer.save(1, {"w": torch.ones(10)}, wait=True)
        gateway.is_down.set()
        checkpointer._storage.close()  # the connections that are open would go on working
        checkpointer.save(2, {"w": torch.ones(10) * 2})
        gateway.wait_refused(2)
        gateway.is_down.clear()
        checkpointer.wait()

        assert checkpointer.load()["w"].unique().tolist() == [2]


def test_an_upload_that_is_cut_in_the_middle_is_made_again(gateway: Any, bucket: str) -> None:
    data = bytes(torch.randint(0, 256, (40 << 20,), dtype=torch.uint8).numpy())
    with closing(open_storage(f"s3://{bucket}/run")) as storage:
        storage.put("small", b"1")
        gateway.cut_after = 25 << 20
        storage.put("large", memoryview(data))

        assert gateway.num_refused == 1
        assert storage.read("large") == data


def test_an_upload_over_a_connection_that_has_died_silently_is_made_again(gateway: Any, bucket: str) -> None:
    data = bytes(torch.randint(0, 256, (40 << 20,), dtype=torch.uint8).numpy())
    with closing(RemoteStorage(f"s3://{bucket}/run", "s3", stall_s=5.0)) as storage:
        storage.put("small", b"1")
        gateway.freeze_after = 25 << 20
        storage.put("large", memoryview(data))
        gateway.may_thaw.set()
        until(lambda: not _calls_under_way(), lambda: f"given up, and still there: {_calls_under_way()}")

        assert storage.read("large") == data


def _calls_under_way() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "everstep storage call"]


def test_a_storage_that_stays_away_is_an_error_in_words(gateway: Any, bucket: str) -> None:
    gateway.is_down.set()
    storage = RemoteStorage(f"s3://{bucket}/run", "s3", retry_s=0.0)
    storage._files.retries = 1
    with closing(storage), pytest.raises(StorageUnreachable, match="gave up after"):
        storage.put("x", b"1")


def test_a_missing_bucket_is_no_reason_to_wait(bucket: str) -> None:
    with everstep.Checkpointer(f"s3://{bucket}-missing/run") as checkpointer:
        with pytest.raises(CheckpointFailed, match="bucket does not exist") as failed:
            checkpointer.save(1, {}, wait=True)
        assert "gave up after" not in str(failed.value)  # as it says of what it has tried again
        checkpointer._pending = None
