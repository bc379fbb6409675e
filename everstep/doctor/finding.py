"""What a check found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OK, WARNING, ERROR = "ok", "warning", "error"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    check: str
    level: str  # OK, WARNING or ERROR
    text: str  # the facts, with numbers
    hint: str = ""  # the way out, in a sentence


def ok(check: str, text: str) -> Finding:
    return Finding(check=check, level=OK, text=text)


def warning(check: str, text: str, hint: str) -> Finding:
    return Finding(check=check, level=WARNING, text=text, hint=hint)


def error(check: str, text: str, hint: str) -> Finding:
    return Finding(check=check, level=ERROR, text=text, hint=hint)


def has_error(findings: Iterable[Finding]) -> bool:
    return any(finding.level == ERROR for finding in findings)
