"""Secrets from an OCI vault, read by a node as its own job run (resource principal)."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from everstep.platforms.oci.access import open_access, told


def read_secrets(wanted: Mapping[str, str], endpoint: str) -> dict[str, str]:
    """`wanted`: OCIDs by the names of variables."""
    if not wanted:
        return {}
    opened = open_access("resource_principal", "", endpoint)
    with told("open the Vault service"):
        client = opened.secrets()
    found = {}
    for name, ocid in wanted.items():
        with told(f"read the secret {name} ({ocid})"):
            content = client.get_secret_bundle(ocid).data.secret_bundle_content.content
        found[name] = base64.b64decode(content).decode()
    return found
