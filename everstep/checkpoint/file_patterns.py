"""Which files of a checkpoint match a pattern: `*` is any part of a name, `?` one character, `**` any folders. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_PIECES = re.compile(r"\*\*/|\*\*|\*|\?|[^*?]+")
_MEANINGS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def matching(names: Iterable[str], globs: Sequence[str]) -> list[str]:
    patterns = [_pattern(each) for each in globs]
    return [name for name in names if any(each.fullmatch(name) for each in patterns)]


def _pattern(glob: str) -> re.Pattern[str]:
    pieces = _PIECES.findall(glob.removeprefix("./"))
    return re.compile("".join(_MEANINGS.get(each) or re.escape(each) for each in pieces), re.DOTALL)
