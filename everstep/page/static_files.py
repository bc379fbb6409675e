"""The files of the page: found once, compressed once, and named so that a browser keeps them until they change.

`index.html` names the others as `/static/FILE`. It is sent with `/static/VERSION/FILE` instead: this address is
cached for good, because another version of any file gives other addresses. Browsers run the scripts in `built`, which
esbuild has made of those beside it (tools/page_vendor.py). Only files that are in the folder when it is listed can be
asked for, so a path cannot lead out of it. Knows nothing of sessions or of the coordinator."""

from __future__ import annotations

import gzip
import hashlib
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

log = logging.getLogger(__name__)

FOLDER = Path(__file__).parent / "static"
NEEDED = "built/main.js"  # if it is there, all that is built is there
BUILT_FROM = "built/built_from.txt"  # a line for each script, as sha256sum writes it
PREFIX = "/static/"

_KINDS = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}
_PACKED = {".png", ".woff2"}  # already
_NAMED = ("/jobs/", "/pools/", "/queue/", "/models/")  # the names that follow may have dots
_FOREVER = "public, max-age=31536000, immutable"
_ASK = "no-cache"  # may be kept, and asked about each time
_INCOMPLETE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Everstep</title>
<h1>The page's scripts are missing</h1>
<p>They were not built when Everstep was installed. Install Node.js with npm, and install Everstep again from the
checkout; in an editable installation, <code>make page</code> is enough. Then start the run again. Everything else
works: <code>everstep status</code>, <code>everstep metrics</code> and <code>everstep logs</code>.</p>
"""


@dataclass(frozen=True)
class StaticFile:
    content: bytes
    kind: str
    etag: str
    is_packed: bool = False

    @cached_property
    def packed(self) -> bytes | None:
        """With gzip, where that is smaller."""
        found = None if self.is_packed else gzip.compress(self.content, 9, mtime=0)
        return found if found is not None and len(found) < len(self.content) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes = b""


class StaticFiles:
    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._version = ""
        self._files: dict[str, StaticFile] = {}

    def kept(self, path: str, headers: Mapping[bytes, bytes]) -> Reply | None:
        """To a GET of a file that was asked for before, by an address that never changes: the disk is not read."""
        versioned = f"{PREFIX}{self._version}/"
        name = path[len(versioned) :] if path.startswith(versioned) else ""
        return _reply(self._files[name], headers, _FOREVER) if name and name in self._files else None

    def reply(self, path: str, headers: Mapping[bytes, bytes]) -> Reply | None:
        """To a GET of this path; None: no file has this name."""
        paths = self._look()
        if not path.startswith(PREFIX):
            if "." in path.rsplit("/", 1)[-1] and not path.startswith(_NAMED):
                return None
            return _reply(self._index(paths), headers, _ASK)  # an address of a view, which the script reads
        name, is_versioned = path[len(PREFIX) :], False
        if name.startswith(f"{self._version}/"):
            name, is_versioned = name[len(self._version) + 1 :], True
        if name not in paths:
            return None
        return _reply(self._file(name, paths), headers, _FOREVER if is_versioned else _ASK)

    def _look(self) -> dict[str, Path]:
        """The files that there are now: in a checkout, one may have been edited."""
        found = sorted(_entries(self._folder, ""))
        version = hashlib.sha256(repr(found).encode()).hexdigest()[:16]
        paths = {name: self._folder / name for name, *_ in found}
        if version != self._version:
            self._version, self._files = version, {}
            if changed := _changed(paths):
                log.warning("the page is older than its scripts %s: run make page", ", ".join(changed))
        return paths

    def _index(self, paths: Mapping[str, Path]) -> StaticFile:
        if NEEDED not in paths or "index.html" not in paths:
            return _file(_INCOMPLETE.encode(), ".html")
        if "" not in self._files:
            plain = paths["index.html"].read_bytes()
            named = plain.replace(f'"{PREFIX}'.encode(), f'"{PREFIX}{self._version}/'.encode())
            self._files[""] = _file(named, ".html")
        return self._files[""]

    def _file(self, name: str, paths: Mapping[str, Path]) -> StaticFile:
        if name not in self._files:
            self._files[name] = _file(paths[name].read_bytes(), paths[name].suffix)
        return self._files[name]


def _entries(folder: Path, prefix: str) -> Iterator[tuple[str, int, int]]:
    """Each file's name, its time and its size. Not by `rglob`, which takes ten times as long."""
    with os.scandir(folder) as found:
        for each in found:
            if each.is_dir():
                yield from _entries(folder / each.name, f"{prefix}{each.name}/")
            elif os.path.splitext(each.name)[1] in _KINDS and each.is_file():
                yield f"{prefix}{each.name}", each.stat().st_mtime_ns, each.stat().st_size


def _changed(paths: Mapping[str, Path]) -> list[str]:
    """The scripts that are not those that the page was built from; by their digests, because installing a wheel gives
    files any times."""
    if BUILT_FROM not in paths:
        return []
    known = set(paths[BUILT_FROM].read_text().splitlines())
    scripts = [path for name, path in paths.items() if path.suffix == ".js" and "/" not in name]
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in scripts}
    return [name for name, digest in digests.items() if f"{digest}  {name}" not in known]


def _file(content: bytes, suffix: str) -> StaticFile:
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return StaticFile(content, _KINDS[suffix], etag, suffix in _PACKED)


def _reply(file: StaticFile, headers: Mapping[bytes, bytes], caching: str) -> Reply:
    etag = file.etag.encode()
    always = (
        (b"content-type", file.kind.encode()),
        (b"etag", etag),
        (b"cache-control", caching.encode()),
        (b"vary", b"accept-encoding"),
    )
    known = [each.strip().removeprefix(b"W/") for each in headers.get(b"if-none-match", b"").split(b",")]
    if etag in known:
        return Reply(status=304, headers=always)
    takes_gzip = b"gzip" in headers.get(b"accept-encoding", b"")
    if takes_gzip and file.packed is not None:
        encoded = (b"content-encoding", b"gzip")
        return Reply(status=200, headers=(*always, encoded, _length(file.packed)), body=file.packed)
    return Reply(status=200, headers=(*always, _length(file.content)), body=file.content)


def _length(body: bytes) -> tuple[bytes, bytes]:
    return b"content-length", b"%d" % len(body)
