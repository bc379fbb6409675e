"""The code of trials on a node: fetched once, linked into a folder for each trial."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from everstep.checkpoint.code_snapshot import take_snapshot
from everstep.errors import UsageError
from everstep.pool.code_folder import (
    CODE,
    CODE_S,
    TRIAL_S,
    TRIALS,
    code_folder,
    prune,
    remove_unused,
    working_folder,
)
from everstep.storage import code_archive
from lab.refused import refused


def packed(folder: Path) -> code_archive.Code:
    (folder / "models").mkdir(parents=True)
    (folder / "train.py").write_text("print()")
    (folder / "models/net.py").write_text("")
    return code_archive.pack(folder)


def test_processes_that_need_the_code_at_the_same_time_fetch_it_once(tmp_path: Path) -> None:
    code = packed(tmp_path / "code")
    fetched = []

    def fetch() -> bytes:
        fetched.append(1)
        return code.data

    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(code_folder, code.sha256, tmp_path / "cache", fetch) for _ in range(4)]
        folders = {call.result(60) for call in calls}
    assert len(folders) == len(fetched) == 1


def test_what_a_trial_writes_is_in_its_own_folder(tmp_path: Path) -> None:
    code = packed(tmp_path / "code")
    shared = code_folder(code.sha256, tmp_path / "cache", lambda: code.data)
    first, second = (working_folder(shared, tmp_path / "trials" / name).path for name in ("e1-t1", "e1-t2"))
    (first / "models/weights").write_text("1")
    (first / "log").write_text("1")
    assert (second / "train.py").read_text() == "print()"
    assert not (second / "log").exists()
    assert not (second / "models/weights").exists()
    assert not (shared / "models/weights").exists()


def test_a_snapshot_of_the_code_is_the_tarball_that_it_came_in(tmp_path: Path) -> None:
    code = packed(tmp_path / "code")
    shared = code_folder(code.sha256, tmp_path / "cache", lambda: code.data)
    taken = take_snapshot(shared)
    assert (taken.data, taken.sha256, set(taken.files.taken)) == (code.data, code.sha256, set(code.files.taken))
    mine = tmp_path / "code-0123456789abcdef"
    shared.rename(mine)
    code_archive.keep_beside(b"another", mine)
    (mine / "more.py").touch()
    assert "more.py" in take_snapshot(mine).files.taken, "a file that happens to lie beside it"


def test_code_that_a_trial_packs_again_is_the_same_code_with_what_the_trial_wrote(tmp_path: Path) -> None:
    """Its files are links into the node's code; other links that lead out are as wrong as anywhere."""
    (files := tmp_path / "code").mkdir()
    (files / "extra.py").symlink_to("train.py")
    (files / "lib").symlink_to("models")
    code = packed(files)
    shared = code_folder(code.sha256, tmp_path / "cache", lambda: code.data)
    working = working_folder(shared, tmp_path / "trials" / "e1-t1").path
    assert code_archive.pack(working).sha256 == code.sha256
    models = code_archive.pack(working / "models", includes=[working / "train.py"])
    assert models.files.taken == ("net.py", "train.py")
    assert "train.py" in code_archive.pack(working, skips_outside_links=True).files.taken
    (working / "models/made.txt").write_text("1")
    assert {*code_archive.pack(working).files.taken} == {*code.files.taken, "models/made.txt"}
    for target in ("/etc/hosts", shared / "models/net.py"):
        (working / "mine").unlink(missing_ok=True)
        (working / "mine").symlink_to(target)
        with refused("code-link-leads-outside", UsageError):
            code_archive.pack(working)


def test_a_folder_stays_only_if_the_trial_left_something_in_it(tmp_path: Path) -> None:
    code = packed(tmp_path / "code")
    shared = code_folder(code.sha256, tmp_path / "cache", lambda: code.data)
    used, unused = (working_folder(shared, tmp_path / "trials" / name) for name in ("e1-t1", "e1-t2"))
    (used.path / "log").write_text("1")
    for each in (used, unused):
        remove_unused(each)
    assert used.path.is_dir() and not unused.path.exists()
    assert working_folder(shared, used.path).path == used.path
    assert (used.path / "log").read_text() == "1", "the next assignment finds it"
    assert (shared / "train.py").exists()


def test_a_folder_that_two_processes_of_a_trial_share_goes_with_the_last_of_them(tmp_path: Path) -> None:
    code = packed(tmp_path / "code")
    shared = code_folder(code.sha256, tmp_path / "cache", lambda: code.data)
    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(working_folder, shared, tmp_path / "trials/e1-t1") for _ in range(4)]
        first, *others = [call.result(60) for call in calls]
    for each in (first, *others):
        assert (each.path / "train.py").read_text() == "print()", "the others use it"
        remove_unused(each)
    assert not first.path.exists()
    assert (working_folder(shared, first.path).path / "train.py").exists()


def test_what_was_not_used_for_long_is_removed_and_code_is_fetched_again(tmp_path: Path) -> None:
    code = packed(tmp_path / "files")
    shared = code_folder(code.sha256, tmp_path / CODE, lambda: code.data)
    first, second = (working_folder(shared, tmp_path / TRIALS / name).path for name in ("e1-t1", "e1-t2"))
    now = time.time()
    prune(tmp_path, now + CODE_S + 60, digests=[code.sha256], trials=[])
    assert shared.is_dir() and first.is_dir(), "a trial that runs uses it"
    prune(tmp_path, now + CODE_S + 60, digests=[], trials=[])
    assert not shared.exists() and first.is_dir()
    assert code_folder(code.sha256, tmp_path / CODE, lambda: code.data) == shared
    assert (working_folder(shared, first).path / "train.py").read_text() == "print()"
    prune(tmp_path, now + TRIAL_S + 60, digests=[], trials=["e1-t2"])
    assert not first.exists() and second.is_dir()


def test_a_folder_with_a_registered_checkpoint_is_not_removed(tmp_path: Path) -> None:
    for name in ("e1-t1", "e1-t2"):
        (tmp_path / TRIALS / name / "ckpt" / "000001-000000000005").mkdir(parents=True)
    (tmp_path / TRIALS / "e1-t1" / "ckpt" / "000001-000000000005.keep").touch()
    (tmp_path / TRIALS / "e1-t2" / "ckpt" / "other.keep").touch()
    prune(tmp_path, time.time() + TRIAL_S + 60, digests=[], trials=[])
    assert [each.name for each in (tmp_path / TRIALS).iterdir()] == ["e1-t1"]
