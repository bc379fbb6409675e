"""`everstep template create, set, list, describe, config, remove`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import click

from everstep import wire
from everstep.cli.experiment_link import ExperimentsOptions, link_of
from everstep.cli.experiment_show import print_rows, shown_time
from everstep.cli.facts_text import print_facts
from everstep.cli.options import DeclaredCommand, command
from everstep.cli.printable import printable, printable_lines
from everstep.cli.tables import print_json
from everstep.jobs import models
from everstep.settings import setting

_TEMPLATES = ("name", "sets", "owner", "changed")


@dataclass(frozen=True, kw_only=True)
class TemplatesOptions(ExperimentsOptions):
    json: bool = setting(False, "Print JSON instead of text")


@dataclass(frozen=True, kw_only=True)
class ListTemplatesOptions(TemplatesOptions):
    csv: bool = setting(False, "Print CSV instead of a table")


@dataclass(frozen=True, kw_only=True)
class TemplateOptions(TemplatesOptions):
    name: str = setting(..., "Its name", is_argument=True, metavar="NAME")


@dataclass(frozen=True, kw_only=True)
class FileOptions(TemplateOptions):
    config_file: Path = setting(..., "File with the keys that it sets", is_argument=True, metavar="FILE")


def _setting(name: str, *, is_new: bool, text: str) -> DeclaredCommand:
    def call(options: FileOptions) -> None:
        from everstep.job_file.tree import read_text  # late: the other verbs read no file

        written = read_text(options.config_file)
        with link_of(options) as link:
            view = models.set_template(link, options.name, written, is_new=is_new)
        _print(view, options, f"template {view.name}: {_keys(view)}")

    call.__doc__ = text
    return command(FileOptions, name=name, no_args_is_help=True)(call)


@command(ListTemplatesOptions, name="list")
def list_templates(options: ListTemplatesOptions) -> None:
    """List templates by name."""
    with link_of(options) as link:
        found = models.all_templates(link)
    if options.json:
        print_json([asdict(each) for each in found])
        return
    rows = [(each.name, _keys(each), each.owner, shown_time(each.changed_at)) for each in found]
    print_rows(_TEMPLATES, rows, is_csv=options.csv, nothing="no templates")


@command(TemplateOptions, name="describe", no_args_is_help=True)
def describe(options: TemplateOptions) -> None:
    """Show a template: who wrote it, when, and what it sets."""
    view = _found(options)
    if options.json:
        print_json(asdict(view))
        return
    print_facts(
        [
            ("template", view.name),
            ("owner", view.owner),
            ("created", shown_time(view.created_at)),
            ("changed", shown_time(view.changed_at)),
            ("sets", f"\n{view.written}".rstrip()),
        ]
    )


@command(TemplateOptions, name="config", no_args_is_help=True)
def config(options: TemplateOptions) -> None:
    """Print the file of a template."""
    view = _found(options)
    if options.json:
        print_json(view.config)
    else:
        click.echo(printable_lines(view.written), nl=not view.written.endswith("\n"))


@command(TemplateOptions, name="remove", no_args_is_help=True)
def remove(options: TemplateOptions) -> None:
    """Remove a template. Experiments that were created with it keep their configuration."""
    with link_of(options) as link:
        view = link(lambda coordinator: coordinator.template(options.name))
        link(lambda coordinator: coordinator.delete_template(options.name))
    _print(view, options, f"template {view.name} removed")


def _found(options: TemplateOptions) -> wire.TemplateView:
    with link_of(options) as link:
        return link(lambda coordinator: coordinator.template(options.name))


def _keys(view: wire.TemplateView) -> str:
    return ", ".join(view.config) or "nothing"


def _print(view: wire.TemplateView, options: TemplatesOptions, text: str) -> None:
    if options.json:
        print_json(asdict(view))
    else:
        click.echo(printable(text))


COMMANDS = {
    "create": _setting("create", is_new=True, text="Create a template from a file of keys."),
    "set": _setting("set", is_new=False, text="Create a template from a file of keys, or replace it."),
    "list": list_templates,
    "describe": describe,
    "config": config,
    "remove": remove,
}
