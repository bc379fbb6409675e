"""Who has the page open: a code or a token is exchanged once for a session, which the browser proves with a cookie.

A code goes into an address, so it is good for one session and not for long. What a session may do is what the token
behind it may do at most; it ends with that token, when the user logs out, or after a week. Codes live in memory only;
sessions are kept by their digests, so that neither the store nor a backup of it opens the page.
Time comes in as an argument. Knows nothing of HTTP."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from everstep.errors import Refused, UsageError
from everstep.wire.tokens import READ_ONLY, Token, parse_tokens

CODE_S = 900.0
SESSION_S = 7 * 86400.0
MOST_CODES = 1000
MOST_SESSIONS = 1000  # the ones that end first make room

_ANOTHER = "run `everstep page` for another address, or type a token"


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    digest: str  # of the cookie
    token: str  # names the token behind it to who has the cookie
    role: str
    expires_at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _OneTimeCode:
    token: Token
    role: str
    expires_at: float
    is_used: bool = False


class Sessions:
    def __init__(self, tokens: Iterable[Token], sessions: Iterable[Session] = ()) -> None:
        """`sessions`: those of an earlier process."""
        self._tokens = list(tokens)
        self._sessions = {each.digest: each for each in sessions}
        self._codes: dict[str, _OneTimeCode] = {}  # by their digests; the oldest first
        self.evicted: Sequence[Session] = ()  # that made room, and may still be kept somewhere

    def new_code(self, token: Token, role: str, now: float) -> str:
        """For an address. It allows no more than the token does."""
        if token not in self._tokens:
            text = "a session cannot open another one: this needs a token"
            raise Refused(text, status=403, code="session-not-a-token")
        if not token.may(role):
            text = f"the token's role is {token.role}: it cannot open a page with the role {role}"
            raise Refused(text, status=403, code="role-insufficient")
        while len(self._codes) >= MOST_CODES:
            del self._codes[next(iter(self._codes))]
        code = secrets.token_urlsafe(24)
        self._codes[digest(code)] = _OneTimeCode(token=token, role=role, expires_at=now + CODE_S)
        return code

    def printed_code(self, now: float) -> str:
        """For the address that a coordinator prints when it starts: enough to watch."""
        return self.new_code(next(each for each in self._tokens if each.may(READ_ONLY)), READ_ONLY, now)

    def exchange_code(self, code: str, now: float) -> tuple[str, Session]:
        """The cookie and its session."""
        key = digest(code)
        found = self._codes.get(key)
        if found is None:
            raise _refused("this code is unknown to the coordinator", "code-unknown")
        if found.is_used:
            raise _refused("this code was used already and opens only one session", "code-used")
        if found.expires_at <= now:
            raise _refused(f"this code has expired after {CODE_S / 60:.0f} minutes", "code-expired")
        self._codes[key] = _OneTimeCode(token=found.token, role=found.role, expires_at=found.expires_at, is_used=True)
        return self._begin(found.token, found.role, now)

    def exchange_token(self, text: str, now: float) -> tuple[str, Session]:
        """A token as it was typed, with or without its role in front."""
        words = [text.strip(), *(each.word for each in _parsed(text))]
        found = None
        for each in self._tokens:
            for word in words:
                if hmac.compare_digest(word.encode(), each.word.encode()):
                    found = each
        if found is None:
            raise Refused("this is not a token of this coordinator", status=401, code="token-unknown")
        return self._begin(found, found.role, now)

    def find(self, cookie: str, now: float) -> Session:
        return self._find(cookie, now)[0]

    def token_of(self, cookie: str, now: float) -> Token:
        """What the session may do: its role, for the person whose token is behind it."""
        session, token = self._find(cookie, now)
        return Token(role=session.role, word=session.digest, person=token.person)

    def person_of(self, cookie: str, session: Session) -> str:
        """Whose token is behind it."""
        return next(each.person for each in self._tokens if _is_behind(session, each, cookie))

    def _find(self, cookie: str, now: float) -> tuple[Session, Token]:
        """The session, and the token behind it."""
        found = self._sessions.get(digest(cookie))
        behind = [] if found is None else [each for each in self._tokens if _is_behind(found, each, cookie)]
        if found is None or not behind:
            raise _refused("this session is over", "session-expired")
        if found.expires_at <= now:
            del self._sessions[found.digest]
            raise _refused(f"this session has expired after {SESSION_S / 86400:.0f} days", "session-expired")
        return found, behind[0]

    def take_back(self, session: Session, code: str) -> None:
        """It could not be kept: as if it had not begun, so that the code is still good."""
        self.end(session)
        if found := self._codes.get(digest(code)):
            self._codes[digest(code)] = replace(found, is_used=False)

    def end(self, session: Session) -> None:
        self._sessions.pop(session.digest, None)

    def _begin(self, token: Token, role: str, now: float) -> tuple[str, Session]:
        for each in sorted(self._sessions.values(), key=lambda each: each.expires_at)[: self._num_over(now)]:
            self.evicted = [*self.evicted, self._sessions.pop(each.digest)]
        cookie = secrets.token_urlsafe(32)
        session = Session(digest=digest(cookie), token=_name(token, cookie), role=role, expires_at=now + SESSION_S)
        self._sessions[session.digest] = session
        return cookie, session

    def _num_over(self, now: float) -> int:
        num_expired = sum(each.expires_at <= now for each in self._sessions.values())
        return max(num_expired, len(self._sessions) - MOST_SESSIONS + 1)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _name(token: Token, cookie: str) -> str:
    """Says nothing about the token to who has only the store, even if the token is easy to guess."""
    return hmac.digest(cookie.encode(), token.word.encode(), "sha256").hex()


def _is_behind(session: Session, token: Token, cookie: str) -> bool:
    return hmac.compare_digest(session.token, _name(token, cookie))


def _parsed(text: str) -> Sequence[Token]:
    try:
        return parse_tokens(text)[:4]  # a file with one of each role may have been pasted
    except UsageError:
        return ()


def _refused(why: str, code: str) -> Refused:
    return Refused(f"{why}; {_ANOTHER}", status=401, code=code)
