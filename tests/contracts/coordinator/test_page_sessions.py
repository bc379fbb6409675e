"""Who may open the page: a code opens one session, a token any number, another site none. Nothing shows a token."""

from __future__ import annotations

import re

import httpx
import pytest

from everstep.client.calls import Coordinator
from everstep.errors import Refused
from everstep.page import browser as headers
from everstep.page.sessions import SESSION_S
from everstep.wire import PageCodeRequest, Stop
from lab.browser import PAGE, Browser, code_of, opened
from lab.certificates import Authority


@pytest.fixture(scope="module")
def server(tmp_path_factory, server_class):
    folder = tmp_path_factory.mktemp("coordinator")
    (folder / "token").write_text("user:of-a-user\nworker:of-a-worker\nread-only:of-a-reader\n")
    (folder / "token").chmod(0o600)
    server = server_class(folder, str(folder / "store.db"))
    yield server
    server.stop()
    log = server.log_file.read_text()
    assert "Traceback" not in log and "of-a-" not in log, log


@pytest.fixture
def browser(server):
    with Browser(server.url) as browser:
        yield browser


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def test_a_code_opens_one_session_that_may_look(server, browser):
    code = code_of(server.url, server.token)
    answer = browser.open(code=code)
    assert (answer.status_code, answer.json()["role"]) == (200, "read-only")
    assert browser.get("/v1/jobs")["num_jobs"] >= 0

    with Browser(server.url) as other:
        assert refusal(other.open(code=code)) == (401, "code-used")
        assert refusal(other.http.get("/v1/jobs")) == (401, "token-unknown")
        assert "everstep page" in other.open(code=code).json()["detail"]


def test_a_foreign_cookie_of_the_same_name_does_not_hide_the_session(server, browser):
    browser.open(code=code_of(server.url, server.token))
    name, _, value = browser.cookie.partition("=")
    answer = httpx.get(f"{server.url}/v1/session", headers={**PAGE, "cookie": f"{name}=theirs; {name}={value}"})
    assert (answer.status_code, answer.json()["role"]) == (200, "read-only")


def test_a_wrong_code_and_a_wrong_token_open_nothing(browser):
    assert refusal(browser.open(code="x" * 32)) == (401, "code-unknown")
    assert refusal(browser.open(token="x" * 32)) == (401, "token-unknown")
    assert refusal(browser.open()) == (401, "token-unknown")
    assert refusal(browser.http.get("/v1/session")) == (401, "session-missing")
    assert not browser.http.cookies


def test_an_expired_code_opens_nothing(tmp_path, server_class):
    before = "from everstep.page import sessions\nsessions.CODE_S = -1.0\n"
    server = server_class(tmp_path, str(tmp_path / "db"), before=before)
    with Browser(server.url) as browser:
        assert refusal(browser.open(code=code_of(server.url, server.token))) == (401, "code-expired")
    server.stop()


def test_a_session_ends_after_a_time(tmp_path, server_class):
    # The browser keeps the cookie longer.
    before = "from everstep.coordinator.edge import page_door\nfrom everstep.page import sessions\n"
    before += "sessions.SESSION_S = 0.0\n"
    server = server_class(tmp_path, str(tmp_path / "db"), before=before)
    with opened(server) as browser:
        assert refusal(browser.http.get("/v1/jobs")) == (401, "session-expired")
    server.stop()


@pytest.mark.parametrize(
    ("typed", "role"),
    [("of-a-user", "user"), ("read-only:of-a-reader", "read-only"), (" of-a-worker\n", "worker")],
)
def test_a_typed_token_opens_a_session_with_its_role(browser, typed, role):
    assert browser.open(token=typed).json()["role"] == role


def test_a_session_may_do_what_its_token_may_do_and_no_more(server, play, browser):
    job = play(server).coordinator.job
    browser.open(token="of-a-reader")
    assert refusal(browser.http.post(f"/v1/jobs/{job}/stop", json={"reason": "x"})) == (403, "role-insufficient")
    browser.open(token="of-a-user")
    assert browser.http.post(f"/v1/jobs/{job}/stop", json={"reason": "by the page"}).status_code == 200
    assert browser.get(f"/v1/jobs/{job}")["is_stopped"]


def test_a_reader_gets_no_code_for_more_than_reading_and_a_session_gets_none(server, browser):
    with Coordinator(server.url, "read-only:of-a-reader", "") as reader:
        assert reader.page_code(PageCodeRequest()).code
        with pytest.raises(Refused) as refused:
            reader.page_code(PageCodeRequest(role="user"))
    assert refused.value.code == "role-insufficient"
    browser.open(token="of-a-user")
    assert refusal(browser.http.post("/v1/codes", json={})) == (403, "session-not-a-token")
    odd = browser.http.post("/v1/codes", json={}, headers={"authorization": "Bearer x"})
    assert refusal(odd) == (403, "session-not-a-token")


def test_logging_out_ends_the_session_for_whoever_has_its_cookie(server, browser):
    browser.open(token="of-a-reader")
    cookie = browser.cookie
    assert browser.http.delete("/v1/session").status_code == 200
    assert not browser.http.cookies
    assert refusal(httpx.get(f"{server.url}/v1/jobs", headers={**PAGE, "cookie": cookie})) == (401, "session-expired")


def test_tries_to_open_a_session_are_limited(tmp_path, server_class):
    server = server_class(tmp_path, str(tmp_path / "db"))
    with Browser(server.url) as browser:
        answers = [browser.open(code="wrong") for _ in range(12)]
        assert refusal(answers[0]) == (401, "code-unknown")
        assert refusal(answers[-1]) == (429, "too-many-calls") and int(answers[-1].headers["retry-after"]) >= 1
        code = code_of(server.url, server.token)
        assert refusal(browser.open(code=code)) == (429, "too-many-calls")  # not even a good one
    server.stop()


@pytest.mark.parametrize(
    "sent",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
    ],
)
def test_another_site_gets_nothing_even_with_the_cookie(server, browser, sent):
    browser.open(token="of-a-user")
    for method, path in (
        ("GET", "/v1/jobs"),
        ("GET", "/v1/stream"),
        ("POST", "/v1/session"),
        ("DELETE", "/v1/session"),
    ):
        answer = browser.http.request(method, path, headers=sent)
        assert refusal(answer) == (403, "cross-site"), path
    assert browser.get("/v1/session")["role"] == "user"


def test_what_changes_something_needs_a_header_that_other_sites_cannot_send(server, play, browser):
    job = play(server).coordinator.job
    browser.open(token="of-a-user")
    for method, path in (("POST", f"/v1/jobs/{job}/stop"), ("POST", "/v1/session"), ("DELETE", "/v1/session")):
        answer = browser.http.request(method, path, headers={"x-everstep": ""}, json={"reason": "x"})
        assert refusal(answer) == (403, "page-header-missing"), path
    assert not browser.get(f"/v1/jobs/{job}")["is_stopped"]


def test_an_address_that_is_typed_into_the_browser_is_answered(browser):
    browser.open(token="of-a-reader")
    assert browser.http.get("/v1/jobs", headers={"sec-fetch-site": "none"}).status_code == 200


def test_the_cookie_is_out_of_reach_of_scripts_and_of_other_sites(server, browser):
    answer = browser.open(code=code_of(server.url, server.token))
    (cookie,) = answer.headers.get_list("set-cookie")
    port = server.url.rpartition(":")[2]
    assert re.fullmatch(
        rf"everstep_{port}=[\w-]{{43}}; Path=/; Max-Age={SESSION_S:.0f}; HttpOnly; SameSite=Strict", cookie
    )


def test_with_tls_the_cookie_never_travels_in_the_open(tmp_path, server_class, monkeypatch):
    authority = Authority(tmp_path)
    server = server_class(tmp_path, str(tmp_path / "db"), authority.issue("coordinator"))
    monkeypatch.setenv("EVERSTEP_CA", str(authority.certificate))
    code = code_of(server.url, server.token)
    answer = httpx.post(
        f"{server.url}/v1/session", json={"code": code}, headers=PAGE, verify=str(authority.certificate)
    )
    assert answer.headers["set-cookie"].endswith("; SameSite=Strict; Secure")
    server.stop()


@pytest.mark.parametrize(
    ("told", "is_secure"),
    [
        ({"x-forwarded-proto": "https"}, True),
        ({"x-forwarded-proto": "HTTPS, http"}, True),  # two proxies: the first is the one that the browser reaches
        ({"x-forwarded-proto": "http, https"}, False),
        ({"x-forwarded-proto": "http"}, False),
        ({"origin": "https://{host}"}, True),  # of the browser itself: the proxy adds no header
        ({"origin": "http://{host}"}, False),
    ],
)
def test_nor_does_it_behind_a_proxy_that_adds_the_tls(server, told, is_secure):
    told = {name: value.format(host=server.url.partition("://")[2]) for name, value in told.items()}
    url = f"{server.url}/v1/session"
    opened = httpx.post(url, json={"token": "of-a-reader"}, headers={**PAGE, **told})
    cookie = {"cookie": opened.headers["set-cookie"].partition(";")[0]}
    closed = httpx.delete(url, headers={**PAGE, **told, **cookie})
    for answer in (opened, closed):
        assert answer.status_code == 200
        assert answer.headers["set-cookie"].endswith("; Secure") is is_secure


def test_every_reply_to_a_browser_has_the_headers_that_keep_others_out(server, browser):
    browser.open(token="of-a-reader")
    answers = [
        browser.http.get("/"),
        browser.http.get("/jobs/any"),
        browser.http.get("/static/missing.js"),
        browser.http.get("/v1/jobs"),
        browser.http.get("/v1/jobs/unknown"),
        browser.http.get("/v1/session"),
        browser.http.put("/v1/session"),
        browser.http.get("/v1/jobs", headers={"origin": "http://evil.example"}),
        httpx.get(f"{server.url}/v1/jobs"),
    ]
    assert {each.status_code for each in answers} == {200, 401, 403, 404, 405}
    for answer in answers:
        for name, value in headers.HEADERS:
            assert answer.headers.get_list(name.decode()) == [value.decode()], answer.url
        assert "cache-control" in answer.headers
    policy = dict(headers.HEADERS)[b"content-security-policy"].decode()
    assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy


def test_the_files_of_the_page_need_no_session_and_all_else_does(server, browser):
    assert browser.http.get("/").headers["content-type"].startswith("text/html")
    for path in ("/v1/jobs", "/v1/stream", "/v1/health", "/v1/jobs/x/logs", "/static/../../env.py", "/x.py"):
        assert browser.http.get(path).status_code == 401, path


def test_a_session_outlives_the_coordinator_and_ends_with_its_token(tmp_path, server_class):
    server = server_class(tmp_path, str(tmp_path / "db"))
    with opened(server) as browser:
        server.kill()
        server.start()
        assert browser.get("/v1/session")["role"] == "read-only"
        server.kill()
        server.token_file.write_text("all:another\n")
        server.start()
        assert refusal(browser.http.get("/v1/session")) == (401, "session-expired")
    assert browser.cookie.partition("=")[2].encode() not in b"".join(each.read_bytes() for each in tmp_path.glob("db*"))
    server.stop()


def test_a_worker_with_its_token_needs_none_of_this(server, play):
    coordinator = play(server).coordinator
    coordinator.stop(Stop(reason="over"))
    assert coordinator.view().is_stopped
