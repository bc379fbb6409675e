"""Tokens and what they allow: a word each, with its role in front of it, and perhaps a person's name between the two.

    worker:IyRqR…           what workers and agents call; run a search
    user:9fXw2…             create jobs, stop them, look
    user:alice:Xb81u…       the same, for alice: what she creates is hers
    read-only:Zk01b…        look
    all:root:5vUuE…         all of it, for an administrator named root
    5vUuE…                  all of it

The token is what follows the second colon, else the first one. So a token that has a colon itself is written with a
name, which may be empty: user::a:b. One per line in a file, or with spaces between them in a variable; a line that
begins with # is a comment. Several of a role are all valid, so that one can be replaced while the other is in use.
Pure; no error ever shows a token."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

from everstep.errors import UsageError

WORKER, USER, READ_ONLY, ALL = "worker", "user", "read-only", "all"
ROLES = (WORKER, USER, READ_ONLY)
WORKER_OR_USER = "worker or user"  # no role of a token, but one that a call may need: a search program may be a trial
NEEDED = (*ROLES, WORKER_OR_USER)
_GRANTS = {
    WORKER: {WORKER, WORKER_OR_USER, READ_ONLY},
    USER: {USER, WORKER_OR_USER, READ_ONLY},
    READ_ONLY: {READ_ONLY},
    ALL: {*NEEDED},
}
_LEAST_FIRST = (READ_ONLY, WORKER, USER, ALL)
_NAME = re.compile(r"[A-Za-z0-9._-]{0,64}")  # of a person


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    role: str
    word: str = field(repr=False)
    person: str = ""  # who has it; "": anyone
    trial: str = ""  # the job of the only trial that it is for; "": it is for all

    @property
    def is_administrator(self) -> bool:
        return self.role == ALL

    def may(self, role: str) -> bool:
        return role in _GRANTS[self.role]

    def __str__(self) -> str:
        if self.person or ":" in self.word:
            return f"{self.role}:{self.person}:{self.word}"
        return self.word if self.role == ALL else f"{self.role}:{self.word}"


def parse_tokens(text: str) -> tuple[Token, ...]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    return tuple(_parse(word) for line in lines for word in line.split())


def _parse(text: str) -> Token:
    role, person, word = _parts(text)
    if role not in _GRANTS:
        raise UsageError(
            f"unknown token role; expected {', '.join(_GRANTS)}",
            hint=f"one token per line, such as {WORKER}:TOKEN or {USER}:NAME:TOKEN",
            code="token-role-unknown",
        )
    if not _NAME.fullmatch(person):
        raise UsageError(
            "the name of a token's person has characters other than letters, digits, dots, dashes and underscores",
            hint=f"{USER}:NAME:TOKEN, with at most 64 characters; {ALL}::TOKEN for a token that has a colon itself",
            code="token-name-invalid",
        )
    if not word or not word.isascii() or not word.isprintable():
        # Here, because a later error would quote the token.
        raise UsageError(
            "the token has characters that HTTP cannot carry",
            hint="a token is one line of printable ASCII",
            code="token-not-printable",
        )
    return Token(role=role, word=word, person=person)


def _parts(text: str) -> tuple[str, str, str]:
    """Role, person and word."""
    role, colon, rest = text.partition(":")
    if not colon:
        return ALL, "", text
    person, colon, word = rest.partition(":")
    return (role, person, word) if colon else (role, "", rest)


def choose(tokens: Iterable[Token], role: str) -> Token | None:
    """The one that may do the least of those that may do this. A person's goes first for what becomes that person's."""
    able = [token for token in tokens if token.may(role)]
    if role == WORKER_OR_USER and (named := [token for token in able if token.person]):
        able = named
    return min(able, key=lambda token: _LEAST_FIRST.index(token.role), default=None)


def only_for(text: str, role: str) -> str:
    """The token of it that a call with this role takes, for calls that need less by themselves; all of it if none may
    do this: the coordinator then says what is missing."""
    found = choose(parse_tokens(text), role)
    return text if found is None else str(found)


def only_for_workers(text: str) -> str:
    """What workers are to be given of it: nothing beyond what they need, where there is a choice."""
    tokens = parse_tokens(text)
    return "\n".join(str(token) for token in tokens if token.role == WORKER) or text


def new_tokens() -> str:
    """The text of a file with one of each role."""
    return "".join(f"{role}:{secrets.token_urlsafe(32)}\n" for role in ROLES)
