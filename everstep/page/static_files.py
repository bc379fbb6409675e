"""The files of the page: found once, compressed once, and named so that a browser keeps them until they change.

`index.html` names the others as `/static/FILE`. It is sent with `/static/VERSION/FILE` instead: this address is
cached for good, because another version of any file gives other addresses. Only files that are in the folder when it
is listed can be asked for, so a path cannot lead out of it. Knows nothing of sessions or of the coordinator."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FOLDER = Path(__file__).parent / "static"
VENDOR = "vendor"  # the folder of third-party scripts; if one of them is there, all are
NEEDED = f"{VENDOR}/preact.js"
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
_FOREVER = "public, max-age=31536000, immutable"
_ASK = "no-cache"  # may be kept, and asked about each time
_INCOMPLETE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Everstep</title>
<h1>The page's scripts are missing</h1>
<p>Run <code>make setup</code> in the checkout (it needs Node.js with npm), then reload this page.
A released wheel contains them. Everything else works: <code>everstep status</code>, <code>everstep metrics</code> and
<code>everstep logs</code>.</p>
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

    def reply(self, path: str, headers: Mapping[bytes, bytes]) -> Reply | None:
        """To a GET of this path; None: no file has this name."""
        versioned = f"{PREFIX}{self._version}/"
        if path.startswith(versioned) and (name := path[len(versioned) :]) and name in self._files:
            return _reply(self._files[name], headers, _FOREVER)  # never changes, so the disk need not be read
        paths = self._look()
        if not path.startswith(PREFIX):
            if "." in path.rsplit("/", 1)[-1] and not path.startswith("/jobs/"):  # a job's name may have a dot
                return None
            return _reply(self._index(paths), headers, _ASK)  # an address of a view, which the script reads
        name, is_versioned = path[len(PREFIX) :], False
        if name.startswith(f"{self._version}/"):
            name, is_versioned = name[len(self._version) + 1 :], True
        if name not in paths:
            return None
        return _reply(self._file(name, paths[name]), headers, _FOREVER if is_versioned else _ASK)

    def _look(self) -> dict[str, Path]:
        """The files that there are now: in a checkout, one may have been edited."""
        found = sorted(each for each in self._folder.rglob("*") if each.suffix in _KINDS and each.is_file())
        paths = {each.relative_to(self._folder).as_posix(): each for each in found}
        marks = [(name, each.stat().st_mtime_ns, each.stat().st_size) for name, each in paths.items()]
        version = hashlib.sha256(repr(marks).encode()).hexdigest()[:16]
        if version != self._version:
            self._version, self._files = version, {}
        return paths

    def _index(self, paths: Mapping[str, Path]) -> StaticFile:
        if NEEDED not in paths or "index.html" not in paths:
            return _file(_INCOMPLETE.encode(), ".html")
        if "" not in self._files:
            plain = paths["index.html"].read_bytes()
            named = plain.replace(f'"{PREFIX}'.encode(), f'"{PREFIX}{self._version}/'.encode())
            self._files[""] = _file(named, ".html")
        return self._files[""]

    def _file(self, name: str, path: Path) -> StaticFile:
        if name not in self._files:
            self._files[name] = _file(path.read_bytes(), path.suffix)
        return self._files[name]


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
