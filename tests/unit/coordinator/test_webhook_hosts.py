"""Which hosts and addresses webhooks may call."""

from __future__ import annotations

import pytest

from everstep.coordinator.webhooks.hosts import NO_HOSTS, is_public, parse_hosts, parse_url
from everstep.errors import UsageError

HOSTS = parse_hosts(["hooks.example.com, *.corp.example:8443", "http://10.0.0.7:9000"])


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example.com/services/T0/B0",
        "https://HOOKS.example.com.:443/x?y=z",
        "https://a.corp.example:8443/",
        "https://a.b.corp.example:8443/",
        "http://10.0.0.7:9000/",
    ],
)
def test_an_allowed_host_may_be_called(url):
    assert HOSTS.why_not(parse_url(url)) is None


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/",
        "https://hooks.example.com:8443/",
        "https://xhooks.example.com/",
        "https://a.hooks.example.com/",
        "https://corp.example:8443/",
        "https://evilcorp.example:8443/",
        "https://a.corp.example/",
        "https://10.0.0.7:9000/",
        "http://10.0.0.7/",
        "https://127.0.0.1/",
    ],
)
def test_another_scheme_host_or_port_may_not_be_called_and_the_reason_says_how_to_allow_it(url):
    reason = HOSTS.why_not(parse_url(url))
    assert reason is not None and "--webhook-hosts" in reason and "*.corp.example:8443" in reason
    assert (NO_HOSTS.why_not(parse_url(url)) or "").endswith("allowed hosts: none (everstep serve --webhook-hosts)")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hooks.example.com/x",
        "ftp://hooks.example.com/x",
        "file:///etc/passwd",
        "https://hooks.example.com@evil.example/x",
        "https://user:word@hooks.example.com/x",
        "https://hooks.example.com/x#fragment",
        "https://hooks.example.com/a b",
        "https://hooks.example.com/a\r\nX-Other: 1",
        "https://hooks.example.com\\@evil.example/",
        "https://hooks.example.com:0/",
        "https://hooks.example.com:99999/",
        "https:///x",
        "https://[::1/x",
        "https://hööks.example.com/",
    ],
)
def test_a_url_that_could_be_read_in_two_ways_is_refused_without_being_shown(url):
    with pytest.raises(UsageError) as refused:
        parse_url(url)
    assert refused.value.code == "webhook-url-invalid"
    assert "evil" not in str(refused.value) and "word" not in str(refused.value)


def test_what_is_shown_of_a_url_does_not_have_its_token():
    assert parse_url("https://hooks.example.com/services/T0/secret?key=1").address == "https://hooks.example.com/…"
    assert parse_url("http://[::1]:9000/").address == "http://[::1]:9000/"


@pytest.mark.parametrize("written", ["https://", "a b", "*.", "*.10.0.0.1", "host/path", "host:port", "*", "a.*.b"])
def test_an_entry_that_is_no_host_is_refused(written):
    with pytest.raises(UsageError) as refused:
        parse_hosts([written])
    assert refused.value.code == "webhook-host-invalid"


@pytest.mark.parametrize(
    ("address", "is_it"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:169.254.169.254", False),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
        ("ff02::1", False),
    ],
)
def test_which_addresses_are_public(address, is_it):
    assert is_public(address) is is_it


def test_only_a_host_that_is_named_in_full_may_have_a_private_address():
    named, by_suffix = parse_url("https://hooks.example.com/"), parse_url("https://a.corp.example:8443/")
    assert HOSTS.why_not_address(named, "10.0.0.1") is None
    assert HOSTS.why_not_address(by_suffix, "93.184.216.34") is None
    reason = HOSTS.why_not_address(by_suffix, "169.254.169.254")
    assert reason is not None and "169.254.169.254, which is not public" in reason
