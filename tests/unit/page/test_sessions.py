"""Codes and sessions, with a clock that is moved by hand."""

from __future__ import annotations

import pytest

from everstep.errors import Refused
from everstep.page.sessions import CODE_S, MOST_CODES, MOST_SESSIONS, SESSION_S, Sessions
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
