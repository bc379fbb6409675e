"""Mask secrets in the arguments of a command, as a record and the page show them: people type passwords there.

Masks the values of variables and options with names such as `password`, and passwords in URLs. This is a guess by
name: secrets under other names stay readable. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from everstep.record.log_masks import MASK, Masks

_SECRET = "password|passwd|passphrase|secret|credentials?|(?:api|access|secret|private)[-_]?key"
_TOKEN = "(?:hf|auth|access|api|bearer|refresh)[-_]?token"  # not pad_token, which is a word of a model
_OPTION = re.compile(rf"(?:^|[-_.])(?:{_SECRET}|{_TOKEN})|(?:^|.*\.)token", re.IGNORECASE)
_VARIABLE = re.compile(rf"(?:.*_)?(?:{_SECRET}|token)", re.IGNORECASE)
_IN_URL = re.compile(r"(?<=://)([^\s:/@]*):[^\s/@]+@")
_LEAST_CHARS = 8  # of a variable's value: shorter ones, such as "true", may be in arguments for other reasons


def secret_values(environment: Mapping[str, str]) -> list[str]:
    """Of the variables with a telling name."""
    return [value for name, value in environment.items() if _VARIABLE.fullmatch(name) and len(value) >= _LEAST_CHARS]


def masked_arguments(arguments: Sequence[str], values: Sequence[str]) -> list[str]:
    """`values`: known secrets, masked wherever they are."""
    masks = Masks(values)
    return [mask_urls(masks.apply_text(each)) for each in _masked_options(arguments)]


def mask_urls(text: str) -> str:
    """The passwords in them."""
    return _IN_URL.sub(rf"\1:{MASK}@", text)


def _masked_options(arguments: Sequence[str]) -> Iterator[str]:
    """--name value, --name=value, name=value."""
    is_value = False
    for each in arguments:
        name, equals, _ = each.partition("=")
        if is_value and not each.startswith("--"):
            is_value = False
            yield MASK
            continue
        is_secret = _is_secret(name)
        is_value = is_secret and not equals and each.startswith("-")
        yield f"{name}={MASK}" if is_secret and equals else each


def _is_secret(name: str) -> bool:
    found = _OPTION.search(name.lstrip("-"))
    return found is not None and found.end() == len(name.lstrip("-"))
