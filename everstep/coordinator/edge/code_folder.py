"""The folder with the code of experiments and jobs: tarballs by their SHA-256, for their owner only."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

from everstep.coordinator.roster.facts import SHA256
from everstep.errors import Refused
from everstep.storage import private_file
from everstep.storage.database import sqlite_path


def code_folder_beside(store_url: str) -> Path | None:
    """For a coordinator that was given none."""
    path = sqlite_path(store_url)
    return Path(f"{path}.code") if path else None


def code_path(folder: Path | None, digest: str) -> Path | None:
    return folder / f"code-{digest}.tar.gz" if folder is not None and re.fullmatch(SHA256, digest) else None


async def keep_code(folder: Path | None, digest: str, content: AsyncIterator[bytes]) -> None:
    """Written aside, and in its place only if it is what its name says. A repeated upload changes nothing."""
    if not re.fullmatch(SHA256, digest):
        raise Refused(f"{digest[:64]!r} is not a SHA-256 in hexadecimal", status=422, code="parameter-invalid")
    if (path := code_path(folder, digest)) is None:
        raise Refused(
            "this coordinator has no folder for code: start it with --code DIR (everstep serve)", code="code-no-folder"
        )
    private_file.make_folder(path.parent)
    found = hashlib.sha256()
    try:
        with private_file.replacing(path, is_durable=True) as file:
            async for part in content:
                found.update(part)
                await asyncio.to_thread(file.write, part)
            if found.hexdigest() != digest:
                raise Refused(
                    f"the code's SHA-256 is {found.hexdigest()}, not {digest}: send it again",
                    status=422,
                    code="code-digest",
                )
    except OSError as error:
        raise Refused(f"cannot keep the code in {path.parent}: {error.strerror}", code="code-not-kept") from None
