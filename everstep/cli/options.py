"""Options of the command line, made from declarations: see everstep.settings. Imported by every `--help`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, TypeVar

import click

from everstep import env
from everstep.cli.printable import printable_lines
from everstep.errors import UsageError
from everstep.jobs.options import JOB_FILES, LOGS, NODES, WORKERS
from everstep.settings import Setting, default_of, settings_of, types_of

T = TypeVar("T")

SCRIPT_LAST = {"allow_interspersed_args": False}  # words after the script's name belong to the script
_POLICY = "Coordinator policy"
_PANELS = ("Options", WORKERS, NODES, LOGS, JOB_FILES, _POLICY)  # those that come first, in this order
_TYPES: dict[type[Any], click.ParamType[Any]] = {
    str: click.STRING,
    int: click.INT,
    float: click.FLOAT,
    Path: click.Path(path_type=Path),
}


class NumberRange(click.FloatRange):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        return self.fail(f"{value!r} is not a number.", param, ctx) if number != number else number


class DeclaredOption(click.Option):
    panel = ""
    shown_default = ""  # of an option that stays unset unless it is given

    def get_help_extra(self, ctx: click.Context) -> click.types.OptionHelpExtra:
        extra = super().get_help_extra(ctx)
        if self.shown_default:
            extra["default"] = self.shown_default
        return extra


class DeclaredCommand(click.Command):
    """A command whose help shows its options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        panels: dict[str, list[tuple[str, str]]] = {title: [] for title in _PANELS}
        for each in self.get_params(ctx):
            if isinstance(each, click.Option) and (record := each.get_help_record(ctx)):
                panels.setdefault(getattr(each, "panel", "") or "Options", []).append(record)
        for title, records in panels.items():
            if not records:
                continue
            with formatter.section(title):
                formatter.write_dl(records, col_max=26)


def command(
    kind: type[T], *, name: str | None = None, **settings: Any
) -> Callable[[Callable[[T], int | None]], DeclaredCommand]:
    """A command that takes the declared fields of `kind` as options; the function gets them as one value, and returns
    the exit code. A field `policy` collects those of Policy."""

    def wrap(call: Callable[[T], int | None]) -> DeclaredCommand:
        takes_policy = any(each.name == "policy" for each in fields(kind))  # type: ignore[arg-type]

        def invoke(**given: Any) -> None:
            if takes_policy:
                names = given.keys() - settings_of(kind).keys()
                values = {each: given.pop(each) for each in names}
                given["policy"] = {each: value for each, value in values.items() if value is not None}
            env.trust(given.get("ca_file"))
            click.get_current_context().exit(call(kind(**given)) or 0)

        params: list[click.Parameter] = _parameters(kind)
        if takes_policy:
            params += _policy_parameters({word for each in params for word in each.opts})
        return DeclaredCommand(
            name or call.__name__, callback=invoke, params=params, help=inspect.getdoc(call), **settings
        )

    return wrap


def _parameters(kind: type[Any]) -> list[click.Parameter]:
    declared, types = settings_of(kind), types_of(kind)
    return [_parameter(each, declared[each.name], *types[each.name]) for each in fields(kind) if each.name in declared]


def _parameter(field: Field[Any], declared: Setting, kind: type[Any], is_tuple: bool) -> click.Parameter:
    is_required = field.default is MISSING
    default = default_of(field)
    # One that is required has no default, not even None: click would take it for given.
    known: dict[str, Any] = {"required": True} if is_required else {"default": None if is_tuple else default}
    if declared.is_argument:
        words = -1 if is_tuple else 1
        return click.Argument([field.name], type=_type(kind, declared), nargs=words, metavar=declared.metavar, **known)
    option = _option(
        field.name,
        declared,
        kind,
        multiple=is_tuple,
        show_default=default not in (None, "", False, ()) and declared.shows_default,
        **known,
    )
    option.panel = declared.panel
    return option


def _policy_parameters(present: set[str]) -> list[click.Parameter]:
    """Options for the fields of the policy that no other option sets. Options that are not given stay unset."""
    from everstep.wire.policy import Policy

    types, made = types_of(Policy), []
    for each in fields(Policy):
        declared = settings_of(Policy)[each.name]
        if declared.option_of(each.name) not in present:
            option = _option(each.name, declared, types[each.name][0])
            option.panel = _POLICY
            option.shown_default = "" if each.default is None else f"{each.default:g}"
            made.append(option)
    return [*made]


def _option(name: str, declared: Setting, kind: type[Any], **settings: Any) -> DeclaredOption:
    names = [declared.option_of(name), *declared.also, name]
    if kind is bool:
        settings["is_flag"] = True
    else:
        settings |= {
            "type": _type(kind, declared),
            "metavar": declared.metavar or ("S" if name.endswith("_s") else "N" if kind in (int, float) else None),
        }
    return DeclaredOption(
        names,
        help=declared.text.replace("`", ""),
        envvar=[*declared.variables_of(name)] or None,
        show_envvar=not declared.is_torchruns and bool(declared.variables),
        callback=_there if declared.must_exist else None,
        **settings,
    )


def _type(kind: type[Any], declared: Setting) -> click.ParamType[Any]:
    if kind in (int, float) and (declared.least, declared.above, declared.most) != (None, None, None):
        ranges = click.IntRange if kind is int else NumberRange
        least = declared.least if declared.above is None else declared.above
        made = ranges(least, declared.most, min_open=declared.above is not None)  # type: ignore[arg-type]
        made.name = "whole number" if kind is int else "number"  # in click's errors
        return made
    return _TYPES[kind]


def _there(_ctx: click.Context, _parameter: click.Parameter, path: Path | None) -> Path | None:
    """A file that was named must exist, even where the command would not read it."""
    if path is not None and not path.is_file():
        hint = f"see --token-file and {env.TOKEN_FILE}"
        raise UsageError(f"there is no token file {path}", hint=hint, code="token-file-missing")
    return path


def refuse_others(allowed: Sequence[str], because: str) -> None:
    refuse([name for name in click.get_current_context().params if name not in allowed], because)


def refuse(names: Sequence[str], because: str) -> None:
    """Refuse those of these options that are on the command line."""
    ctx = click.get_current_context()
    for name in names:
        if is_typed(name):
            option = next((each.opts[0] for each in ctx.command.params if each.name == name), name)
            raise click.BadParameter(f"not with this: {because}", ctx=ctx, param_hint=f"'{option}'")


def is_typed(name: str) -> bool:
    """Whether the option is on the command line, and not from the environment."""
    ctx = click.get_current_context()
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE" and ctx.params[name] not in (None, (), "")


def say(line: str) -> None:
    """For people: stdout is for machines."""
    click.echo(f"everstep: {printable_lines(line)}", err=True)
