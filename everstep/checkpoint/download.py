"""A checkpoint as a folder by itself: `checkpoint.json`, which says where it was saved, its code in `code/`, and its
state in the folder that the storage has for it, checked block by block.

So `Checkpointer(folder).load(step)` loads a folder that was moved here from elsewhere. Runs without torch."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from everstep.checkpoint.catalog import wrong_block
from everstep.checkpoint.manifest import MANIFEST, FileRecord, checksum, parse_folder
from everstep.checkpoint.policy import Found
from everstep.checkpoint.strict_json import broken_text
from everstep.storage import private_file
from everstep.storage.base import Storage

DESCRIPTION = "checkpoint.json"


def description(folder: Path) -> Any:
    """None: it has none."""
    try:
        return json.loads((folder / DESCRIPTION).read_bytes())
    except (OSError, ValueError):
        return None


def has_state(folder: Path, step: int) -> bool:
    """Whether the state of that step is in the folder, whole."""
    found = (parse_folder(each.name) for each in folder.iterdir()) if folder.is_dir() else ()
    return any(key.step == step and (folder / key.folder / MANIFEST).is_file() for key in found if key is not None)


def fetch_state(storage: Storage, found: Found, folder: Path) -> None:
    """Copy the state into the folder. It appears there when it is whole, and replaces another one of the same step."""
    assert found.manifest is not None
    target, manifest = folder / found.key.folder, storage.read(f"{found.key.folder}/{MANIFEST}")
    if _is_there(target, manifest):
        return
    aside = private_file.make_folder(folder / f".{found.key.folder}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        for file in found.manifest.files:
            _copy(storage, found.key.folder, file, aside / file.name)
        private_file.write(aside / MANIFEST, manifest)
        private_file.put_in_place(aside, target)
    except OSError:
        if not _is_there(target, manifest):  # otherwise another process was quicker
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _is_there(target: Path, manifest: bytes) -> bool:
    """That checkpoint, not another one with its name."""
    try:
        return (target / MANIFEST).read_bytes() == manifest
    except OSError:
        return False


def _copy(storage: Storage, folder: str, file: FileRecord, target: Path) -> None:
    private_file.make_folder(target.parent)
    buffer = memoryview(bytearray(min(file.block_bytes, file.size_bytes)))
    with target.open("xb") as out:
        for number, expected in enumerate(file.crc32):
            start = number * file.block_bytes
            block = buffer[: min(file.block_bytes, file.size_bytes - start)]
            got = storage.read_into(f"{folder}/{file.name}", start, [block])
            if (actual := checksum(block[:got])) != expected or got != len(block):
                broken_text(wrong_block(f"{storage.uri}/{folder}/{file.name}", file, number, actual))
            out.write(block)
