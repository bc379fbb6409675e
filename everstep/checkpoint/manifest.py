"""A checkpoint's manifest: its content, time and writers, and the checksum of every block of every file.

It is written last: a checkpoint with a manifest is whole. `check` is the SHA-256 of the rest, so a changed manifest is
noticed too. Pure; knows nothing of storage."""

from __future__ import annotations

import hashlib
import json
import math
import re
import zlib
from dataclasses import asdict, dataclass, field
from typing import Any

from everstep.checkpoint.strict_json import broken, format_of, parse, parse_json, shown
from everstep.errors import CheckpointBroken, UsageError

FORMAT = 1
BLOCK_BYTES = 16 << 20
MANIFEST = "manifest.json"
MODES = ("min", "max")

_FOLDER = re.compile(r"(\d{6,12})-(\d{12,20})")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
_CHECKSUM = re.compile("[0-9a-f]{8}")
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
    """A file as it was written: `name` is relative to the checkpoint's folder, one CRC-32 per block, in hexadecimal."""

    name: str
    size_bytes: int
    block_bytes: int = BLOCK_BYTES
    crc32: tuple[str, ...]

    def __post_init__(self) -> None:
        """Records are read from untrusted files, too."""
        size, block, sums = self.size_bytes, self.block_bytes, self.crc32
        if not _PLAIN_NAME.fullmatch(self.name):
            raise ValueError(f"{shown(self.name)} is not the name of a checkpoint's file")
        if not 0 < block <= _MOST_BYTES or size > _MOST_BYTES or len(sums) != -(-size // block):
            raise ValueError(f"{self.name}: {len(sums)} checksums for {size:,} bytes in blocks of {block:,}")
        if not all(_CHECKSUM.fullmatch(each) for each in sums):
            raise ValueError(f"{self.name}: a checksum is not 8 hexadecimal digits")


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

    generation: int
    step: int
    save: str
    time: float  # Unix
    world_size: int = 1
    world_generation: int = 0  # the job's own number; `generation` orders checkpoints of several jobs
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
    def key(self) -> CheckpointKey:
        return CheckpointKey(generation=self.generation, step=self.step)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class NewerFormat(CheckpointBroken):
    """It may be whole: a newer version can read it."""


def to_record(manifest: Manifest) -> dict[str, Any]:
    """As JSON; floats that JSON lacks become text."""
    record = asdict(manifest)
    record["metrics"] = {
        name: value if math.isfinite(value) else repr(value) for name, value in manifest.metrics.items()
    }
    return {"format": FORMAT, "size_bytes": manifest.size_bytes, **record}


def to_json(manifest: Manifest) -> bytes:
    record = to_record(manifest)
    return json.dumps(record | {"check": _check(record)}, indent=1, allow_nan=False).encode() + b"\n"


def parse_manifest(text: bytes, where: str) -> Manifest:
    """The manifest, or CheckpointBroken with the reason."""
    record = parse_json(text, where)
    if (version := format_of(record, where)) > FORMAT:
        raise NewerFormat(
            f"{where}: format {version} is newer than {FORMAT}, the newest that this version reads",
            hint="load it with the version of Everstep that saved it; it is not deleted",
            code="checkpoint-format-newer",
        )
    check, body = record.get("check"), {name: value for name, value in record.items() if name != "check"}
    if (own := _check(body)) != check:
        broken(where, f"its own checksum is {shown(check)}, its content gives {own}")
    manifest: Manifest = parse(Manifest, body, where)
    if manifest.files and manifest.state not in {file.name for file in manifest.files}:
        broken(where, f"state {shown(manifest.state)} is not one of its files")
    return manifest


def checksum(data: bytes | memoryview) -> str:
    """The CRC-32 of a block, as records have it."""
    return f"{zlib.crc32(data):08x}"


def _check(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
