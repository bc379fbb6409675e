"""`everstep model list-versions, register-version, describe-version, delete-version`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

import click

from everstep import wire
from everstep.cli.experiment_link import ExperimentsOptions, link_of
from everstep.cli.experiment_show import print_rows, shown_time
from everstep.cli.experiment_table import shown_value
from everstep.cli.facts_text import parse_metadata, print_facts, shown_metadata
from everstep.cli.options import command
from everstep.cli.printable import printable
from everstep.cli.tables import print_json
from everstep.errors import UsageError
from everstep.jobs import models
from everstep.settings import setting

VERSIONS = ("version", "name", "checkpoint", "state", "experiment", "batches", "metrics", "registered", "comment")
VERSIONS_GIVE_WAY = ("comment", "registered", "batches", "metrics")


@dataclass(frozen=True, kw_only=True)
class VersionsOptions(ExperimentsOptions):
    model: str = setting(..., "Name or ID of the model", is_argument=True, metavar="MODEL")
    json: bool = setting(False, "Print JSON instead of text")


@dataclass(frozen=True, kw_only=True)
class ListVersionsOptions(VersionsOptions):
    csv: bool = setting(False, "Print CSV instead of a table")


@dataclass(frozen=True, kw_only=True)
class RegisterOptions(VersionsOptions):
    checkpoint: str = setting(..., "UUID of the checkpoint", is_argument=True, metavar="UUID")
    name: str = setting("", "A name for the version", metavar="TEXT")
    comment: str = setting("", "Why it is registered", metavar="TEXT")
    label: tuple[str, ...] = setting((), "A label; repeatable", metavar="LABEL")
    metadata: tuple[str, ...] = setting((), "A value to keep with it; repeatable", metavar="KEY=VALUE")


@dataclass(frozen=True, kw_only=True)
class DescribeVersionOptions(VersionsOptions):
    version: int | None = setting(
        None, "Its number; default: the newest", is_argument=True, metavar="[VERSION]", least=1
    )


@dataclass(frozen=True, kw_only=True)
class DeleteVersionOptions(VersionsOptions):
    version: int = setting(..., "Its number", is_argument=True, metavar="VERSION", least=1)
    yes: bool = setting(False, "Do not ask for confirmation", also=("-y",))


def version_rows(found: Iterable[wire.ModelVersionView]) -> list[tuple[object, ...]]:
    return [_row(each) for each in found]


def _row(each: wire.ModelVersionView) -> tuple[object, ...]:
    saved = each.checkpoint
    metrics = ", ".join(f"{name} {shown_value(value)}" for name, value in saved.metrics.items())
    where = (saved.uuid, saved.state, saved.experiment or "", saved.step)
    return each.version, each.name, *where, metrics, shown_time(each.created_at), each.comment


@command(ListVersionsOptions, name="list-versions", no_args_is_help=True)
def list_versions(options: ListVersionsOptions) -> None:
    """List the versions of a model, newest first, with their checkpoints."""
    with link_of(options) as link:
        found = models.all_versions(link, options.model, is_descending=True)
    if options.json:
        print_json([asdict(each) for each in found])
        return
    print_rows(VERSIONS, version_rows(found), VERSIONS_GIVE_WAY, is_csv=options.csv, nothing="no versions yet")


@command(RegisterOptions, name="register-version", no_args_is_help=True)
def register_version(options: RegisterOptions) -> None:
    """Register a checkpoint as the next version of a model. From then on it is kept, whatever happens to its
    experiment."""
    with link_of(options) as link:
        view = models.register(
            link,
            options.model,
            options.checkpoint,
            name=options.name,
            comment=options.comment,
            labels=list(options.label),
            metadata=parse_metadata(options.metadata),
        )
    if options.json:
        print_json(asdict(view))
    else:
        click.echo(printable(f"checkpoint {view.checkpoint.uuid} is version {view.version} of model {view.model_name}"))


@command(DescribeVersionOptions, name="describe-version", no_args_is_help=True)
def describe_version(options: DescribeVersionOptions) -> None:
    """Show a version of a model with its checkpoint."""
    with link_of(options) as link:
        view = models.find_version(link, options.model, options.version or models.NEWEST)
    if view is None:
        hint = f"everstep model register-version {options.model} UUID"
        raise UsageError(f"model {options.model} has no version yet", hint=hint, code="model-without-version")
    if options.json:
        print_json(asdict(view))
        return
    saved = view.checkpoint
    print_facts(
        [
            ("version", f"{view.version} of model {view.model_name}"),
            ("name", view.name),
            ("comment", view.comment),
            ("labels", ", ".join(view.labels)),
            ("registered", f"{shown_time(view.created_at)}{f' by {view.owner}' if view.owner else ''}"),
            ("checkpoint", f"{saved.uuid} ({saved.state})"),
            ("saved in", saved.uri),
            ("trained by", saved.job),
            ("batches", saved.step),
            ("metrics", "".join(f"\n  {name}: {shown_value(value)}" for name, value in saved.metrics.items())),
            ("metadata", shown_metadata(view.metadata)),
            ("notes", view.notes),
        ]
    )


@command(DeleteVersionOptions, name="delete-version", no_args_is_help=True)
def delete_version(options: DeleteVersionOptions) -> int:
    """Delete a version of a model. Its checkpoint is then kept only as long as its experiment says."""
    with link_of(options) as link:
        view = link(lambda coordinator: coordinator.model_version(options.model, options.version))
        question = printable(
            f"Delete version {view.version} of model {view.model_name}? If its experiment does not keep checkpoint "
            f"{view.checkpoint.uuid}, the checkpoint is deleted, too"
        )
        if not options.yes and not click.confirm(question):
            return 1
        link(lambda coordinator: coordinator.delete_version(str(view.model), view.version))
    if options.json:
        print_json(asdict(view))
    else:
        click.echo(printable(f"version {view.version} of model {view.model_name} deleted"))
    return 0


COMMANDS = {
    "list-versions": list_versions,
    "register-version": register_version,
    "describe-version": describe_version,
    "delete-version": delete_version,
}
