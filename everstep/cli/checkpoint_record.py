"""`everstep checkpoint describe, download, delete, rm, metadata`: checkpoints by UUID, at the coordinator."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import click

from everstep import wire
from everstep.cli.experiment_files import download_to
from everstep.cli.experiment_link import ExperimentsOptions, link_of
from everstep.cli.experiment_show import print_rows, shown_time
from everstep.cli.experiment_table import shown_value
from everstep.cli.facts_text import parse_metadata, print_facts, shown_metadata
from everstep.cli.options import command
from everstep.cli.printable import printable
from everstep.cli.tables import print_json
from everstep.errors import Refused
from everstep.jobs import models
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.settings import setting

_FILES = ("file", "bytes")


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions(ExperimentsOptions):
    uuid: str = setting(..., "UUID of the checkpoint", is_argument=True, metavar="UUID")
    json: bool = setting(False, "Print JSON instead of text")


@dataclass(frozen=True, kw_only=True)
class DownloadCheckpointOptions(CheckpointOptions):
    output_dir: Path | None = setting(
        None, "Folder to download to; default: checkpoints/UUID", also=("-o",), metavar="DIR"
    )


@dataclass(frozen=True, kw_only=True)
class DeleteCheckpointsOptions(ExperimentsOptions):
    uuids: tuple[str, ...] = setting(
        ..., "UUIDs of checkpoints, with spaces or commas between them", is_argument=True, metavar="UUID..."
    )
    json: bool = setting(False, "Print JSON instead of text")
    yes: bool = setting(False, "Do not ask for confirmation", also=("-y",))

    @property
    def each(self) -> list[str]:
        return [uuid for text in self.uuids for uuid in text.split(",") if uuid]


@dataclass(frozen=True, kw_only=True)
class RemoveFilesOptions(DeleteCheckpointsOptions):
    glob: tuple[str, ...] = setting(
        (), "Pattern of the files to remove, such as **/optimizer*; repeatable", metavar="PATTERN"
    )


@dataclass(frozen=True, kw_only=True)
class AddValuesOptions(CheckpointOptions):
    values: tuple[str, ...] = setting(..., "Values to add or replace", is_argument=True, metavar="KEY=VALUE...")


@dataclass(frozen=True, kw_only=True)
class RemoveValuesOptions(CheckpointOptions):
    keys: tuple[str, ...] = setting(..., "Names to remove", is_argument=True, metavar="KEY...")


@command(CheckpointOptions, name="describe", no_args_is_help=True)
def describe(options: CheckpointOptions) -> None:
    """Show what the coordinator knows about a checkpoint: where it is, its trial, metrics, metadata and files."""
    with link_of(options) as link:
        view = link(lambda coordinator: coordinator.checkpoint(options.uuid))
        files = _files(link, options.uuid)
    if options.json:
        print_json({**asdict(view), "files": files})
        return
    trial = f"experiment {view.experiment}, trial {view.trial}" if view.experiment else f"job {view.job}"
    print_facts(
        [
            ("checkpoint", view.uuid),
            ("state", view.state),
            ("saved in", view.uri),
            ("saved at", shown_time(view.created_at)),
            ("trained by", trial),
            ("batches", view.step),
            ("registered", ", ".join(f"{each.name} {each.version}" for each in view.registered)),
            ("metrics", "".join(f"\n  {name}: {shown_value(value)}" for name, value in view.metrics.items())),
            ("metadata", shown_metadata(view.metadata)),
        ]
    )
    if files is not None:
        print_rows(_FILES, list(files.items()), nothing="no files")


def _files(link: CoordinatorLink, uuid: str) -> dict[str, int] | None:
    """None: the coordinator cannot reach them."""
    try:
        return link(lambda coordinator: coordinator.checkpoint_files(uuid)).files
    except Refused as refused:
        if refused.code != "checkpoint-out-of-reach":
            raise
        return None


@command(DownloadCheckpointOptions, name="download", no_args_is_help=True)
def download(options: DownloadCheckpointOptions) -> None:
    """Download a checkpoint with its code, from the storage that holds it."""
    folder = options.output_dir or Path("checkpoints") / options.uuid
    path = download_to(options, options.uuid, folder)
    if options.json:
        print_json({"uuid": options.uuid, "path": path})
    else:
        click.echo(path)


@command(DeleteCheckpointsOptions, name="delete", no_args_is_help=True)
def delete(options: DeleteCheckpointsOptions) -> int:
    """Delete checkpoints where they were saved. One that is registered, or that a trial needs, is kept."""
    return _remove(options, ["**"], f"Delete {_named(options.each)}?")


@command(RemoveFilesOptions, name="rm", no_args_is_help=True)
def remove(options: RemoveFilesOptions) -> int:
    """Remove the files of checkpoints that match a pattern. A checkpoint of which no file is left is deleted."""
    told = f"Remove files that match {', '.join(options.glob)} from {_named(options.each)}?"
    return _remove(options, options.glob, told)


def _named(uuids: list[str]) -> str:
    return f"checkpoint {uuids[0]}" if len(uuids) == 1 else f"{len(uuids)} checkpoints"


def _remove(options: DeleteCheckpointsOptions, globs: tuple[str, ...] | list[str], question: str) -> int:
    if not options.yes and not click.confirm(printable(question)):
        return 1
    views: list[wire.SavedCheckpoint] = []
    with link_of(options) as link:
        for uuid in options.each:
            views.append(models.remove_files(link, uuid, globs))
            if not options.json:
                click.echo(f"checkpoint {views[-1].uuid}: {views[-1].state}, {views[-1].num_bytes} bytes left")
    if options.json:
        print_json([asdict(each) for each in views])
    return 0


@click.group(no_args_is_help=True)
def metadata() -> None:
    """Add or remove metadata of a checkpoint."""


@command(AddValuesOptions, name="add", no_args_is_help=True)
def add_metadata(options: AddValuesOptions) -> None:
    """Add values to a checkpoint's metadata, or replace them."""
    with link_of(options) as link:
        _print(models.change_checkpoint(link, options.uuid, parse_metadata(options.values)), options)


@command(RemoveValuesOptions, name="remove", no_args_is_help=True)
def remove_metadata(options: RemoveValuesOptions) -> None:
    """Remove values from a checkpoint's metadata."""
    with link_of(options) as link:
        _print(models.change_checkpoint(link, options.uuid, {}, options.keys), options)


def _print(view: wire.SavedCheckpoint, options: CheckpointOptions) -> None:
    if options.json:
        print_json(asdict(view))
    else:
        print_facts([("checkpoint", view.uuid), ("metadata", shown_metadata(view.metadata) or "none")])


metadata.add_command(add_metadata)
metadata.add_command(remove_metadata)

COMMANDS = {"describe": describe, "download": download, "delete": delete, "rm": remove, "metadata": metadata}
