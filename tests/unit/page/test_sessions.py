"""Codes and sessions, with a clock that is moved by hand."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from everstep.coordinator.edge.page_door import SESSION, PageDoor
from everstep.errors import Refused
from everstep.page import sessions as page_sessions
from everstep.page.sessions import CODE_S, MOST_CODES, MOST_SESSIONS, SESSION_S, Sessions
from everstep.page.static_files import StaticFiles
from everstep.storage.database import StoreError
from everstep.wire.tokens import Token

USER, READER = Token(role="user", word="of-a-user"), Token(role="read-only", word="of-a-reader")


@pytest.fixture
def sessions():
    return Sessions([USER, READER])


def refused(act):
    with pytest.raises(Refused) as found:
        act()
    assert "of-a-" not in str(found.value)
    return found.value.status, found.value.code


def test_a_code_is_good_once_and_until_it_expires(sessions):
    first, second = (sessions.new_code(USER, "read-only", 0.0) for _ in range(2))
    cookie, session = sessions.exchange_code(first, CODE_S - 1)
    assert sessions.find(cookie, CODE_S) == session and session.role == "read-only"
    assert refused(lambda: sessions.exchange_code(first, CODE_S - 1)) == (401, "code-used")
    assert refused(lambda: sessions.exchange_code(second, CODE_S)) == (401, "code-expired")
    assert refused(lambda: sessions.exchange_code("another", 0.0)) == (401, "code-unknown")


def test_a_code_allows_no_more_than_its_token(sessions):
    assert refused(lambda: sessions.new_code(READER, "user", 0.0)) == (403, "role-insufficient")


def test_what_is_kept_of_a_session_does_not_open_the_page(sessions):
    cookie, session = sessions.exchange_token("of-a-user", 0.0)
    assert cookie not in repr(session) and "of-a-user" not in repr(session)
    assert refused(lambda: sessions.find(session.digest, 0.0)) == (401, "session-expired")


def test_a_session_ends_with_its_time_its_logout_or_its_token(sessions):
    cookies = [sessions.exchange_token(text, 0.0) for text in ("of-a-user", "user:of-a-user", "of-a-reader")]
    assert refused(lambda: sessions.find(cookies[0][0], SESSION_S)) == (401, "session-expired")
    sessions.end(cookies[1][1])
    assert refused(lambda: sessions.find(cookies[1][0], 0.0)) == (401, "session-expired")

    later = Sessions([USER], [session for _, session in cookies])
    assert later.find(cookies[0][0], 0.0).role == "user"
    assert refused(lambda: later.find(cookies[2][0], 0.0)) == (401, "session-expired")


def test_codes_and_sessions_are_bounded(sessions):
    first = sessions.new_code(USER, "user", 0.0)
    for _ in range(MOST_CODES):
        sessions.new_code(USER, "user", 0.0)
    assert refused(lambda: sessions.exchange_code(first, 0.0)) == (401, "code-unknown")
    oldest, newest = (sessions.exchange_token("of-a-user", at)[0] for at in (0.0, 1.0))
    for _ in range(MOST_SESSIONS - 1):
        sessions.exchange_token("of-a-user", 2.0)
    assert refused(lambda: sessions.find(oldest, 2.0)) == (401, "session-expired")
    assert sessions.find(newest, 2.0)


class FailingStore:
    """As a full disk would have it, until it is mended."""

    def __init__(self):
        self.is_full, self.kept = True, {}

    async def keep_session(self, session, evicted):
        if self.is_full:
            raise StoreError("no space left on device")
        self.kept[session.digest] = session
        for each in evicted:
            self.kept.pop(each.digest, None)

    async def drop_session(self, session):
        self.kept.pop(session.digest, None)


def enter(door, code):
    """Returns the status of the answer."""
    said = []

    async def receive():
        return {"type": "http.request", "body": json.dumps({"code": code}).encode()}

    async def send(message):
        said.append(message)

    headers = [(b"host", b"h"), (b"x-everstep", b"page"), (b"sec-fetch-site", b"same-origin")]
    scope = {"path": SESSION, "method": "POST", "scheme": "http", "headers": headers}
    asyncio.run(door.answer(scope, receive, send))
    return said[0]["status"]


def test_a_code_whose_session_could_not_be_kept_is_still_good(sessions):
    store, code = FailingStore(), sessions.new_code(USER, "user", time.time())
    door = PageDoor(sessions, StaticFiles(), store)
    with pytest.raises(StoreError):
        enter(door, code)
    store.is_full = False
    assert enter(door, code) == 200
    with pytest.raises(Refused, match="used already"):
        enter(door, code)


def test_a_session_that_made_room_is_no_longer_kept(sessions, monkeypatch):
    monkeypatch.setattr(page_sessions, "MOST_SESSIONS", 2)
    store = FailingStore()
    store.is_full = False
    door = PageDoor(sessions, StaticFiles(), store)
    for _ in range(3):
        assert enter(door, sessions.new_code(USER, "user", time.time())) == 200
    assert len(store.kept) == 2 and not sessions.evicted
