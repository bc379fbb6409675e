"""`everstep model create, list, describe, archive, unarchive, label, metadata, set, delete`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import click

from everstep import wire
from everstep.cli.experiment_link import ExperimentsOptions, link_of
from everstep.cli.experiment_show import print_rows, shown_time
from everstep.cli.facts_text import parse_metadata, print_facts, shown_metadata
from everstep.cli.model_version import VERSIONS, VERSIONS_GIVE_WAY, version_rows
from everstep.cli.options import DeclaredCommand, command, say
from everstep.cli.printable import printable
from everstep.cli.tables import print_json
from everstep.errors import UsageError
from everstep.jobs import models
from everstep.settings import setting

_MODELS = ("id", "name", "versions", "description", "labels", "owner", "changed")
_GIVE_WAY = ("owner", "changed", "labels")
_SORTS = {
    "id": "model",
    "name": "name",
    "description": "description",
    "creation-time": "created_at",
    "last-updated-time": "changed_at",
    "num-versions": "num_versions",
}
_ORDERS = ("asc", "desc")


@dataclass(frozen=True, kw_only=True)
class ModelsOptions(ExperimentsOptions):
    json: bool = setting(False, "Print JSON instead of text")


@dataclass(frozen=True, kw_only=True)
class ModelOptions(ModelsOptions):
    model: str = setting(..., "Name or ID of the model", is_argument=True, metavar="MODEL")


@dataclass(frozen=True, kw_only=True)
class CreateModelOptions(ModelsOptions):
    name: str = setting(..., "Its name", is_argument=True, metavar="NAME")
    description: str = setting("", "What it is", metavar="TEXT")
    label: tuple[str, ...] = setting((), "A label; repeatable", metavar="LABEL")
    metadata: tuple[str, ...] = setting((), "A value to keep with it; repeatable", metavar="KEY=VALUE")


@dataclass(frozen=True, kw_only=True)
class ListModelsOptions(ModelsOptions):
    sort_by: str = setting("id", f"One of {', '.join(_SORTS)}", metavar="FIELD")
    order_by: str = setting("asc", "asc or desc", metavar="ORDER")
    search: str = setting("", "Only models with this text in their name, description or labels", metavar="TEXT")
    all: bool = setting(False, "Also show archived models", also=("-a",))
    csv: bool = setting(False, "Print CSV instead of a table")


@dataclass(frozen=True, kw_only=True)
class ModelTextOptions(ModelOptions):
    text: str = setting(..., "The new text", is_argument=True, metavar="TEXT")


@dataclass(frozen=True, kw_only=True)
class ModelLabelOptions(ModelOptions):
    label: str = setting(..., "The label", is_argument=True, metavar="LABEL")


@dataclass(frozen=True, kw_only=True)
class AddMetadataOptions(ModelOptions):
    values: tuple[str, ...] = setting(..., "Values to add or replace", is_argument=True, metavar="KEY=VALUE...")


@dataclass(frozen=True, kw_only=True)
class RemoveMetadataOptions(ModelOptions):
    keys: tuple[str, ...] = setting(..., "Names to remove", is_argument=True, metavar="KEY...")


@dataclass(frozen=True, kw_only=True)
class DeleteModelOptions(ModelOptions):
    yes: bool = setting(False, "Do not ask for confirmation", also=("-y",))


@command(CreateModelOptions, name="create", no_args_is_help=True)
def create(options: CreateModelOptions) -> None:
    """Create a model, to register checkpoints as its versions."""
    with link_of(options) as link:
        view = models.create_model(
            link,
            options.name,
            description=options.description,
            labels=options.label,
            metadata=parse_metadata(options.metadata),
        )
    _print(view, options, f"created model {view.model}: {view.name}")


@command(ListModelsOptions, name="list")
def list_models(options: ListModelsOptions) -> None:
    """List models."""
    sort, order = options.sort_by.lower().replace("_", "-"), options.order_by.lower()
    if sort not in _SORTS or order not in _ORDERS:
        problem = f"--sort-by {options.sort_by} --order-by {options.order_by}"
        hint = f"sort by {', '.join(_SORTS)}; order by {' or '.join(_ORDERS)}"
        raise UsageError(problem, hint=hint, code="sort-unknown")
    with link_of(options) as link:
        found = models.all_models(
            link,
            search=options.search,
            sort=_SORTS[sort],
            is_descending=order == "desc",
            is_archived=options.all,
        )
    if options.json:
        print_json([asdict(each) for each in found])
        return
    print_rows(_MODELS, [_row(each) for each in found], _GIVE_WAY, is_csv=options.csv, nothing="no models")


def _row(view: wire.ModelView) -> tuple[object, ...]:
    name = f"{view.name} (archived)" if view.is_archived else view.name
    texts = (view.description, ", ".join(view.labels), view.owner, shown_time(view.changed_at))
    return view.model, name, view.num_versions, *texts


@command(ModelOptions, name="describe", no_args_is_help=True)
def describe(options: ModelOptions) -> None:
    """Show a model and its versions, newest first."""
    with link_of(options) as link:
        view = link(lambda coordinator: coordinator.model(options.model))
        versions = models.all_versions(link, str(view.model), is_descending=True)
    if options.json:
        print_json({**asdict(view), "versions": [asdict(each) for each in versions]})
        return
    print_facts(
        [
            ("model", f"{view.model} {view.name}{' (archived)' * view.is_archived}"),
            ("description", view.description),
            ("labels", ", ".join(view.labels)),
            ("owner", view.owner),
            ("created", shown_time(view.created_at)),
            ("changed", shown_time(view.changed_at)),
            ("metadata", shown_metadata(view.metadata)),
            ("notes", view.notes),
        ]
    )
    print_rows(VERSIONS, version_rows(versions), VERSIONS_GIVE_WAY, nothing="no versions yet")


def _print(view: wire.ModelView, options: ModelsOptions, text: str) -> None:
    if options.json:
        print_json(asdict(view))
    else:
        click.echo(printable(text))


def _changing(name: str, message: wire.ModelChange, done: str, text: str) -> DeclaredCommand:
    def call(options: ModelOptions) -> None:
        with link_of(options) as link:
            view = models.change_model(link, options.model, message)
        _print(view, options, f"model {view.name} {done}")

    call.__doc__ = text
    return command(ModelOptions, name=name, no_args_is_help=True)(call)


@command(DeleteModelOptions, name="delete", no_args_is_help=True)
def delete(options: DeleteModelOptions) -> int:
    """Delete a model with its versions. Their checkpoints are then kept only as long as their experiments say."""
    with link_of(options) as link:
        view = link(lambda coordinator: coordinator.model(options.model))
        question = printable(
            f"Delete model {view.name} with {view.num_versions} versions? A checkpoint that its experiment does not "
            "keep is then deleted, too (to hide the model instead, use `everstep model archive`)"
        )
        if not options.yes and not click.confirm(question):
            return 1
        link(lambda coordinator: coordinator.delete_model(str(view.model)))
    _print(view, options, f"model {view.name} deleted")
    return 0


@click.group(no_args_is_help=True)
def label() -> None:
    """Add or remove a label."""


@click.group(no_args_is_help=True)
def metadata() -> None:
    """Add or remove metadata."""


@click.group(name="set", no_args_is_help=True)
def set_() -> None:
    """Set a model's name, description or notes."""


def _labeling(name: str, *, is_wanted: bool, text: str) -> DeclaredCommand:
    def call(options: ModelLabelOptions) -> None:
        with link_of(options) as link:
            view = models.relabel_model(link, options.model, options.label, is_wanted=is_wanted)
        _print(view, options, f"model {view.name}: {', '.join(view.labels) or 'no labels'}")

    call.__doc__ = text
    return command(ModelLabelOptions, name=name, no_args_is_help=True)(call)


def _writing(name: str, change: Callable[[str], wire.ModelChange]) -> DeclaredCommand:
    def call(options: ModelTextOptions) -> None:
        with link_of(options) as link:
            view = models.change_model(link, options.model, change(options.text))
        _print(view, options, f"model {view.name}: {name} set")

    call.__doc__ = f"Set the {name} of a model."
    return command(ModelTextOptions, name=name, no_args_is_help=True)(call)


@command(AddMetadataOptions, name="add", no_args_is_help=True)
def add_metadata(options: AddMetadataOptions) -> None:
    """Add values to a model's metadata, or replace them."""
    _write_metadata(options, wire.ModelChange(set_metadata=parse_metadata(options.values)))


@command(RemoveMetadataOptions, name="remove", no_args_is_help=True)
def remove_metadata(options: RemoveMetadataOptions) -> None:
    """Remove values from a model's metadata."""
    _write_metadata(options, wire.ModelChange(remove_metadata=list(options.keys)))


def _write_metadata(options: ModelOptions, message: wire.ModelChange) -> None:
    with link_of(options) as link:
        view = models.change_model(link, options.model, message)
    if options.json:
        print_json(asdict(view))
    else:
        say(f"model {view.name}: {len(view.metadata)} values")
        print_facts([("metadata", shown_metadata(view.metadata))])


label.add_command(_labeling("add", is_wanted=True, text="Add a label to a model."))
label.add_command(_labeling("remove", is_wanted=False, text="Remove a label from a model."))
metadata.add_command(add_metadata)
metadata.add_command(remove_metadata)
set_.add_command(_writing("name", lambda text: wire.ModelChange(name=text)))
set_.add_command(_writing("description", lambda text: wire.ModelChange(description=text)))
set_.add_command(_writing("notes", lambda text: wire.ModelChange(notes=text)))

COMMANDS = {
    "create": create,
    "list": list_models,
    "describe": describe,
    "archive": _changing("archive", wire.ModelChange(is_archived=True), "archived", "Hide a model from the list."),
    "unarchive": _changing(
        "unarchive", wire.ModelChange(is_archived=False), "unarchived", "Show an archived model in the list again."
    ),
    "label": label,
    "metadata": metadata,
    "set": set_,
    "delete": delete,
}
