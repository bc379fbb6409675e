"""Tokens and what they allow: a word each, with its role in front of it.

    worker:IyRqR…           what workers and agents call
    user:9fXw2…             create jobs, stop them, look
    read-only:Zk01b…        look
    5vUuE…                  all of it

One per line in a file, or with spaces between them in a variable; a line that begins with # is a comment. Several
of a role are all valid, so that one can be replaced while the other is in use. Pure; no error ever shows a token."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

from everstep.errors import UsageError

WORKER, USER, READ_ONLY, ALL = "worker", "user", "read-only", "all"
ROLES = (WORKER, USER, READ_ONLY)
_GRANTS = {
    WORKER: {WORKER, READ_ONLY},
    USER: {USER, READ_ONLY},
    READ_ONLY: {READ_ONLY},
    ALL: {WORKER, USER, READ_ONLY},
}
_LEAST_FIRST = (READ_ONLY, WORKER, USER, ALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    role: str
    word: str = field(repr=False)

    def may(self, role: str) -> bool:
        return role in _GRANTS[self.role]

    def __str__(self) -> str:
        return self.word if self.role == ALL else f"{self.role}:{self.word}"


def parse_tokens(text: str) -> tuple[Token, ...]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return tuple(_parse(word) for line in lines for word in line.split())


def _parse(text: str) -> Token:
    role, colon, word = text.partition(":")
    if not colon:
        role, word = ALL, text
    if role not in _GRANTS:
        raise UsageError(
            f"unknown token role; expected {', '.join(_GRANTS)}",
            hint=f"one token per line, such as {WORKER}:TOKEN; {ALL}:TOKEN for one that has a colon itself",
            code="token-role-unknown",
        )
    if not word or not word.isascii() or not word.isprintable():
        # Here, because a later error would quote the token.
        raise UsageError(
            "the token has characters that HTTP cannot carry",
            hint="a token is one line of printable ASCII",
            code="token-not-printable",
        )
    return Token(role=role, word=word)


def choose(tokens: Iterable[Token], role: str) -> Token | None:
    """The one that may do the least of those that may do this."""
    able = [token for token in tokens if token.may(role)]
    return min(able, key=lambda token: _LEAST_FIRST.index(token.role), default=None)


def only_for_workers(text: str) -> str:
    """What workers are to be given of it: nothing beyond what they need, where there is a choice."""
    tokens = parse_tokens(text)
    return "\n".join(str(token) for token in tokens if token.role == WORKER) or text


def new_tokens() -> str:
    """The text of a file with one of each role."""
    return "".join(f"{role}:{secrets.token_urlsafe(32)}\n" for role in ROLES)
