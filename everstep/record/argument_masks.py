"""Mask secrets in the arguments of a command, as a record and the page show them: people type passwords there.

Masks the values of variables and options with names such as `password`, and passwords in URLs. This is a guess by
name: secrets under other names stay readable. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from everstep.record.log_masks import MASK, Masks

_SECRET = "[^-_.]*passw(?:or)?d|passphrase|secret|credentials?|(?:api|access|secret|private)[-_]?key|(?<=_)pwd"
_TOKEN = "(?:hf|auth|access|api|bearer|refresh)[-_]?token"  # not pad_token, which is a word of a model
_OPTION = re.compile(rf"(?:.*[-_.])?(?:{_SECRET}|{_TOKEN})|(?:.*\.)?token", re.IGNORECASE)
_VARIABLE = re.compile(rf"(?:.*_)?(?:{_SECRET}|token)", re.IGNORECASE)
_IN_URL = re.compile(r"(\w+://)([^\s/]+)@")  # up to the last @: people forget to quote the one in a password
_WORD = re.compile(r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^\s"']|["'])+""")  # of a shell
_LEAST_CHARS = 8  # of a variable's value: shorter ones, such as "true", may be in arguments for other reasons


def secret_values(environment: Mapping[str, str]) -> list[str]:
    """Of the variables with a telling name."""
    return [value for name, value in environment.items() if _VARIABLE.fullmatch(name) and len(value) >= _LEAST_CHARS]


def masked_arguments(arguments: Sequence[str], values: Sequence[str]) -> list[str]:
    """`values`: known secrets, masked wherever they are."""
    masks = Masks(values)
    return [mask_urls(masks.apply_text(each)) for each in _masked_options(arguments)]


def masked_line(line: str) -> str:
    """One of a shell, such as `export API_KEY=abc`; also inside quotes."""
    words = _WORD.findall(line)
    shown = iter(_masked_options([_masked_inside(word) for word in words]))
    return mask_urls(_WORD.sub(lambda _word: next(shown), line))


def mask_urls(text: str) -> str:
    """The passwords in them; over HTTP, a name alone is a token."""
    return _IN_URL.sub(_masked_url, text)


def is_secret_name(name: str) -> bool:
    """Of an option, a variable or a setting."""
    bare = name.lstrip("-\"'")
    return (_VARIABLE if bare.isupper() else _OPTION).fullmatch(bare) is not None


def _masked_url(found: re.Match[str]) -> str:
    scheme, told = str(found[1]), str(found[2])
    user, colon, _ = told.partition(":")
    if "?" in user or "#" in user:  # the @ belongs to the query
        return str(found[0])
    if colon:
        return f"{scheme}{user}:{MASK}@"
    return f"{scheme}{MASK}@" if scheme in ("http://", "https://") else str(found[0])


def _masked_inside(word: str) -> str:
    """A command within a command, as after `bash -c`."""
    is_quoted = len(word) > 1 and word[0] == word[-1] and word[0] in "\"'" and any(map(str.isspace, word))
    return f"{word[0]}{masked_line(word[1:-1])}{word[0]}" if is_quoted else word


def _masked_options(arguments: Sequence[str]) -> Iterator[str]:
    """--name value, --name=value, name=value, and a line of a shell."""
    is_value = False
    for each in arguments:
        name, equals, _ = each.partition("=")
        if is_value and not each.startswith("--"):
            is_value = False
            yield MASK
            continue
        is_secret = is_secret_name(name)
        is_value = is_secret and not equals and each.startswith("-")
        if is_secret and equals:
            yield f"{name}={MASK}"
        else:
            yield masked_line(each) if len(_WORD.findall(each)) > 1 else each
