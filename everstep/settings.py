"""A setting is one declaration: a field of a frozen dataclass, with its text, bounds and names.

The command line, the job file, validation and docs/configuration.md all read it from there. Pure; knows no setting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, get_args, get_type_hints

_KEY = "setting"
MAX_NUMBER = 1 << 50  # exact in JSON everywhere, and in any database; one just above it still differs from it


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What is known of a setting besides its name, type and default."""

    text: str  # one line, for --help and docs
    details: str = ""  # more, for docs alone
    option: str = ""  # the option that sets it, where it is not --the-field-s-name
    also: tuple[str, ...] = ()  # other names of the option
    panel: str = ""  # the heading of the option in --help
    metavar: str | None = None
    variables: tuple[str, ...] = ()  # environment variables that set it
    is_torchruns: bool = False  # an option of torchrun: PET_<NAME> sets it too
    shows_default: bool = True
    is_argument: bool = False  # given by its place on the command line
    must_exist: bool = False  # a path of a file that is there
    least: float | None = None
    above: float | None = None
    most: float | None = None
    section: str = ""  # the job file's section that has it as a key

    def option_of(self, name: str) -> str:
        return self.option or f"--{name.replace('_', '-')}"

    def variables_of(self, name: str) -> tuple[str, ...]:
        """The environment variables that set it. A setting of the job file has one by its name."""
        word = self.option_of(name).removeprefix("--").replace("-", "_").upper()
        own = (f"EVERSTEP_POLICY_{name.upper()}",) if self.section else ()
        return (*((f"PET_{word}",) if self.is_torchruns else ()), *own, *self.variables)

    def problem(self, name: str, value: Any) -> str | None:
        """Why this value is refused."""
        if value is None or not isinstance(value, int | float):
            return None
        shown = f"{name}={value!r:.40}"
        if value != value:
            return f"{shown} is not a number"
        if self.above is not None and value <= self.above:
            return f"{name} must be more than {self.above:g}"
        if self.least is not None and value < self.least:
            return f"{shown} is less than {self.least:g}"
        if value > (most := MAX_NUMBER if self.most is None else self.most):
            return f"{shown} is more than {most:g}"
        return None


def setting(default: Any, text: str, **declared: Any) -> Any:
    """Declare a field. `...` as the default: it must be given."""
    metadata = {_KEY: Setting(text=text, **declared)}
    return field(metadata=metadata) if default is ... else field(default=default, metadata=metadata)


def settings_of(kind: Any) -> dict[str, Setting]:
    """The declared fields of a dataclass, by name."""
    return {each.name: each.metadata[_KEY] for each in fields(kind) if _KEY in each.metadata}


def default_of(declared: Field[Any]) -> Any:
    """None: it must be given, or stays unset."""
    return None if declared.default is MISSING else declared.default


def types_of(kind: type[Any]) -> dict[str, tuple[type[Any], bool]]:
    """The type of each field without its None, and whether it is a tuple of that type."""
    found = {}
    for name, hint in get_type_hints(kind).items():
        inner = next((each for each in get_args(hint) if each not in (type(None), ...)), hint)
        is_tuple = getattr(hint, "__origin__", None) is tuple
        found[name] = (inner if is_tuple or isinstance(inner, type) else hint, is_tuple)
    return found


def problems_of(value: Any) -> Iterator[str]:
    """What the declared bounds refuse."""
    for name, declared in settings_of(value).items():
        if problem := declared.problem(name, getattr(value, name)):
            yield problem
