"""Trust a coordinator whose certificate is signed by the one that EVERSTEP_CA names, else by one of the system's.

Mixing up http and https gives an error that says so, with the way out, not a broken connection."""

from __future__ import annotations

import functools
import socket
import ssl
from urllib.parse import urlsplit

from everstep import env
from everstep.errors import UsageError

_KNOCK_S = 2.0
_PLAIN = {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG"}
_TIME = {9, 10}  # OpenSSL's: not yet valid, expired
_NAME = {62, 64}  # for another host, for another address


def tls_context() -> ssl.SSLContext:
    return _context(env.value(env.CA))


@functools.cache
def no_tls() -> ssl.SSLContext:
    """For plain http. It is never used, but httpx makes one for each client if it is not given any."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@functools.cache
def _context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        why = "it holds no certificate" if isinstance(error, ssl.SSLError) else error.strerror
        raise UsageError(
            f"{env.CA}={ca_file}: {why}",
            hint="name a PEM file with the certificate that signed the coordinator's",
            code="ca-file-unusable",
        ) from None


def explain(error: BaseException, url: str) -> UsageError | None:
    """What a failed connection means if it has to do with certificates; else None."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, ssl.SSLError):
        found = found.__cause__ or found.__context__
    if isinstance(found, ssl.SSLCertVerificationError):
        return UsageError(
            f"{url}: the coordinator's certificate is not trusted: {found.verify_message}",
            hint=_way_out(found),
            code="certificate-not-trusted",
        )
    if found is not None and found.reason in _PLAIN:
        return UsageError(
            f"{url}: the server there speaks plain http",
            hint=f"write http://{urlsplit(url).netloc}",
            code="https-to-plain-http",
        )
    return None


def _way_out(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in _TIME:
        return "give the coordinator a new certificate and start it again; or is this machine's clock wrong?"
    if error.verify_code in _NAME:
        return "use a name in the URL that is in the certificate (subjectAltName)"
    return f"{env.CA} or --ca-file must name the certificate that signed it; now it is {env.value(env.CA) or 'not set'}"


def explain_silence(url: str) -> UsageError | None:
    """Why a coordinator by plain http may have hung up without a word: it expects https."""
    where = urlsplit(url)
    if where.scheme != "http" or where.hostname is None:
        return None
    anything = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anything.check_hostname, anything.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((where.hostname, where.port or 80), _KNOCK_S) as connection,
            anything.wrap_socket(connection),
        ):
            return UsageError(
                f"{url}: the server there speaks https",
                hint=f"write https://{where.netloc}",
                code="plain-http-to-https",
            )
    except OSError:
        return None
