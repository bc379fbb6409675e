"""One POST: to a real receiver, which may be slow, endless or somewhere else."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

from everstep.coordinator.webhooks import post
from everstep.coordinator.webhooks.hosts import parse_hosts, parse_url
from everstep.coordinator.webhooks.post import MOST_SHOWN, Poster
from lab.certificates import Authority
from lab.webhook_receiver import WebhookReceiver, status


@pytest.fixture
def receiver():
    with WebhookReceiver() as made:
        yield made


def send(url, *hosts):
    async def run():
        poster = Poster(parse_hosts(hosts))
        try:
            return await poster.post(parse_url(url), b'{"a":1}', {"Content-Type": "application/json", "X-One": "1"})
        finally:
            poster.close()

    return asyncio.run(run())


def test_the_body_and_the_headers_arrive(receiver):
    answer = send(receiver.url("/a/b?c=d"), receiver.host)
    (got,) = receiver.received
    assert (got.path, got.body, got.headers["X-One"]) == ("/a/b?c=d", b'{"a":1}', "1")
    assert got.headers["Host"] == f"127.0.0.1:{receiver.port}"
    assert (answer.is_good, answer.status, answer.reason) == (True, 200, "200: thanks")


def test_a_host_that_is_not_allowed_is_not_called_and_that_is_final(receiver):
    answer = send(receiver.url(), "http://127.0.0.1:1")
    assert (answer.is_final, answer.status, receiver.received) == (True, 0, [])


def test_a_name_that_leads_to_a_private_address_is_not_called(receiver, monkeypatch):
    """Whoever controls a name below an allowed suffix may let it point anywhere."""
    real = socket.getaddrinfo
    there = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", receiver.port))]
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *more, **named: there if "evil" in str(host) else real(host, *more, **named)
    )  # fmt: skip
    url = f"http://evil.example.com:{receiver.port}/"
    answer = send(url, f"http://*.example.com:{receiver.port}")
    assert answer.is_final and "127.0.0.1, which is not public" in answer.reason and not receiver.received
    assert send(url, f"http://evil.example.com:{receiver.port}").is_good, "named in full by the administrator"


def test_a_redirect_is_not_followed(receiver):
    receiver.reply = status(307, Location=receiver.url("/elsewhere"))
    answer = send(receiver.url(), receiver.host)
    assert (answer.status, answer.is_good) == (307, False) and "redirects are not followed" in answer.reason
    assert [each.path for each in receiver.received] == ["/hook"]


def test_an_endless_answer_is_read_only_to_some_length(receiver):
    def endless(handler, _number):
        handler.send_response(500)
        handler.end_headers()
        while True:
            handler.wfile.write(b"x" * 65536)

    receiver.reply = endless
    answer = send(receiver.url(), receiver.host)
    assert answer.status == 500 and len(answer.reason) <= MOST_SHOWN + 10


def test_endless_headers_are_no_answer(receiver):
    def endless(handler, _number):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            handler.wfile.write(b"X-Header: " + b"x" * 1000 + b"\r\n")

    receiver.reply = endless
    answer = send(receiver.url(), receiver.host)
    assert not answer.is_good and "not HTTP" in answer.reason


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\n", b"220 smtp ready\r\n\r\n"])
def test_an_answer_that_is_not_http_is_none(receiver, said):
    receiver.reply = lambda handler, _number: (handler.wfile.write(said), setattr(handler, "close_connection", True))
    assert not send(receiver.url(), receiver.host).is_good


def test_a_receiver_that_trickles_is_given_up_in_time(receiver, monkeypatch):
    monkeypatch.setattr(post, "TIMEOUT_S", 0.5)

    def trickle(handler, _number):
        for letter in b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 10_000:
            handler.wfile.write(bytes([letter]))
            time.sleep(0.01)

    receiver.reply = trickle
    answer = send(receiver.url(), receiver.host)
    assert (answer.status, answer.reason) == (0, f"http://127.0.0.1:{receiver.port} did not answer within 0.5 s")


def test_nobody_there_is_a_reason(receiver):
    receiver.close()
    answer = send(receiver.url(), receiver.host)
    assert not answer.is_final and answer.status == 0 and "127.0.0.1" in answer.reason
    receiver.close = lambda: None


@pytest.mark.parametrize(("alternative", "is_trusted"), [("IP:127.0.0.1", True), ("DNS:other.example", False)])
def test_the_certificate_is_verified(tmp_path, monkeypatch, alternative, is_trusted):
    authority = Authority(tmp_path)
    with WebhookReceiver(tls=authority.issue("receiver", alternative=alternative)) as receiver:
        post._tls.cache_clear()
        monkeypatch.setenv("EVERSTEP_CA", str(authority.certificate))
        answer = send(receiver.url(), receiver.host)
        assert answer.is_good == is_trusted, answer
        post._tls.cache_clear()
        monkeypatch.delenv("EVERSTEP_CA")
        answer = send(receiver.url(), receiver.host)
        assert not answer.is_good and "its certificate is not valid" in answer.reason
        assert len(receiver.received) == is_trusted
    post._tls.cache_clear()
