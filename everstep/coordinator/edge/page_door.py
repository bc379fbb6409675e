"""Where browsers come in: the page's files for anyone, sessions for people with a code or a token.

The files hold nothing of any job. All else needs a session: its cookie means what a token of the same role means."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from everstep import wire
from everstep.coordinator.edge.dispatch import parse, read_body
from everstep.coordinator.edge.guard import (
    MAX_CALLERS,
    TOO_MANY,
    Buckets,
    Header,
    MethodNotAllowed,
    Receive,
    Scope,
    Send,
    send_json,
)
from everstep.errors import Refused
from everstep.page import browser
from everstep.page.sessions import SESSION_S, Session, Sessions
from everstep.page.static_files import StaticFiles
from everstep.wire.operations import METRICS
from everstep.wire.tokens import Token

T = TypeVar("T")

SESSION = "/v1/session"
TRIES_PER_S, TRIES_AT_ONCE = 0.5, 10  # that fail to open a session, from one address

_API = "/v1/"


class SessionStore(Protocol):
    """Where sessions outlive the coordinator's process."""

    async def keep_session(self, session: Session, evicted: Sequence[Session]) -> None: ...

    async def drop_session(self, session: Session) -> None: ...


class PageDoor:
    def __init__(self, sessions: Sessions, files: StaticFiles, store: SessionStore | None = None) -> None:
        self._sessions, self._files, self._store = sessions, files, store
        self._tries = Buckets(per_s=TRIES_PER_S, at_once=TRIES_AT_ONCE, max_keys=MAX_CALLERS)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> bool:
        path, method = scope["path"], scope["method"]
        if path == SESSION:
            headers = dict(scope["headers"])
            browser.check_same_site(method, headers)
            if method == "POST":
                await self._open(scope, headers, receive, send)
            elif method == "DELETE":
                await self._close(scope, headers, send)
            elif method == "GET":
                await send_json(send, 200, wire.to_json(self._view(headers)))
            else:
                raise MethodNotAllowed(("GET", "POST", "DELETE"))
            return True
        if path.startswith(_API) or path == METRICS or method not in ("GET", "HEAD"):
            return False
        headers = dict(scope["headers"])
        reply = self._files.kept(path, headers) or await asyncio.to_thread(self._files.reply, path, headers)
        if reply is None:
            return False
        await send({"type": "http.response.start", "status": reply.status, "headers": list(reply.headers)})
        await send({"type": "http.response.body", "body": reply.body if method == "GET" else b""})
        return True

    def token_of(self, scope: Scope) -> Token | None:
        headers = dict(scope["headers"])
        cookies = browser.cookies_of(headers, browser.cookie_name(headers))
        if not cookies:
            return None
        browser.check_same_site(scope["method"], headers)
        return self._first(cookies, self._sessions.token_of)

    def _session(self, headers: dict[bytes, bytes]) -> Session:
        cookies = browser.cookies_of(headers, browser.cookie_name(headers))
        if not cookies:
            raise Refused("no session is open in this browser", status=401, code="session-missing")
        return self._first(cookies, self._sessions.find)

    def _view(self, headers: dict[bytes, bytes]) -> wire.SessionView:
        cookies = browser.cookies_of(headers, browser.cookie_name(headers))
        return _view(self._session(headers), self._first(cookies, self._sessions.token_of).person)

    def _first(self, cookies: Sequence[str], find: Callable[[str, float], T]) -> T:
        """Of the first that has a session."""
        refusals = []
        for cookie in cookies:
            try:
                return find(cookie, time.time())
            except Refused as refused:
                refusals.append(refused)
        raise refusals[0]

    async def _open(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send) -> None:
        request, now = parse(wire.SessionRequest, await read_body(scope, receive)), time.time()
        address = scope["client"][0] if scope.get("client") else ""
        if wait_s := math.ceil(self._tries.wait_s(address, time.monotonic())):  # before looking: a guess tells nothing
            text = f"too many tries to open the page from this address: wait {wait_s} s"
            raise Refused(text, status=TOO_MANY, wait_s=wait_s, code="too-many-calls")
        try:
            if request.code:
                cookie, session = self._sessions.exchange_code(request.code, now)
            else:
                cookie, session = self._sessions.exchange_token(request.token, now)
        except Refused:
            self._tries.take(address, time.monotonic())
            raise
        await self._keep(session, request.code)
        await self._drop_earlier(headers)
        view = _view(session, self._sessions.person_of(cookie, session))
        await send_json(send, 200, wire.to_json(view), [_cookie(scope, headers, cookie, int(SESSION_S))])

    async def _keep(self, session: Session, code: str) -> None:
        evicted = self._sessions.evicted
        if self._store is not None:
            try:
                await self._store.keep_session(session, evicted)
            except BaseException:  # also if its caller goes away: no session may be left that no one has
                self._sessions.take_back(session, code)
                raise
        self._sessions.evicted = [each for each in self._sessions.evicted if each not in evicted]

    async def _close(self, scope: Scope, headers: dict[bytes, bytes], send: Send) -> None:
        await self._drop_earlier(headers)
        await send_json(send, 200, b"{}", [_cookie(scope, headers, "", 0)])

    async def _drop_earlier(self, headers: dict[bytes, bytes]) -> None:
        try:
            session = self._session(headers)
        except Refused:
            return
        self._sessions.end(session)
        if self._store is not None:
            await self._store.drop_session(session)


def _cookie(scope: Scope, headers: dict[bytes, bytes], value: str, age_s: int) -> Header:
    is_secure = scope["scheme"] == "https" or browser.comes_by_tls(headers)
    return browser.set_cookie(browser.cookie_name(headers), value, age_s, is_secure=is_secure)


def _view(session: Session, person: str) -> wire.SessionView:
    return wire.SessionView(role=session.role, expires_at=session.expires_at, person=person)
