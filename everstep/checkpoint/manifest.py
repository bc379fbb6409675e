"""A checkpoint's manifest: its content, time and writers, and the checksum of every block of every file.

It is written last: a checkpoint with a manifest is whole. `check` is the SHA-256 of the rest, so a changed manifest is
noticed too. Pure; knows nothing of storage."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

from everstep.checkpoint import strict_json
from everstep.checkpoint.strict_json import broken, natural, parse_json, shown
from everstep.errors import CheckpointBroken, UsageError

FORMAT = 1
BLOCK_BYTES = 16 << 20
MANIFEST = "manifest.json"
MODES = ("min", "max")

_FOLDER = re.compile(r"(\d{6,12})-(\d{12,20})")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
_MOST_BYTES = 1 << 48


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class CheckpointKey:
    """Which checkpoint: later generations come after earlier ones, whatever their steps."""

    generation: int
    step: int

    @property
    def folder(self) -> str:
        return f"{self.generation:06d}-{self.step:012d}"


def parse_folder(name: str) -> CheckpointKey | None:
    """The key of a folder that is named as ours are; None for others."""
    match = _FOLDER.fullmatch(name)
    if match is None:
        return None
    key = CheckpointKey(generation=int(match[1]), step=int(match[2]))
    return key if key.folder == name else None


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRecord:
    """A file as it was written: `name` is relative to the checkpoint's folder, one CRC-32 per block."""

    name: str
    size_bytes: int
    block_bytes: int = BLOCK_BYTES
    crc32: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RetentionPolicy:
    """Which checkpoints are kept. `keep_latest=None`: all."""

    keep_latest: int | None = 2
    keep_best: int = 1
    metric: str | None = None
    mode: str = "min"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UsageError(f"mode={self.mode!r}", hint='mode is "min" or "max"', code="mode-unknown")
        if (self.keep_latest is not None and self.keep_latest < 1) or self.keep_best < 0:
            raise UsageError(
                f"keep_latest={self.keep_latest}, keep_best={self.keep_best}",
                hint="keep_latest is at least 1 (None: keep all), keep_best at least 0",
                code="keep-too-few",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """`save` is one call of save on all workers: parts of different saves are never put together."""

    key: CheckpointKey
    save: str
    time: float  # Unix
    world_size: int = 1
    world_generation: int = 0  # the job's own number; key.generation orders checkpoints of several jobs
    job: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    hparams: Any = None
    data: Any = None  # position in the data, if the state has it
    versions: dict[str, str] = field(default_factory=dict)
    code: dict[str, Any] | None = None
    policy: RetentionPolicy = field(default_factory=RetentionPolicy)
    state: str = ""  # the file of the skeleton
    files: tuple[FileRecord, ...] = ()

    @property
    def step(self) -> int:
        return self.key.step

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class NewerFormat(CheckpointBroken):
    """It may be whole: a newer version can read it."""


def to_record(manifest: Manifest) -> dict[str, Any]:
    """As JSON; floats that JSON lacks become text."""
    record = dataclasses.asdict(manifest)
    record |= record.pop("key")
    record["metrics"] = {name: _plain_float(value) for name, value in manifest.metrics.items()}
    record["files"] = [
        dataclasses.asdict(file) | {"crc32": [f"{crc:08x}" for crc in file.crc32]} for file in manifest.files
    ]
    return {"format": FORMAT, "size_bytes": manifest.size_bytes, **record}


def to_json(manifest: Manifest) -> bytes:
    record = to_record(manifest)
    return json.dumps(record | {"check": _check(record)}, indent=1, allow_nan=False).encode() + b"\n"


def parse_manifest(text: bytes, where: str) -> Manifest:
    """The manifest, or CheckpointBroken with the reason."""
    record = parse_json(text, where)
    version = natural(record, "format", where)
    if version > FORMAT:
        raise NewerFormat(
            f"{where}: format {version} is newer than {FORMAT}, the newest that this version reads",
            hint="load it with the version of Everstep that saved it; it is not deleted",
            code="checkpoint-format-newer",
        )
    check = strict_json.field(record, "check", str, where)
    body = {name: value for name, value in record.items() if name != "check"}
    if (own := _check(body)) != check:
        broken(where, f"its own checksum is {check[:16]}, its content gives {own[:16]}")
    return from_record(body, where)


def from_record(record: Any, where: str) -> Manifest:
    optional = (dict, type(None))
    metrics = strict_json.field(record, "metrics", dict, where)
    versions = strict_json.field(record, "versions", dict, where)
    files = [parse_file(each, where) for each in strict_json.field(record, "files", list, where)]
    state = strict_json.field(record, "state", str, where)
    if files and state not in {file.name for file in files}:
        broken(where, f"state {shown(state)} is not one of its files")
    return Manifest(
        key=CheckpointKey(generation=natural(record, "generation", where), step=natural(record, "step", where)),
        save=strict_json.field(record, "save", str, where),
        time=float(strict_json.field(record, "time", (int, float), where)),
        world_size=natural(record, "world_size", where),
        world_generation=natural(record, "world_generation", where),
        job=strict_json.field(record, "job", str, where),
        metrics={name: _parse_float(value, name, where) for name, value in metrics.items()},
        hparams=record.get("hparams"),
        data=record.get("data"),
        versions={name: str(value) for name, value in versions.items()},
        code=strict_json.field(record, "code", optional, where),
        policy=parse_policy(strict_json.field(record, "policy", dict, where), where),
        state=state,
        files=tuple(files),
    )


def parse_file(record: Any, where: str) -> FileRecord:
    name = strict_json.field(record, "name", str, where)
    if not _PLAIN_NAME.fullmatch(name):
        broken(where, f"{shown(name)} is not the name of a checkpoint's file")
    size, block = natural(record, "size_bytes", where), natural(record, "block_bytes", where)
    sums = strict_json.field(record, "crc32", list, where)
    if not 0 < block <= _MOST_BYTES or size > _MOST_BYTES or len(sums) != -(-size // block):
        broken(where, f"{name}: {len(sums)} checksums for {size:,} bytes in blocks of {block:,}")
    if not all(isinstance(each, str) and re.fullmatch("[0-9a-f]{8}", each) for each in sums):
        broken(where, f"{name}: a checksum is not 8 hexadecimal digits")
    return FileRecord(name=name, size_bytes=size, block_bytes=block, crc32=tuple(int(each, 16) for each in sums))


def parse_policy(record: Any, where: str) -> RetentionPolicy:
    try:
        return RetentionPolicy(
            keep_latest=strict_json.field(record, "keep_latest", (int, type(None)), where),
            keep_best=natural(record, "keep_best", where),
            metric=strict_json.field(record, "metric", (str, type(None)), where),
            mode=strict_json.field(record, "mode", str, where),
        )
    except UsageError as error:
        broken(where, error.message)


def _check(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _plain_float(value: float) -> float | str:
    return value if value == value and abs(value) != float("inf") else repr(value)


def _parse_float(value: Any, name: str, where: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number and value not in ("nan", "inf", "-inf"):
        broken(where, f"metric {name!r} must be a number, found {shown(value)}")
    return float(value)
