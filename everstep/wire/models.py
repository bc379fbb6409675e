"""Messages about models: named lists of checkpoints, whose versions are numbered from 1.

A checkpoint that is registered as a version is kept for as long as it is one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from everstep.wire.bounds import MAX_NAME, Bounds, Name
from everstep.wire.encoding import to_json
from everstep.wire.metrics import MAX_DEPTH, value_problems
from everstep.wire.trials import SavedCheckpoint

MOST_MODELS = 1000  # in one answer
MAX_METADATA_BYTES = 1 << 16  # as JSON
MODEL_SORTS = ("model", "name", "description", "created_at", "changed_at", "num_versions")

Label = Annotated[str, Bounds(min_length=1, max_length=MAX_NAME)]
Labels = Annotated[list[Label], Bounds(max_length=MAX_NAME)]
_Names = Annotated[list[Name], Bounds(max_length=MAX_NAME)]
_NAMELESS = (".", "..")  # in a path, these mean other folders


def name_problem(name: str) -> str:
    """Why a model cannot have this name; "": it can. A number would be taken for an ID, and a path for several."""
    if not name or name != name.strip() or not name.isprintable():
        return "a model's name has visible characters, without spaces around them"
    if name.isdecimal() or "/" in name or name in _NAMELESS:
        return f"a model's name cannot be a number or contain a slash: {name!r}"
    return ""


def metadata_problems(metadata: dict[str, Any]) -> Iterator[str]:
    yield from value_problems(metadata, MAX_DEPTH)
    if (num_bytes := len(to_json(metadata))) > MAX_METADATA_BYTES:
        yield f"the metadata has {num_bytes} bytes, more than {MAX_METADATA_BYTES}"


@dataclass(frozen=True, kw_only=True, slots=True)
class NewModel:
    """A request that is repeated returns the model it created."""

    request: Annotated[str, Bounds(min_length=1, max_length=MAX_NAME)]
    name: Name
    description: str = ""
    notes: str = ""
    labels: Labels = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)

    def problems(self) -> Iterator[str]:
        if problem := name_problem(self.name):
            yield problem
        yield from metadata_problems(self.metadata)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelView:
    model: int  # its ID
    name: str
    description: str
    notes: str
    labels: list[str]
    metadata: dict[str, Any]
    owner: str  # the person who created it; "": a token without a name
    is_archived: bool
    num_versions: int
    last_version: int  # the number of the newest one; 0: it never had any
    created_at: float
    changed_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelList:
    models: list[ModelView]
    num_found: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelLabels:
    labels: list[str]  # of all models, the most frequent first


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelChange:
    """None: leave it as it is."""

    name: Name | None = None
    description: str | None = None
    notes: str | None = None
    labels: Labels | None = None
    set_metadata: dict[str, Any] = field(default_factory=dict)  # added, or replaced by name
    remove_metadata: _Names = field(default_factory=list)
    is_archived: bool | None = None

    def problems(self) -> Iterator[str]:
        if self.name is not None and (problem := name_problem(self.name)):
            yield problem
        yield from metadata_problems(self.set_metadata)


@dataclass(frozen=True, kw_only=True, slots=True)
class NewVersion:
    """Register a checkpoint. One that is a version of this model already stays that version, unchanged."""

    checkpoint: Annotated[str, Bounds(min_length=1, max_length=MAX_NAME)]  # its UUID
    name: Name = ""
    comment: str = ""
    notes: str = ""
    labels: Labels = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)

    def problems(self) -> Iterator[str]:
        yield from metadata_problems(self.metadata)


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionChange:
    """None: leave it as it is."""

    name: Name | None = None
    comment: str | None = None
    notes: str | None = None
    labels: Labels | None = None
    set_metadata: dict[str, Any] = field(default_factory=dict)
    remove_metadata: _Names = field(default_factory=list)

    def problems(self) -> Iterator[str]:
        yield from metadata_problems(self.set_metadata)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelVersionView:
    model: int
    model_name: str
    version: int  # from 1; no number is used again
    checkpoint: SavedCheckpoint
    name: str
    comment: str
    notes: str
    labels: list[str]
    metadata: dict[str, Any]
    owner: str  # the person who registered it
    created_at: float
    changed_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelVersionList:
    versions: list[ModelVersionView]
    num_found: int


# --- checkpoints ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointChange:
    set_metadata: dict[str, Any] = field(default_factory=dict)  # added, or replaced by name
    remove_metadata: _Names = field(default_factory=list)

    def problems(self) -> Iterator[str]:
        yield from metadata_problems(self.set_metadata)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointRemoval:
    """Remove the files that match one of these patterns: `*` is any part of a name, `**` any folders. A checkpoint of
    which no file is left is deleted."""

    globs: Annotated[list[Label], Bounds(min_length=1, max_length=MAX_NAME)]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointFiles:
    files: dict[str, int]  # bytes, by name
