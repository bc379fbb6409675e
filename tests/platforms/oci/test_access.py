"""Who signs requests: a session's token beside an API key, checked as the service checks it."""

from __future__ import annotations

from email.utils import formatdate
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from everstep.errors import UsageError
from everstep.platforms.oci.access import open_access
from lab.oci.signatures import KeyRing, Request

pytest.importorskip("oci")


def profile(home: Path, **more: object) -> None:
    (home / ".oci").mkdir()
    told = {"region": "us-ashburn-1", "tenancy": "ocid1.tenancy.oc1..a", "key_file": home / "key.pem", **more}
    lines = "".join(f"{name}={value}\n" for name, value in told.items())
    (home / ".oci" / "config").write_text(f"[session]\n{lines}")


def test_a_session_signs_with_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import requests

    monkeypatch.setenv("HOME", str(tmp_path))
    key = generate_private_key(public_exponent=65537, key_size=2048)
    (tmp_path / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (tmp_path / "token").write_text("a.session.token\n")
    profile(tmp_path, security_token_file=tmp_path / "token")
    access = open_access("security_token", "session", "")
    sent = requests.Request(
        "GET", "https://datascience.us-ashburn-1.oci.oraclecloud.com/20190101/jobs?limit=1"
    ).prepare()
    sent.headers["date"] = formatdate(usegmt=True)
    access.signer(sent)
    headers = {name.lower(): value for name, value in sent.headers.items()}

    ring = KeyRing({"ST$a.session.token": key.public_key()})
    assert ring.signer_of(Request("GET", sent.path_url, headers)) == "ST$a.session.token"


def test_a_profile_without_a_session_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "key.pem").touch()
    profile(tmp_path)
    with pytest.raises(UsageError, match="no security_token_file") as told:
        open_access("security_token", "session", "")
    assert "oci session authenticate" in str(told.value)
