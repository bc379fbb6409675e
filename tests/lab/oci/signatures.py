"""Who signed a request: OCI's version 1 of HTTP signatures, checked as the service checks it."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256

ALWAYS = ("date", "(request-target)", "host")
WITH_BODY = ("content-length", "content-type", "x-content-sha256")
MAX_SKEW_S = 300.0


class Unsigned(Exception):
    """Why the request is not taken for anybody's."""


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str  # path and query, as they were sent
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(slots=True)
class KeyRing:
    keys: dict[str, RSAPublicKey] = field(default_factory=dict)  # by tenancy/user/fingerprint, or by ST$token

    def signer_of(self, request: Request) -> str:
        parts = dict(re.findall(r'(\w+)="([^"]*)"', request.headers.get("authorization", "")))
        if not request.headers.get("authorization", "").startswith("Signature ") or parts.get("version") != "1":
            raise Unsigned("no Signature of version 1")
        signed = parts["headers"].split()
        is_object = request.target.startswith("/n/")  # whose body is not signed
        needed = ALWAYS + (WITH_BODY if request.method in ("POST", "PUT", "PATCH") and not is_object else ())
        if missing := [name for name in needed if name not in signed]:
            raise Unsigned(f"not signed: {', '.join(missing)}")
        key = self.keys.get(parts["keyId"])
        if key is None:
            raise Unsigned(f"no key {parts['keyId'][:80]}")
        if abs(parsedate_to_datetime(request.headers["date"]).timestamp() - time.time()) > MAX_SKEW_S:
            raise Unsigned("the clock is wrong")
        digest = base64.b64encode(hashlib.sha256(request.body).digest()).decode()
        if "x-content-sha256" in signed and request.headers["x-content-sha256"] != digest:
            raise Unsigned("another body than was signed")
        text = "\n".join(f"{name}: {self._value(request, name)}" for name in signed)
        try:
            key.verify(base64.b64decode(parts["signature"]), text.encode(), PKCS1v15(), SHA256())
        except InvalidSignature:
            raise Unsigned("the signature is of another key") from None
        return parts["keyId"]

    def _value(self, request: Request, name: str) -> str:
        if name == "(request-target)":
            return f"{request.method.lower()} {request.target}"
        return request.headers[name]
