"""Write a checkpoint's image to storage: files first, each durable, the manifest last.

Until the manifest is there, no reader sees the checkpoint; once it is, all of it is there. Several workers write a
replicated state, each its share; the first share's writer waits for the records of the others and puts the manifest.
A failure is reported, and the next save is tried. Runs in the saver as well as in a worker: knows nothing of torch."""

from __future__ import annotations

import errno
import json
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace

from everstep.checkpoint.catalog import retire, sweep, wrong_size
from everstep.checkpoint.image import STATE_FILE, Description, FileLayout, ImageShare
from everstep.checkpoint.manifest import BLOCK_BYTES, MANIFEST, CheckpointKey, FileRecord, Manifest, checksum, to_json
from everstep.checkpoint.policy import Retention
from everstep.checkpoint.strict_json import parse, parse_json
from everstep.errors import CheckpointFailed, EverstepError
from everstep.storage.base import Storage
from everstep.waiting import wait_until

log = logging.getLogger("everstep.checkpoint")

PARTS_S = 600.0  # how long the other workers' shares may come after ours
LONGEST_LOOK_S = 1.0

_FIRST_LOOK_S = 0.005
_FILES_AT_ONCE = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A state that is durable. `retention` decides about the others; None where another worker decides."""

    step: int
    size_bytes: int
    seconds: float
    retention: Retention | None = None


def write_image(
    storage: Storage, description: Description, image: memoryview, *, is_abandoned: Callable[[], bool]
) -> Written:
    """Write our share, and the manifest if it is the first; then hide the checkpoints that the policy does not keep: a
    reader finds the final set as soon as this returns. `clear_away` does the slow part. `image` must not change.

    Raises CheckpointFailed: then no manifest was put, and earlier checkpoints are untouched, or ours was not kept."""
    began = time.monotonic()
    share, manifest = description.share, description.manifest
    step = manifest.step
    try:
        files = _write_files(storage, description, image)
        if share.size > 1:
            put_part(storage, description, files)
            if share.rank > 0:
                size_bytes = sum(file.size_bytes for file in files)
                return Written(step=step, size_bytes=size_bytes, seconds=time.monotonic() - began)
            files += _other_parts(storage, description, is_abandoned)
        whole = replace(manifest, files=tuple(files), state=f"{manifest.save}/{STATE_FILE}")
        if problem := wrong_size(storage, whole):  # else its manifest would replace that of a whole one
            raise CheckpointFailed(
                f"{problem}: does another run save to the same place?", code="checkpoint-file-deleted-again"
            )
        storage.put(f"{manifest.key.folder}/{MANIFEST}", to_json(whole))
    except Exception as error:  # a driver may have its own; the next save may succeed
        raise failure(error, storage, step) from error
    seconds = time.monotonic() - began
    retention, problem = _retire(storage, whole)
    if problem:
        raise CheckpointFailed(
            f"the checkpoint of step {step} in {storage.uri} was written, but {problem}",
            hint="does another run save to the same place? Give each its own",
            code="checkpoint-not-kept",
        )
    return Written(step=step, size_bytes=whole.size_bytes, seconds=seconds, retention=retention)


def failure(error: Exception, storage: Storage, step: int) -> CheckpointFailed:
    """The error for people; `kind` groups the failures that are reported only once."""
    kind = errno.errorcode.get(error.errno or 0, "") if isinstance(error, OSError) else ""
    what = error.message if isinstance(error, EverstepError) else f"{type(error).__name__}: {error}"
    return CheckpointFailed(
        f"the checkpoint of step {step} could not be written to {storage.uri}: {what}",
        hint=_HINTS.get(kind, "earlier checkpoints are unchanged"),
        kind=kind or type(error).__name__,
        code="checkpoint-not-written",
    )


_HINTS = {
    "ENOSPC": "free some space, keep fewer checkpoints (keep_latest=, keep_best=) or use another place",
    "EDQUOT": "the quota is used up: keep fewer checkpoints or use another place",
    "EROFS": "the file system is read-only: use another place",
    "EACCES": "no permission to write there: change the directory's owner or mode, or use another place",
    "EPERM": "no permission to write there: change the directory's owner or mode, or use another place",
    "ENOENT": "is the disk still mounted? Saving continues once the directory is back",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """A worker's record for the first share's writer."""

    digest: str
    is_skipped: bool
    files: tuple[FileRecord, ...]


def put_part(
    storage: Storage, description: Description, files: Sequence[FileRecord], *, is_skipped: bool = False
) -> None:
    """Record for the first share's writer that ours is complete, or will not come."""
    part = _Part(digest=description.digest, is_skipped=is_skipped, files=tuple(files))
    storage.put(f"{_folder(description)}/{_part_file(description.share)}", json.dumps(asdict(part)).encode())


def checksums(data: memoryview, block_bytes: int = BLOCK_BYTES) -> tuple[str, ...]:
    return tuple(checksum(data[start : start + block_bytes]) for start in range(0, len(data), block_bytes))


def _write_files(storage: Storage, description: Description, image: memoryview) -> list[FileRecord]:
    """A few at a time: a small file waits for the disk as often as a large one."""
    with ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="everstep-write") as pool:
        records = [pool.submit(_write_file, storage, file, image, description) for file in description.files]
        try:
            return [record.result() for record in records]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _write_file(storage: Storage, file: FileLayout, image: memoryview, description: Description) -> FileRecord:
    data = image[file.offset : file.offset + file.size_bytes]
    with ThreadPoolExecutor(1, thread_name_prefix="everstep-checksum") as beside:  # of our memory, not of the file
        sums = beside.submit(checksums, data)
        storage.put(f"{_folder(description)}/{file.name}", data)
    name = f"{description.manifest.save}/{file.name}"
    return FileRecord(name=name, size_bytes=file.size_bytes, crc32=sums.result())


def _other_parts(storage: Storage, description: Description, is_abandoned: Callable[[], bool]) -> list[FileRecord]:
    """The files of all other shares, in rank order, once all are complete."""
    size = description.share.size
    missing = {rank: _part_file(ImageShare(rank=rank, size=size)) for rank in range(1, size)}
    files: dict[int, tuple[FileRecord, ...]] = {}

    def are_over() -> bool:
        there = storage.list(_folder(description))
        for rank in [rank for rank, name in missing.items() if name in there]:
            files[rank] = _read_part(storage, description, rank, missing.pop(rank))
        return not missing or is_abandoned()

    what = f"the shares of other ranks of {description.manifest.key.folder}"
    wait_until(are_over, PARTS_S, what, pause_s=_FIRST_LOOK_S, longest_pause_s=LONGEST_LOOK_S)
    if missing:
        why = "the world has changed" if is_abandoned() else f"{PARTS_S:.0f} s have passed"
        raise CheckpointFailed(
            f"the shares of {listed_ranks(list(missing))} of {size} are missing, and {why}",
            code="checkpoint-shares-missing",
        )
    return [file for rank in sorted(files) for file in files[rank]]


def _read_part(storage: Storage, description: Description, rank: int, file: str) -> tuple[FileRecord, ...]:
    name = f"{_folder(description)}/{file}"
    part: _Part = parse(_Part, parse_json(storage.read(name), name), name)
    if part.is_skipped:
        raise CheckpointFailed(
            f"rank {rank} skipped its share: its last one was still being written", code="checkpoint-share-skipped"
        )
    if part.digest != description.digest:
        raise CheckpointFailed(
            f"rank {rank} saves other tensors than rank 0: their names, types or shapes differ",
            hint="a replicated state must have the same tensors on all workers",
            code="checkpoint-tensors-differ",
        )
    return part.files


def _folder(description: Description) -> str:
    return f"{description.manifest.key.folder}/{description.manifest.save}"


def _part_file(share: ImageShare) -> str:
    return f"part-{share.rank:05d}-of-{share.size:05d}.json"


def listed_ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8]) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def clear_away(storage: Storage, written: Written) -> None:
    """Free the space of checkpoints that are not kept, before the next one is written: it may need the space."""
    try:
        if written.retention is not None:
            sweep(storage, written.retention)
    except Exception as error:
        _warn(storage, error)


def _retire(storage: Storage, ours: Manifest) -> tuple[Retention | None, str]:
    """Also what is wrong with ours: retention, here or in another run, may have taken it for an old one."""
    try:
        decision = retire(storage, ours.policy)
        return decision, _problem(decision, ours.key) or wrong_size(storage, ours)
    except Exception as error:
        _warn(storage, error)
        return None, ""


def _problem(decision: Retention, ours: CheckpointKey) -> str:
    if ours in decision.overtaken:
        return f"it is not the latest: {max(decision.keep).folder} is"
    return f"it was deleted again: {decision.delete[ours]}" if ours in decision.delete else ""


def _warn(storage: Storage, error: Exception) -> None:
    """The checkpoint is durable; deleting is tried again after the next save."""
    log.warning("old checkpoints in %s could not be deleted: %s", storage.uri, error)
