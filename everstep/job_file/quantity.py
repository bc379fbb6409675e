"""Amounts as people write them: "16Gi" of memory, "500m" of a CPU, "1h30m" of time. Pure.

Parsing returns a number in one unit (bytes, CPUs, seconds); formatting returns a short text that parses back to it."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from everstep.errors import UsageError

_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_DECIMAL = {"k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_UNITS = {"": 1, **_BINARY, **_DECIMAL}
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_SMALLEST_BYTES = 2**20
_LARGEST_BYTES = 2**60
_NUMBER = r"\d+(?:\.\d+)?"


def parse_size(given: str | float) -> int:
    """Bytes. Units as Kubernetes has them: Gi is 2**30, G is 10**9; GiB and GB are the same."""
    text = _text(given)
    hint = "such as 16Gi or 500Mi"
    found = re.fullmatch(rf"({_NUMBER}) ?([A-Za-z]*)", text)
    unit = found[2].removesuffix("B") if found and len(found[2]) > 1 else found[2] if found else ""
    if not found or unit not in _UNITS:
        near = _near_unit(unit)
        if found and unit == "m":
            message = f"{text} is {found[1]} thousandths of a byte"
            raise UsageError(message, hint=f"did you mean {found[1]}M or {found[1]}Mi?", code="size-in-thousandths")
        hint = f"did you mean {found[1]}{near}?" if found and near else hint
        raise UsageError(f"{text!r} is not a size", hint=hint, code="size-invalid") from None
    size = Fraction(found[1]) * _UNITS[unit]
    if size < _SMALLEST_BYTES:
        message = f"{text} is {_whole_or_float(size)} bytes, less than 1Mi"
        raise UsageError(message, hint=f"with a unit: {found[1]}Gi", code="size-too-small")
    if size > _LARGEST_BYTES:
        raise UsageError(f"{text} is more than 2**60 bytes", hint=hint, code="size-too-large")
    return math.ceil(size)


def format_size(size: int) -> str:
    """The largest unit that divides it; bytes, if none does."""
    units = sorted(
        (*_BINARY.items(), *(each for each in _DECIMAL.items() if each[0] != "K")), key=lambda unit: -unit[1]
    )
    for unit, factor in units:
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def parse_cpus(given: str | float) -> float:
    """CPUs, to the thousandth: 2, 0.5, "500m"."""
    text = _text(given)
    found = re.fullmatch(rf"({_NUMBER})(m?)", text)
    if not found:
        raise UsageError(f"{text!r} is not a number of CPUs", hint="such as 4, 0.5 or 500m", code="cpus-invalid")
    thousandths = Fraction(found[1]) * (1 if found[2] else 1000)
    if thousandths < 1 or thousandths.denominator != 1:
        message = f"{text} CPUs: not a whole number of thousandths"
        raise UsageError(message, hint="such as 4, 0.5 or 500m", code="cpus-not-thousandths")
    return float(thousandths / 1000)


def format_cpus(cpus: float) -> int | float:
    return int(cpus) if cpus == int(cpus) else cpus


def parse_seconds(given: str | float) -> float:
    """Seconds: 90, "90s", "1h30m", "2d", or as batch systems write it: "1:30:00", "2-12:00:00"."""
    text = _text(given)
    if re.fullmatch(_NUMBER, text):
        return _positive_seconds(Fraction(text), text)
    if found := re.fullmatch(r"(?:(\d+)-)?(\d+):([0-5]?\d)(?::([0-5]?\d))?", text):
        if found[4] is None:
            # Slurm reads minutes:seconds here, a day's clock hours:minutes.
            message = f"{text!r} is ambiguous: hours or minutes"
            raise UsageError(message, hint=f"write {text}:00, or {found[2]}h{found[3]}m", code="duration-ambiguous")
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
        return _positive_seconds(((days * 24 + hours) * 60 + minutes) * 60 + seconds, text)
    if re.fullmatch(rf"(?:{_NUMBER}[dhms])+", text):
        parts = re.findall(rf"({_NUMBER})([dhms])", text)
        return _positive_seconds(sum(Fraction(number) * _SECONDS[unit] for number, unit in parts), text)
    raise UsageError(f"{text!r} is not a duration", hint="such as 90s, 1h30m or 1:30:00", code="duration-invalid")


def format_seconds(seconds: float) -> str | float:
    if seconds != int(seconds):
        return seconds
    left, text = int(seconds), ""
    for unit, factor in _SECONDS.items():
        number, left = divmod(left, factor)
        text += f"{number}{unit}" if number else ""
    return text


def _positive_seconds(seconds: Fraction | int, text: str) -> float:
    if seconds <= 0:
        raise UsageError(
            f"{text} is not a positive duration", hint="such as 90s or 1h30m", code="duration-not-positive"
        )
    return float(seconds)


def _text(given: str | float) -> str:
    if isinstance(given, float) and given.is_integer():
        return str(int(given))
    return str(given).strip()


def _near_unit(unit: str) -> str | None:
    by_small = {each.lower(): each for each in _BINARY}
    return by_small.get(unit.lower().removesuffix("b")) or {"mb": "M", "gb": "G", "g": "G"}.get(unit.lower())


def _whole_or_float(size: Fraction) -> int | float:
    return int(size) if size.denominator == 1 else float(size)
