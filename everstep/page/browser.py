"""The headers of every reply to a browser, and which of its requests are refused because another site made them.

A browser sends the cookie of a session by itself, so a request with a cookie counts only if our own page made it:
browsers say so (`Sec-Fetch-Site`, older ones `Origin`), and whatever changes something needs a header that no other
site can send. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from everstep.errors import Refused

HEADER, HEADER_VALUE = b"x-everstep", b"page"
POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
NO_STORE = (b"cache-control", b"no-store")

_READS = ("GET", "HEAD")


def check_same_site(method: str, headers: Mapping[bytes, bytes]) -> None:
    """Raises Refused if another site may have made this request."""
    site = headers.get(b"sec-fetch-site")
    is_typed = site == b"none" and method in _READS  # into the address bar
    if site is not None and site != b"same-origin" and not is_typed:
        raise _cross_site(f"Sec-Fetch-Site is {_shown(site)}")
    origin = headers.get(b"origin")
    if origin is not None and origin.partition(b"://")[2] != headers.get(b"host", b""):  # a proxy may add TLS
        raise _cross_site(f"Origin is {_shown(origin)}")
    if method not in _READS and headers.get(HEADER) != HEADER_VALUE:
        text = f"a browser's {method} needs the header {HEADER.decode()}: {HEADER_VALUE.decode()}"
        raise Refused(text, status=403, code="page-header-missing")


def _cross_site(why: str) -> Refused:
    return Refused(f"refused: this request did not come from the page ({why})", status=403, code="cross-site")


def _shown(value: bytes) -> str:
    return value[:100].decode("ascii", "replace")


def cookies_of(headers: Mapping[bytes, bytes], name: str) -> list[str]:
    """By hand: a parser gives up at the first odd cookie, and programs on other ports of this host set some as well.
    Those with a longer path come first, so the first of the name may not be ours."""
    pairs = [each.strip().partition("=") for each in headers.get(b"cookie", b"").decode("latin-1").split(";")]
    return [value for found, _, value in pairs if found == name]


def set_cookie(name: str, value: str, max_age_s: int, *, is_secure: bool) -> tuple[bytes, bytes]:
    """One that scripts cannot read and other sites cannot use. An age of 0 removes it."""
    secure = "; Secure" if is_secure else ""
    text = f"{name}={value}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite=Strict{secure}"
    return b"set-cookie", text.encode()


def comes_by_tls(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the browser speaks TLS, to a proxy in front of us: its own word, or the proxy's. Believed only for what
    makes a cookie safer: a false word costs its sender nothing but their own session."""
    proxied = headers.get(b"x-forwarded-proto", b"").partition(b",")[0].strip().lower()  # the first is the browser's
    return headers.get(b"origin", b"").startswith(b"https://") or proxied == b"https"


def cookie_name(headers: Mapping[bytes, bytes]) -> str:
    """Browsers do not tell the ports of a host apart: without the port in it, two coordinators on one machine would
    end each other's sessions."""
    port = headers.get(b"host", b"").decode("latin-1").rpartition(":")[2]
    return f"everstep_{port}" if port.isdigit() else "everstep"
