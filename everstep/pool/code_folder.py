"""The code of trials on a node: fetched and unpacked once by its digest, and a working folder for each trial.

A trial works in a folder of its own with links to the files of its code, so that what one trial writes is not in the
way of another. Old code and folders are removed; code is fetched again to the place that links point to."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from everstep.storage import code_archive, private_file

CODE, TRIALS = "code", "trials"  # folders of a pool's agent
CODE_S = 86_400.0  # code that no trial has used for this long is removed …
TRIAL_S = 30 * 86_400.0  # … and what a trial has left in its working folder: an experiment may be paused meanwhile


def code_folder(digest: str, cache: Path, fetch: Callable[[], bytes]) -> Path:
    """Fetched by one process of the node; others wait for it."""
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


def working_folder(code: Path, folder: Path) -> Path:
    """With links to all files of the code; a folder that an earlier assignment has left is used as it is."""
    if folder.is_dir():
        os.utime(folder)
        return folder
    aside = folder.with_name(f".{folder.name}-{os.getpid()}")
    private_file.make_folder(aside)
    for path, names, files in os.walk(code):
        there = aside / Path(path).relative_to(code)
        there.mkdir(exist_ok=True)
        links = [name for name in names if (Path(path) / name).is_symlink()]
        for name in (*files, *links):
            (there / name).symlink_to(Path(path) / name)
    os.rename(aside, folder)
    return folder


def remove_unused(folder: Path) -> None:
    """Remove a working folder in which the trial has left nothing."""
    for path, _, files in os.walk(folder):
        if any(not (Path(path) / name).is_symlink() for name in files if not name.endswith(".pyc")):
            return
    shutil.rmtree(folder, ignore_errors=True)


def prune(folder: Path, now: float, *, digests: Collection[str], trials: Collection[str]) -> None:
    """Remove what was not used for long from the folder of a pool's agent; not the code and folders of these, which
    run."""
    in_use = {code_archive.folder_name(digest) for digest in digests}
    _remove_old(folder / CODE, now - CODE_S, in_use)
    _remove_old(folder / TRIALS, now - TRIAL_S, trials)


def _remove_old(folder: Path, before: float, in_use: Collection[str]) -> None:
    for each in folder.iterdir() if folder.is_dir() else ():
        if each.is_dir() and each.name not in in_use and each.stat().st_mtime < before:
            code_archive.remove(each)
