"""A model and its versions as stored: rows as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from everstep import wire
from everstep.errors import Refused
from everstep.wire.models import MAX_METADATA_BYTES


@dataclass(frozen=True, kw_only=True, slots=True)
class RegisteredModel:
    number: int
    request: str
    name: str
    description: str
    notes: str
    labels: tuple[str, ...]
    metadata: Mapping[str, Any]
    owner: str  # a person's name; "": of a token without one
    created_at: float
    changed_at: float
    is_archived: bool = False
    is_deleted: bool = False
    last_version: int = 0  # the highest number that was ever used


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelVersion:
    model: int
    number: int
    checkpoint: str  # its UUID
    name: str
    comment: str
    notes: str
    labels: tuple[str, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    owner: str
    created_at: float
    changed_at: float


def changed_model(model: RegisteredModel, message: wire.ModelChange, now: float) -> RegisteredModel:
    texts = {name: getattr(message, name) for name in ("name", "description", "notes", "is_archived")}
    given = {name: value for name, value in texts.items() if value is not None}
    return replace(
        model,
        **given,
        labels=model.labels if message.labels is None else distinct(message.labels),
        metadata=changed_metadata(model.metadata, message.set_metadata, message.remove_metadata),
        changed_at=now,
    )


def changed_version(version: ModelVersion, message: wire.VersionChange, now: float) -> ModelVersion:
    texts = {name: getattr(message, name) for name in ("name", "comment", "notes")}
    given = {name: value for name, value in texts.items() if value is not None}
    return replace(
        version,
        **given,
        labels=version.labels if message.labels is None else distinct(message.labels),
        metadata=changed_metadata(version.metadata, message.set_metadata, message.remove_metadata),
        changed_at=now,
    )


def changed_metadata(before: Mapping[str, Any], added: Mapping[str, Any], removed: list[str]) -> dict[str, Any]:
    after = {name: value for name, value in {**before, **added}.items() if name not in removed}
    if (num_bytes := len(wire.to_json(after))) > MAX_METADATA_BYTES:
        text = f"with this, the metadata would have {num_bytes} bytes, more than {MAX_METADATA_BYTES}"
        raise Refused(text, status=422, code="metadata-too-large")
    return after


def distinct(labels: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(labels))


def registered_text(registered: Mapping[str, list[wire.RegisteredAs]], most: int = 8) -> str:
    """mnist 1, mnist 2 and 5 others."""
    names = [f"{each.name} {each.version}" for found in registered.values() for each in found]
    more = f" and {len(names) - most} others" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def kept_text(registered: Mapping[str, list[wire.RegisteredAs]]) -> str:
    """What stays of an experiment that is deleted."""
    if not registered:
        return ""
    stay = "1 checkpoint stays" if len(registered) == 1 else f"{len(registered)} checkpoints stay"
    return f"; {stay}, registered as {registered_text(registered)}"
