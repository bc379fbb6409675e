#!/usr/bin/env python3
"""mkimage.py NAME:TAG OUT.tar FOLDER [CONFIG]: a folder as a container image of one layer, in `docker load`'s form.

No daemon is needed. CONFIG is JSON, such as {"Entrypoint": ["/pause"]}."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import sys
import tarfile
from pathlib import Path

ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def write_image(name: str, out: Path, root: Path, config: dict[str, object]) -> None:
    layer, aside = Path(f"{out}.layer"), Path(f"{out}.part")
    with tarfile.open(layer, "w") as tar:
        for entry in sorted(os.listdir(root)):
            tar.add(root / entry, arcname=entry)
    description = json.dumps(
        {
            "architecture": ARCHITECTURES[platform.machine()],
            "os": "linux",
            "created": "2026-01-01T00:00:00Z",
            "config": {"Env": [PATH], **config},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_digest(layer)}"]},
            "history": [{"created_by": "mkimage"}],
        }
    ).encode()
    config_name = hashlib.sha256(description).hexdigest() + ".json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(aside, "w") as tar:
        for member, content in (("manifest.json", manifest), (config_name, description)):
            info = tarfile.TarInfo(member)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        tar.add(layer, arcname="layer.tar")
    layer.unlink()
    aside.replace(out)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


if __name__ == "__main__":
    given = sys.argv[1:]
    write_image(given[0], Path(given[1]), Path(given[2]), json.loads(given[3]) if len(given) > 3 else {})
