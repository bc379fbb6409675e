"""The code of trials on a node: fetched and unpacked once by its digest, and a working folder for each trial.

A trial works in a folder of its own with links to the files of its code, so that what one trial writes is not in the
way of another."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from everstep.storage import code_archive, private_file


def code_folder(digest: str, cache: Path, fetch: Callable[[], bytes]) -> Path:
    """Fetched by one process of the node; others wait for it."""
    if (there := code_archive.unpacked(digest, cache)) is not None:
        return there
    with private_file.locked(cache / f"{digest[:16]}.lock"):
        if (there := code_archive.unpacked(digest, cache)) is not None:
            return there
        return code_archive.unpack(fetch(), digest, cache)


def working_folder(code: Path, folder: Path) -> Path:
    """With links to all files of the code; a folder that an earlier assignment has left is used as it is."""
    if folder.is_dir():
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
