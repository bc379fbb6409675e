"""The code of trials on a node: fetched and unpacked once by its digest, and a working folder for each trial.

Each trial works in its own folder with links to the files of its code, so that trials do not overwrite each other's
files. Old code and folders are removed. Code that is needed again is fetched to the same place, so links stay valid."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from everstep.checkpoint import keep_mark
from everstep.storage import code_archive, private_file

CODE, TRIALS = "code", "trials"  # folders of a pool's agent
CODE_S = 86_400.0  # code that no trial has used for this long is removed …
TRIAL_S = 30 * 86_400.0  # … and what a trial has left in its working folder: a paused experiment may continue later


def code_folder(digest: str, cache: Path, fetch: Callable[[], bytes]) -> Path:
    """One process of the node fetches it; the others wait."""
    if (there := code_archive.unpacked(digest, cache)) is not None:
        os.utime(there)  # it is used
        return there
    with private_file.locked(cache / f"{digest[:16]}.lock"):
        if (there := code_archive.unpacked(digest, cache)) is not None:
            return there
        data = fetch()
        folder = code_archive.unpack(data, digest, cache)
        code_archive.keep_beside(data, folder)  # each trial keeps it with its checkpoints
        return folder


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkingFolder:
    """In use until this process ends, or removes it: other processes of the trial may use it, too."""

    path: Path
    descriptor: int  # with a lock that is shared by all that use it


def working_folder(code: Path, folder: Path) -> WorkingFolder:
    """The trial's folder, with links to all files of the code. A folder that is there is used as it is."""
    while (found := _use(folder)) is None:
        _make(code, folder)
    return found


def _use(folder: Path) -> WorkingFolder | None:
    """None: it is not there, or has just been removed."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with suppress(OSError):  # where there are no locks, it is not removed either
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    try:
        os.utime(folder)
        if os.path.samestat(os.stat(folder), os.fstat(descriptor)):
            return WorkingFolder(path=folder, descriptor=descriptor)
    except FileNotFoundError:
        pass
    os.close(descriptor)
    return None


def _make(code: Path, folder: Path) -> None:
    aside = folder.with_name(f".{folder.name}-{os.getpid()}-{threading.get_ident()}")
    private_file.make_folder(aside)
    for path, names, files in os.walk(code):
        there = aside / Path(path).relative_to(code)
        there.mkdir(exist_ok=True)
        links = [name for name in names if (Path(path) / name).is_symlink()]
        for name in (*files, *links):
            (there / name).symlink_to(Path(path) / name)
    try:
        os.rename(aside, folder)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        if not folder.is_dir():  # otherwise another process of the trial has made it meanwhile
            raise


def remove_unused(used: WorkingFolder) -> None:
    """Stop using the folder. Remove it if the trial left nothing in it and no other process of the trial uses it."""
    try:
        fcntl.flock(used.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_unused(used.path):
            shutil.rmtree(used.path, ignore_errors=True)
    except OSError:
        pass
    finally:
        os.close(used.descriptor)


def _is_unused(folder: Path) -> bool:
    found = (Path(path) / name for path, _, files in os.walk(folder) for name in files if not name.endswith(".pyc"))
    return all(each.is_symlink() for each in found)


def prune(folder: Path, now: float, *, digests: Collection[str], trials: Collection[str]) -> None:
    """Remove what has not been used for a long time from the folder of a pool's agent, except the code and folders of
    these running trials."""
    in_use = {code_archive.folder_name(digest) for digest in digests}
    _remove_old(folder / CODE, now - CODE_S, in_use)
    _remove_old(folder / TRIALS, now - TRIAL_S, trials)


def _remove_old(folder: Path, before: float, in_use: Collection[str]) -> None:
    for each in folder.iterdir() if folder.is_dir() else ():
        is_old = each.is_dir() and each.name not in in_use and each.stat().st_mtime < before
        if is_old and not _holds_registered(each):
            code_archive.remove(each)


def _holds_registered(folder: Path) -> bool:
    """Whether a script has saved a checkpoint there that is a version of a model."""
    return any(keep_mark.marked(files) for _, _, files in os.walk(folder))
