"""Certificates by openssl: an authority, and the certificates it signs."""

from __future__ import annotations

import subprocess
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.certificate, self._key = folder / "ca.pem", folder / "ca.key"
        named = ("-subj", "/CN=an authority of our own", "-days", "2")
        _openssl("req", "-x509", *_KEY, "-keyout", self._key, "-out", self.certificate, *named)

    def issue(self, name: str, *, alternative: str = "IP:127.0.0.1", days: int = 1) -> tuple[Path, Path]:
        """A certificate and its key."""
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        request, extensions = self._folder / f"{name}.request", self._folder / f"{name}.extensions"
        extensions.write_text(f"subjectAltName={alternative}\n")
        _openssl("req", *_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        signed = ("-CA", self.certificate, "-CAkey", self._key, "-days", days, "-extfile", extensions)
        _openssl("x509", "-req", "-in", request, "-out", certificate, *signed)
        key.chmod(0o600)
        return certificate, key


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
