"""Which of a browser's requests count, and how its cookie is found among others."""

from __future__ import annotations

import pytest

from everstep.errors import Refused
from everstep.page.browser import check_same_site, cookies_of

HOST = {b"host": b"everstep.example:7070", b"x-everstep": b"page"}


@pytest.mark.parametrize("other", ['x={"a":1}', "flag", "k=a b", "everstep_70700=no"])
def test_odd_cookies_of_other_programs_do_not_hide_ours(other):
    for cookies in (f"{other}; everstep_7070=mine", f"everstep_7070=mine; {other}"):
        assert cookies_of({b"cookie": cookies.encode()}, "everstep_7070") == ["mine"]
    assert cookies_of({b"cookie": other.encode()}, "everstep_7070") == []
    assert cookies_of({b"cookie": b"everstep=theirs; everstep=mine"}, "everstep") == ["theirs", "mine"]


@pytest.mark.parametrize("scheme", [b"http", b"https"])
def test_our_own_page_is_heard_also_behind_a_proxy_that_adds_tls(scheme):
    check_same_site("POST", {**HOST, b"origin": scheme + b"://everstep.example:7070"})


@pytest.mark.parametrize(
    "told",
    [
        {b"origin": b"http://other.example"},
        {b"origin": b"http://everstep.example:8000"},
        {b"origin": b"null"},
        {b"sec-fetch-site": b"same-site"},
        {b"sec-fetch-site": b"cross-site"},
    ],
)
def test_other_sites_are_refused(told):
    with pytest.raises(Refused) as refused:
        check_same_site("POST", {**HOST, **told})
    assert refused.value.code == "cross-site"
