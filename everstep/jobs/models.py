"""What people do with models, checkpoints at the coordinator, and templates. For the command line and for the Python
client.

Functions take a link to the coordinator and return values. Prints nothing, and knows of no terminal."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from everstep import wire
from everstep.errors import UsageError
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.jobs.experiments import paged
from everstep.wire.models import MOST_MODELS
from everstep.wire.templates import MOST_TEMPLATES

NEWEST = -1


def create_model(
    link: CoordinatorLink,
    name: str,
    *,
    description: str = "",
    notes: str = "",
    labels: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
) -> wire.ModelView:
    new = wire.NewModel(
        request=uuid.uuid4().hex,
        name=name,
        description=description,
        notes=notes,
        labels=list(labels),
        metadata=dict(metadata or {}),
    )
    return link(lambda coordinator: coordinator.create_model(new))


def all_models(
    link: CoordinatorLink,
    *,
    search: str = "",
    sort: str = "model",
    is_descending: bool = False,
    is_archived: bool = False,
) -> list[wire.ModelView]:
    def page(start: int) -> tuple[list[wire.ModelView], int]:
        found = link(
            lambda it: it.models(
                start, MOST_MODELS, search, sort=sort, is_descending=is_descending, is_archived=is_archived
            )
        )
        return found.models, found.num_found

    return list(paged(page))


def all_versions(link: CoordinatorLink, model: str, *, is_descending: bool = False) -> list[wire.ModelVersionView]:
    def page(start: int) -> tuple[list[wire.ModelVersionView], int]:
        found = link(lambda it: it.model_versions(model, start=start, limit=MOST_MODELS, is_descending=is_descending))
        return found.versions, found.num_found

    return list(paged(page))


def find_version(link: CoordinatorLink, model: str, number: int = NEWEST) -> wire.ModelVersionView | None:
    """None: the model has no version yet."""
    if number != NEWEST:
        return link(lambda coordinator: coordinator.model_version(model, number))
    newest = link(lambda coordinator: coordinator.model_versions(model, limit=1, is_descending=True))
    return newest.versions[0] if newest.versions else None


def change_model(link: CoordinatorLink, model: str, message: wire.ModelChange) -> wire.ModelView:
    return link(lambda coordinator: coordinator.change_model(model, message))


def relabel_model(link: CoordinatorLink, model: str, label: str, *, is_wanted: bool) -> wire.ModelView:
    """Add a label, or remove it."""
    there = link(lambda coordinator: coordinator.model(model)).labels
    labels = [each for each in there if each != label] + ([label] if is_wanted else [])
    return change_model(link, model, wire.ModelChange(labels=labels))


def register(link: CoordinatorLink, model: str, checkpoint: str, **given: Any) -> wire.ModelVersionView:
    """`given`: fields of the new version."""
    new = wire.NewVersion(checkpoint=checkpoint, **given)
    return link(lambda coordinator: coordinator.register_version(model, new))


# --- checkpoints ----------------------------------------------------------------------------------


def change_checkpoint(
    link: CoordinatorLink, checkpoint: str, added: Mapping[str, Any], removed: Sequence[str] = ()
) -> wire.SavedCheckpoint:
    message = wire.CheckpointChange(set_metadata=dict(added), remove_metadata=list(removed))
    return link(lambda coordinator: coordinator.change_checkpoint(checkpoint, message))


def remove_files(link: CoordinatorLink, checkpoint: str, globs: Sequence[str]) -> wire.SavedCheckpoint:
    if not globs:
        hint = 'such as "**/optimizer*"; everstep checkpoint delete removes all of it'
        raise UsageError("no pattern says which files to remove", hint=hint, code="globs-missing")
    message = wire.CheckpointRemoval(globs=list(globs))
    return link(lambda coordinator: coordinator.remove_files(checkpoint, message))


def delete_checkpoint(link: CoordinatorLink, checkpoint: str) -> wire.SavedCheckpoint:
    return remove_files(link, checkpoint, ["**"])


# --- templates ------------------------------------------------------------------------------------


def template_text(link: CoordinatorLink, name: str) -> str:
    return link(lambda coordinator: coordinator.template(name)).written


def set_template(link: CoordinatorLink, name: str, text: str, *, is_new: bool) -> wire.TemplateView:
    """Create or replace it; `is_new`: only create."""
    from everstep.job_file.templates import read_template  # late: it takes a moment to import

    message = wire.TemplateText(config=read_template(text, name=name), written=text, is_new=is_new)
    return link(lambda coordinator: coordinator.set_template(name, message))


def all_templates(link: CoordinatorLink) -> list[wire.TemplateView]:
    def page(start: int) -> tuple[list[wire.TemplateView], int]:
        found = link(lambda it: it.templates(start, MOST_TEMPLATES))
        return found.templates, found.num_found

    return list(paged(page))
