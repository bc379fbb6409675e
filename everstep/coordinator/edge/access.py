"""Who may come in: a token that is known, a role that may make this call.

Without a token there is nothing to be seen, not even whether a path exists. Each call needs one role: to look is
`read-only`, to create or stop a job is for a `user`, and all the rest, also to fetch a job's code, is what workers and
agents do."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from everstep.errors import Refused
from everstep.wire.tokens import ALL, READ_ONLY, USER, WORKER, Token

UNKNOWN_CALLER, FORBIDDEN = 401, 403
CODE = "/v1/code/"


@dataclass(frozen=True, kw_only=True, slots=True)
class AccessDecision:
    """What is decided at the door: None for `status` is a yes."""

    reason: str = ""
    status: int | None = None


_OF_USERS = {"PUT": re.compile("/v1/jobs/[^/]*"), "POST": re.compile("/v1/jobs/[^/]*/stop")}
_COME_IN = AccessDecision()
_NO_TOKEN = AccessDecision(reason="a valid bearer token is needed", status=UNKNOWN_CALLER)


def needed_role(method: str, path: str) -> str:
    if method in ("GET", "HEAD"):
        return WORKER if path.startswith(CODE) else READ_ONLY
    of_users = _OF_USERS.get(method)
    return USER if of_users is not None and of_users.fullmatch(path) else WORKER


def decide_entry(token: Token | None, method: str, path: str) -> AccessDecision:
    if token is None:
        return _NO_TOKEN
    if token.role == ALL or token.may(role := needed_role(method, path)):
        return _COME_IN
    return AccessDecision(reason=f"the token's role is {token.role}, and this needs {role}", status=FORBIDDEN)


class KnownTokens:
    """Tells them apart in a time that does not depend on what was sent."""

    def __init__(self, tokens: Iterable[Token]) -> None:
        self._expected: Sequence[tuple[bytes, Token]] = [(f"Bearer {token.word}".encode(), token) for token in tokens]
        if not self._expected:
            raise ValueError("a coordinator without a token would serve anybody")

    def find(self, headers: Iterable[tuple[bytes, bytes]]) -> Token | None:
        for name, value in headers:
            if name == b"authorization":
                found = None
                for expected, token in self._expected:
                    if hmac.compare_digest(value, expected):
                        found = token
                return found
        return None


def refused(entry: AccessDecision) -> Refused:
    assert entry.status is not None
    return Refused(entry.reason, status=entry.status)
