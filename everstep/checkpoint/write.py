"""Write a checkpoint's image to storage: files first, each durable, the manifest last.

Until the manifest is there, nobody sees the checkpoint; once it is, all of it is there. A replicated state is written
by several workers, each its share; the first share's writer waits for the records of the others and puts the manifest.
Runs in the agent as well as in a worker's thread: knows nothing of torch."""

from __future__ import annotations

import errno
import json
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from everstep.checkpoint import strict_json
from everstep.checkpoint.image import STATE_FILE, FileLayout, ImageLayout
from everstep.checkpoint.manifest import BLOCK_BYTES, MANIFEST, FileRecord, Manifest, parse_file, to_json
from everstep.errors import CheckpointFailed, EverstepError
from everstep.storage.base import Storage
from everstep.waiting import wait_until

PARTS_S = 600.0  # so long may the other workers' shares come after ours
LONGEST_LOOK_S = 1.0

_FIRST_LOOK_S = 0.005
_FILES_AT_ONCE = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """`manifest` is the whole one where we put it, None where another worker does."""

    size_bytes: int
    seconds: float
    manifest: Manifest | None


def write_image(
    storage: Storage,
    layout: ImageLayout,
    image: memoryview,
    manifest: Manifest,
    *,
    parts_s: float = PARTS_S,
    is_abandoned: Callable[[], bool] = lambda: False,
) -> Written:
    """Write our share, and the manifest if it is the first. `image` must hold still until this returns.

    Raises CheckpointFailed: then no manifest was put, and what was there before is untouched."""
    began = time.monotonic()
    try:
        files = _write_files(storage, layout, image, manifest)
        if layout.share.size > 1:
            put_part(storage, layout, manifest, files)
            if layout.share.rank > 0:
                return Written(size_bytes=_size(files), seconds=time.monotonic() - began, manifest=None)
            files += _other_parts(storage, layout, manifest, parts_s, is_abandoned)
        whole = replace(manifest, files=tuple(files), state=f"{manifest.save}/{STATE_FILE}")
        _check_there(storage, whole)
        storage.put(f"{manifest.key.folder}/{MANIFEST}", to_json(whole))
    except (OSError, EverstepError, ImportError) as error:
        raise failure(error, storage, manifest) from error
    return Written(size_bytes=whole.size_bytes, seconds=time.monotonic() - began, manifest=whole)


def _check_there(storage: Storage, whole: Manifest) -> None:
    """Else its manifest would take the place of that of a whole one."""
    there = storage.list(f"{whole.key.folder}/{whole.save}")
    for file in whole.files:
        if there.get(file.name.removeprefix(f"{whole.save}/")) != file.size_bytes:
            raise CheckpointFailed(f"{file.name} is gone again: does another run save to the same place?")


def failure(error: Exception, storage: Storage, manifest: Manifest) -> CheckpointFailed:
    """What went wrong, for people; `kind` groups the failures that need to be told only once."""
    kind = errno.errorcode.get(error.errno or 0, "") if isinstance(error, OSError) else ""
    what = error.message if isinstance(error, EverstepError) else f"{type(error).__name__}: {error}"
    failed = CheckpointFailed(
        f"the checkpoint of step {manifest.step} could not be written to {storage.uri}: {what}",
        hint=_HINTS.get(kind, "earlier checkpoints are as they were"),
    )
    failed.kind = kind or type(error).__name__
    return failed


_HINTS = {
    "ENOSPC": "free some space, keep fewer checkpoints (keep_latest=, keep_best=) or give another place",
    "EDQUOT": "the quota is used up: keep fewer checkpoints or give another place",
    "EROFS": "the file system is read-only: give another place",
    "EACCES": "we may not write there: change the directory's owner or mode, or give another place",
    "EPERM": "we may not write there: change the directory's owner or mode, or give another place",
    "ENOENT": "is the disk still mounted? Once the directory is back, saving goes on",
}


def put_part(
    storage: Storage, layout: ImageLayout, manifest: Manifest, files: list[FileRecord], *, is_skipped: bool = False
) -> None:
    """Tell the first share's writer that ours is there, or will not come."""
    record = {
        "digest": layout.digest,
        "is_skipped": is_skipped,
        "files": [asdict(file) | {"crc32": [f"{crc:08x}" for crc in file.crc32]} for file in files],
    }
    storage.put(_part_name(layout.share.rank, layout.share.size, manifest), json.dumps(record).encode())


def checksums(data: memoryview, block_bytes: int = BLOCK_BYTES) -> tuple[int, ...]:
    return tuple(zlib.crc32(data[start : start + block_bytes]) for start in range(0, len(data), block_bytes))


def _write_files(storage: Storage, layout: ImageLayout, image: memoryview, manifest: Manifest) -> list[FileRecord]:
    """Some at once: a small one waits for the disk as often as a large one."""
    with ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="everstep-write") as pool:
        records = [pool.submit(_write_file, storage, file, image, manifest) for file in layout.files]
        try:
            return [record.result() for record in records]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _write_file(storage: Storage, file: FileLayout, image: memoryview, manifest: Manifest) -> FileRecord:
    data = image[file.offset : file.offset + file.size_bytes]
    name = f"{manifest.save}/{file.name}"
    with ThreadPoolExecutor(
        1, thread_name_prefix="everstep-checksum"
    ) as beside:  # of what we hold, not of what is there
        sums = beside.submit(checksums, data)
        storage.put(f"{manifest.key.folder}/{name}", data)
    return FileRecord(name=name, size_bytes=file.size_bytes, crc32=sums.result())


def _other_parts(
    storage: Storage, layout: ImageLayout, manifest: Manifest, parts_s: float, is_abandoned: Callable[[], bool]
) -> list[FileRecord]:
    """The files of all other shares, in order of their ranks, once all are there."""
    size = layout.share.size
    missing = dict.fromkeys(range(1, size))
    files: dict[int, list[FileRecord]] = {}

    def are_over() -> bool:
        there = storage.list(f"{manifest.key.folder}/{manifest.save}")
        for rank in [rank for rank in missing if _part_file(rank, size) in there]:
            files[rank] = _read_part(storage, layout, manifest, rank)
            del missing[rank]
        return not missing or is_abandoned()

    what = f"the shares of other ranks of {manifest.key.folder}"
    wait_until(are_over, parts_s, what, pause_s=_FIRST_LOOK_S, longest_pause_s=LONGEST_LOOK_S)
    if missing:
        why = "the world has changed" if is_abandoned() else f"{parts_s:.0f} s have passed"
        raise CheckpointFailed(f"the shares of ranks {_listed(missing)} of {size} did not come, and {why}")
    return [file for rank in sorted(files) for file in files[rank]]


def _read_part(storage: Storage, layout: ImageLayout, manifest: Manifest, rank: int) -> list[FileRecord]:
    name = _part_name(rank, layout.share.size, manifest)
    record: Any = strict_json.parse_json(storage.read(name), name)
    if strict_json.field(record, "is_skipped", bool, name):
        raise CheckpointFailed(f"rank {rank} has skipped its share: its last one was still being written")
    if strict_json.field(record, "digest", str, name) != layout.digest:
        raise CheckpointFailed(
            f"rank {rank} saves other tensors than rank 0: their names, types or shapes differ",
            hint="a replicated state must have the same tensors on all workers",
        )
    return [parse_file(each, name) for each in strict_json.field(record, "files", list, name)]


def _part_file(rank: int, size: int) -> str:
    return f"part-{rank:05d}-of-{size:05d}.json"


def _part_name(rank: int, size: int, manifest: Manifest) -> str:
    return f"{manifest.key.folder}/{manifest.save}/{_part_file(rank, size)}"


def _listed(ranks: Any) -> str:
    shown = [str(rank) for rank in ranks]
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")


def _size(files: list[FileRecord]) -> int:
    return sum(file.size_bytes for file in files)
