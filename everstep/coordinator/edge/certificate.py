"""The coordinator's certificate and key, read before anything is bound, with a clear error for every problem."""

from __future__ import annotations

import ipaddress
import os
import ssl
from pathlib import Path

from everstep.errors import UsageError


def server_context(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """None without both: plain http."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise UsageError(
            "TLS needs a certificate and its key", hint="--tls-cert FILE --tls-key FILE", code="tls-half-given"
        )
    _check_readable(cert)
    _check_private(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password=lambda: _refuse_encrypted(key))
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(
                f"{key} is not the key of {cert}",
                hint="the first certificate in the file must be the coordinator's",
                code="tls-key-mismatch",
            ) from None
        raise UsageError(
            f"{cert} and {key} are not a certificate and its key: {error.reason}",
            hint="give PEM files",
            code="tls-files-invalid",
        ) from None
    return context


def _check_readable(path: Path) -> None:
    try:
        path.open("rb").close()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", code="tls-file-unreadable") from None


def _check_private(key: Path) -> None:
    """As PostgreSQL has it: for its owner alone, or root's and for a group."""
    _check_readable(key)
    found = key.stat()
    allowed = 0o640 if found.st_uid == 0 != os.geteuid() else 0o600
    mode = found.st_mode & 0o777
    if mode & ~allowed:
        raise UsageError(
            f"key file {key} has mode {mode:04o}: others may read it",
            hint=f"chmod {allowed:o} {key}",
            code="tls-key-not-private",
        )


def _refuse_encrypted(key: Path) -> str:
    raise UsageError(
        f"key file {key} needs a passphrase",
        hint=f"remove the passphrase: umask 077; openssl pkey -in {key} -out PLAIN",
        code="tls-key-encrypted",
    )


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def plain_warning(url: str) -> str:
    return (
        f"everstep: {url} is open to other machines and has no TLS: anyone on the network can read the tokens\n"
        "  HINT: --tls-cert FILE --tls-key FILE, or a private network"
    )
