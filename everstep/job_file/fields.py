"""Types of a job file's keys: blocks that refuse unknown keys, texts, sizes, times."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from everstep.errors import UsageError
from everstep.job_file.quantity import format_cpus, format_seconds, format_size, parse_cpus, parse_seconds, parse_size

AS_WRITTEN = "as written"  # a mark on types: see text_paths


def refusal(message: str, hint: str | None = None, *, code: str) -> PydanticCustomError:
    """For validators: the message, a remedy, and the code of the error."""
    return PydanticCustomError("everstep", "{text}", {"text": message, "hint": hint, "code": code})


def checked(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A validator out of a function that raises UsageError."""

    def validate(given: Any) -> Any:
        try:
            return check(given)
        except UsageError as error:
            raise refusal(error.message, error.hint, code=error.code) from None

    return validate


def shorthand(read: Callable[[Any], Any], form: Any) -> BeforeValidator:
    """A block that may also be given as this form; a mapping is left to the block."""

    def validate(given: Any) -> Any:
        return given if isinstance(given, Mapping | BaseModel) else read(given)

    return BeforeValidator(checked(validate), json_schema_input_type=form)


class Section(BaseModel):
    """A mapping of a job file. Null is the same as not given."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if isinstance(given, Mapping):
            return {key: value for key, value in given.items() if value is not None}
        return given


def key(default: Any, text: str, **bounds: Any) -> Any:
    """Declare a key of a section. `...` as the default: it must be given."""
    start = {"default_factory": dict} if default == {} else {"default": default}
    return Field(**start, description=text, **bounds)


# --- types ----------------------------------------------------------------------------------------


def _as_text(given: Any) -> Any:
    """Numbers become texts; those from a file keep their spelling."""
    return str(given) if isinstance(given, int | float) and not isinstance(given, bool) else given


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise refusal("contains a NUL character", "remove it", code="text-has-nul")
    return text


def _as_amount(given: Any) -> Any:
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise refusal(f"{type(given).__name__} where an amount is expected", code="amount-type")
    return given


def _one_line(text: str) -> str:
    if len(text.splitlines()) > 1:
        raise refusal(f"{len(text.splitlines())} lines where one is expected", code="text-has-lines")
    if text.splitlines() not in ([], [text]) or any(unicodedata.category(letter) == "Cc" for letter in text):
        message = "a line break or control character where plain text is expected"
        raise refusal(message, "write it without `|` or `\\n`", code="text-has-control-character")
    return text


def _one_word(text: str) -> str:
    """For scripts in which no quoting is safe with all versions of a scheduler."""
    if wrong := sorted({letter for letter in text if letter.isspace() or letter in "\"'`$\\;#<>"}):
        raise refusal(
            f"{text!r} contains {wrong[0]!r}",
            "letters, digits and signs such as . _ - : = + & without spaces",
            code="word-has-special-character",
        )
    return text


def _is_json(given: Any) -> Any:
    try:
        json.dumps(given, allow_nan=False)
    except ValueError:
        raise refusal(
            "infinity and NaN have no JSON form", "a finite number, or a text", code="number-not-finite"
        ) from None
    return given


def _env_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        message = f"{name!r} is not a valid name of an environment variable"
        raise refusal(message, "letters, digits and _", code="variable-name-invalid")
    return name


def _amount(parse: Callable[[Any], Any], form: Any) -> BeforeValidator:
    return BeforeValidator(checked(lambda given: parse(_as_amount(given))), json_schema_input_type=form)


_Mixed = str | int | float
Text = Annotated[str, BeforeValidator(_as_text, json_schema_input_type=_Mixed), AfterValidator(_no_nul), AS_WRITTEN]
Line = Annotated[Text, AfterValidator(_one_line)]
Word = Annotated[Line, AfterValidator(_one_word)]
Texts = tuple[Text, ...]
Names = dict[str, Text]
EnvName = Annotated[str, AfterValidator(_env_name)]
Json = Annotated[dict[str, JsonValue], AfterValidator(_is_json)]
Size = Annotated[int, _amount(parse_size, str | int), PlainSerializer(format_size)]
Cpus = Annotated[float, _amount(parse_cpus, _Mixed), PlainSerializer(format_cpus)]
Duration = Annotated[float, _amount(parse_seconds, _Mixed), PlainSerializer(format_seconds)]


# --- which keys hold texts --------------------------------------------------------------------------


def text_paths(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Of the keys whose values are taken as they were written: `0.10` and `yes` stay what they are."""
    for name, field in model.model_fields.items():
        if AS_WRITTEN in field.metadata or _holds_text(field.annotation):
            yield (*path, name)
        for block in blocks_in(field.annotation):
            yield from text_paths(block, (*path, name))


def blocks_in(hint: Any) -> Iterator[type[Section]]:
    if isinstance(hint, type) and issubclass(hint, Section):
        yield hint
    for part in get_args(hint):
        yield from blocks_in(part)


def _holds_text(hint: Any) -> bool:
    return AS_WRITTEN in getattr(hint, "__metadata__", ()) or any(_holds_text(part) for part in get_args(hint))
