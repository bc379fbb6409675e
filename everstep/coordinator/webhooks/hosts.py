"""Which hosts webhooks may call, and which of their addresses. Pure.

    hooks.example.com        this host over https, port 443
    hooks.example.com:8443   over https, this port
    *.example.com            every host whose name ends like this
    http://10.0.0.7:9000     over http, which anyone on the way can read

A host that is named in full may have any address, such as one of the local network. A host that only matches a suffix
must have a public one: anyone who controls a name in that domain could otherwise point it at a machine inside."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from everstep.errors import UsageError

_PORTS = {"https": 443, "http": 80}
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(\.(?!-)[a-z0-9_-]{1,63})*")
# They carry IPv4 addresses inside, and is_global does not look there.
_TUNNELS = tuple(ipaddress.ip_network(each) for each in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32"))


@dataclass(frozen=True, kw_only=True, slots=True)
class PostTarget:
    """Where a URL leads."""

    scheme: str
    host: str
    port: int
    path: str  # with the query

    @property
    def address(self) -> str:
        """Without the part that may hold a token."""
        return f"{self.origin}/…" if self.path != "/" else f"{self.origin}/"

    @property
    def origin(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port == _PORTS[self.scheme] else f":{self.port}")


@dataclass(frozen=True, kw_only=True, slots=True)
class AllowedHost:
    scheme: str
    host: str  # or what its name ends with, if is_suffix
    port: int
    is_suffix: bool
    written: str

    def matches(self, target: PostTarget) -> bool:
        is_same = target.host.endswith(f".{self.host}") if self.is_suffix else target.host == self.host
        return is_same and (self.scheme, self.port) == (target.scheme, target.port)


@dataclass(frozen=True, kw_only=True, slots=True)
class AllowedHosts:
    hosts: tuple[AllowedHost, ...] = ()

    @property
    def written(self) -> list[str]:
        return [each.written for each in self.hosts]

    def why_not(self, target: PostTarget) -> str | None:
        """Why this target must not be called; None: it may, if its addresses may."""
        if any(each.matches(target) for each in self.hosts):
            return None
        allowed = ", ".join(self.written) or "none"
        return f"webhooks must not call {target.origin}; allowed hosts: {allowed} (everstep serve --webhook-hosts)"

    def why_not_address(self, target: PostTarget, address: str) -> str | None:
        """Why this address of the target's host must not be called."""
        if any(each.matches(target) and not each.is_suffix for each in self.hosts) or is_public(address):
            return None
        return (
            f"{target.host} has the address {address}, which is not public; "
            f"an administrator can allow the host by its full name (everstep serve --webhook-hosts {target.host})"
        )


NO_HOSTS = AllowedHosts()


def is_public(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return is_public(str(found.ipv4_mapped))
        if any(found in each for each in _TUNNELS):
            return False
    return found.is_global and not found.is_multicast


def parse_hosts(words: Iterable[str]) -> AllowedHosts:
    return AllowedHosts(hosts=tuple(_parse(each.strip()) for word in words for each in word.split(",") if each.strip()))


def _parse(written: str) -> AllowedHost:
    scheme, rest = ("http", written[7:]) if written.startswith("http://") else ("https", written)
    is_suffix = rest.startswith("*.")
    target = _target(f"{scheme}://{rest[2:] if is_suffix else rest.removeprefix('https://')}")
    has_name = target is not None and target.path == "/" and not rest.endswith("/")
    if target is None or not has_name or (is_suffix and _is_ip(target.host)):
        raise UsageError(
            f"not a host that webhooks could call: {written!r}",
            hint="such as hooks.example.com, *.example.com:8443 or http://127.0.0.1:9000",
            code="webhook-host-invalid",
        )
    return AllowedHost(
        scheme=scheme, host=target.host, port=target.port, is_suffix=is_suffix, written=written
    )  # fmt: skip


def parse_url(url: str) -> PostTarget:
    """UsageError without the URL, which may hold a token."""
    if (target := _target(url)) is None:
        raise UsageError(
            "not a URL that a webhook could call: it needs https://, a host, and no user name, space or fragment",
            hint="such as https://hooks.example.com/services/…",
            code="webhook-url-invalid",
        )
    return target


def _target(url: str) -> PostTarget | None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    host = (parts.hostname or "").rstrip(".")
    is_plain = url.isascii() and url.isprintable() and " " not in url and "\\" not in url
    if not is_plain or parts.scheme not in _PORTS or "@" in parts.netloc or parts.fragment or port == 0:
        return None
    if not (_is_ip(host) or _NAME.fullmatch(host)) or len(host) > 253:
        return None
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return PostTarget(scheme=parts.scheme, host=host, port=port or _PORTS[parts.scheme], path=path)


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return "%" not in host
