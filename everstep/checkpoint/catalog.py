"""Find the checkpoints of a storage, check whether they are whole, and delete those that are not kept.

A checkpoint with a mark (`keep_mark`) stays. The mark is looked up again after the checkpoint was hidden: one that
comes meanwhile brings the checkpoint back, and one that comes later finds it missing.

`find` reads manifests and sizes; `verify` reads everything and names each damaged block.
Runs without torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from everstep.checkpoint import keep_mark
from everstep.checkpoint.manifest import (
    MANIFEST,
    CheckpointKey,
    FileRecord,
    Manifest,
    NewerFormat,
    RetentionPolicy,
    checksum,
    parse_folder,
    parse_manifest,
)
from everstep.checkpoint.policy import Found, Retention, best_first, decide_retention
from everstep.checkpoint.strict_json import broken
from everstep.errors import CheckpointBroken, NoCheckpoint, UsageError
from everstep.storage.base import Storage


def find(storage: Storage) -> list[Found]:
    """All checkpoints, oldest first, the incomplete and the broken ones too."""
    keys = [key for name, size in storage.list().items() if size is None and (key := parse_folder(name))]
    return [look(storage, key) for key in sorted(keys)]


def look(storage: Storage, key: CheckpointKey) -> Found:
    where = f"{key.folder}/{MANIFEST}"
    try:
        manifest = parse_manifest(storage.read(where), f"{storage.uri}/{where}")
        if manifest.key != key:
            broken(f"{storage.uri}/{where}", f"this is the manifest of {manifest.key.folder}")
    except FileNotFoundError:
        return Found(key=key, problem="incomplete: no manifest; it is being written, or its writer died")
    except CheckpointBroken as error:
        return Found(key=key, problem=error.message, is_unreadable=isinstance(error, NewerFormat))
    except OSError as error:
        return Found(key=key, problem=f"{storage.uri}/{where}: {error}", is_unreadable=True)
    return Found(key=key, manifest=manifest, problem=wrong_size(storage, manifest))


def verify(storage: Storage, found: Found) -> Iterator[str]:
    """Read every block and compare its checksum; yields each problem with file and offset."""
    if found.manifest is None or found.problem:
        yield found.problem
        return
    for file in found.manifest.files:
        where = f"{found.key.folder}/{file.name}"
        buffer = memoryview(bytearray(min(file.block_bytes, file.size_bytes)))
        for number, expected in enumerate(file.crc32):
            start = number * file.block_bytes
            block = buffer[: min(file.block_bytes, file.size_bytes - start)]
            got = storage.read_into(where, start, [block])
            if (actual := checksum(block[:got])) != expected or got != len(block):
                yield wrong_block(f"{storage.uri}/{where}", file, number, actual)


def wrong_block(where: str, file: FileRecord, number: int, actual: str) -> str:
    start = number * file.block_bytes
    end = min(start + file.block_bytes, file.size_bytes)
    return f"{where}: bytes {start:,} to {end:,} have checksum {actual}, expected {file.crc32[number]}"


def choose(found: Sequence[Found], step: int | str, policy: RetentionPolicy, uri: str) -> list[Found]:
    """The candidates to load for "latest", "best" or a step: newest or best first."""
    whole = [each for each in reversed(found) if each.is_whole]
    if step == "latest":
        return whole
    if step == "best":
        if policy.metric is None:
            raise UsageError(
                "load('best') needs a metric",
                hint='use Checkpointer(…, metric="val_loss")',
                code="best-without-metric",
            )
        best = best_first(whole, policy)
        if whole and not best:
            raise NoCheckpoint(
                f"no checkpoint in {uri} has the metric {policy.metric!r}",
                hint=f"save(…, metrics={{{policy.metric!r}: …}})",
                code="checkpoint-metric-missing",
            )
        return best
    if not isinstance(step, int):
        raise UsageError(
            f"load({step!r})", hint='use "latest", "best" or the number of a step', code="load-step-unknown"
        )
    same = [each for each in reversed(found) if each.step == step and each.manifest is not None][:1]
    if not same:
        steps = ", ".join(str(each.step) for each in whole) or "none"
        raise NoCheckpoint(
            f"no checkpoint of step {step} in {uri}",
            hint=f"existing steps: {steps}",
            code="checkpoint-step-missing",
        )
    return same


def prune(storage: Storage, policy: RetentionPolicy, *, is_dry: bool = False) -> Retention:
    """Delete the checkpoints that the policy does not keep."""
    if is_dry:
        return _decide(storage, policy)
    decision = retire(storage, policy)
    sweep(storage, decision)
    return decision


def retire(storage: Storage, policy: RetentionPolicy) -> Retention:
    """The quick part: hide the checkpoints that are not kept. `sweep` frees the space."""
    decision = _decide(storage, policy)
    for key in decision.delete:
        storage.hide(key.folder, MANIFEST, unless=keep_mark.mark_of(key))
    return decision


def sweep(storage: Storage, decision: Retention) -> None:
    """The rest: delete hidden checkpoints, and the remains of unfinished saves in older folders."""
    storage.sweep()
    for key in sorted(decision.keep)[:-1]:  # a save may be writing to the newest folder
        _tidy(storage, key)


def delete(storage: Storage, key: CheckpointKey) -> None:
    """Whether it is marked or not."""
    keep_mark.remove(storage, key)
    storage.hide(key.folder, MANIFEST)
    storage.sweep()


def _decide(storage: Storage, policy: RetentionPolicy) -> Retention:
    found = [each for each in find(storage) if not each.is_unreadable]
    return decide_retention(found, policy, keep_mark.marked(storage.list()))


def files_of(storage: Storage, key: CheckpointKey) -> dict[str, int]:
    """Their sizes, by their names in the checkpoint's folder."""
    found: dict[str, int] = {}
    folders = [""]
    while folders:
        folder = folders.pop()
        for name, size in storage.list(f"{key.folder}/{folder}".rstrip("/")).items():
            if size is None:
                folders.append(f"{folder}{name}/")
            else:
                found[f"{folder}{name}"] = size
    return dict(sorted(found.items()))


def _tidy(storage: Storage, key: CheckpointKey) -> None:
    there = storage.list(key.folder)
    found = look(storage, key)  # after the list: it includes a save that has just ended
    manifest = found.manifest
    if manifest is None or not found.is_whole:
        return
    ours = {MANIFEST} | {file.name.split("/")[0] for file in manifest.files}
    for name in there:
        if name not in ours:
            storage.delete(f"{key.folder}/{name}")


def wrong_size(storage: Storage, manifest: Manifest) -> str:
    """The first of its files that is missing or has another size; empty if all are there."""
    folders = {file.name.rpartition("/")[0] for file in manifest.files}
    sizes: dict[str, int | None] = {}
    for folder in folders:
        path = f"{manifest.key.folder}/{folder}" if folder else manifest.key.folder
        there = storage.list(path)
        sizes |= {f"{folder}/{name}" if folder else name: size for name, size in there.items()}
    for file in manifest.files:
        where = f"{storage.uri}/{manifest.key.folder}/{file.name}"
        if file.name not in sizes:
            return f"{where} is missing"
        if sizes[file.name] != file.size_bytes:
            return f"{where} has {sizes[file.name]:,} bytes, expected {file.size_bytes:,}"
    return ""
