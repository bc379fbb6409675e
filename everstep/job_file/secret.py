"""A secret: a reference to its value, or the value itself if the job file contains it. Never shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, InstanceOf, PlainSerializer, WithJsonSchema

from everstep.errors import UsageError
from everstep.job_file.fields import AS_WRITTEN, checked

MASK = "**********"
_KINDS = {
    "env": "env:NAME, a variable where the job is submitted",
    "file": "file:PATH, a file there",
    "kubernetes": "kubernetes:SECRET/KEY",
    "oci": "oci:OCID of a secret in a vault",
}


@dataclass(frozen=True, repr=False, slots=True)
class Secret:
    """`kind` is env, file, kubernetes, oci, or value: then what it holds is the secret itself."""

    kind: str
    held: str

    @property
    def is_value(self) -> bool:
        return self.kind == "value"

    def __str__(self) -> str:
        return MASK if self.is_value else f"{self.kind}:{self.held}"

    def __repr__(self) -> str:
        return f"Secret({str(self)!r})"


def parse_secret(given: Any) -> Secret:
    if isinstance(given, Secret):
        return given
    if not isinstance(given, str) or not given:
        raise UsageError("a secret is a text", hint=" or ".join(_KINDS.values()), code="secret-not-a-text")
    if given == MASK:
        message = "the value of this secret was masked when the file was printed"
        raise UsageError(message, hint=f"write {_KINDS['env']}", code="secret-was-masked")
    kind, colon, held = given.partition(":")
    if not colon or kind not in _KINDS:
        return Secret("value", given)
    if not held or (kind == "kubernetes" and not all(held.partition("/"))):
        raise UsageError(f"{kind}: the reference is incomplete", hint=_KINDS[kind], code="secret-reference-incomplete")
    return Secret(kind, held)


SecretField = Annotated[
    InstanceOf[Secret],
    BeforeValidator(checked(parse_secret)),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"type": "string", "description": "; ".join(_KINDS.values())}),
    AS_WRITTEN,
]
