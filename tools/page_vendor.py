"""Build the page's scripts: everstep/page/static/*.js and the packages of package-lock.json, joined by esbuild.

    python tools/page_vendor.py            build if a script or the lock file has changed since the last time
    python tools/page_vendor.py --check    only say whether that is needed

npm compares each package with its hash in the lock file; which registry it asks is its own configuration. A browser
loads one file for each part that it starts by itself: the page, the worker that all tabs share, uPlot, which only
views with plots need, and each view that the page imports when it is opened. What several of them need is in files
beside them. None of it is committed: the wheel contains these files, with the packages' licenses."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STATIC = ROOT / "everstep" / "page" / "static"
BUILT = STATIC / "built"
LOCK = ROOT / "package-lock.json"
STAMP = "built_from.txt"
LONGEST_S = 300

PARTS = (  # a built file's name, without its ending, and what it is built from
    "main=./main.js",
    "stream_worker=./stream_worker.js",
    "uplot=uplot",
    "uplot=uplot/dist/uPlot.min.css",
)
OPTIONS = (
    *("--bundle", "--minify", "--format=esm", "--target=es2022", "--legal-comments=none", "--log-level=warning"),
    *("--splitting", "--chunk-names=part-[name]-[hash]"),  # a file for each view that is imported when it is opened
)


def is_fresh() -> bool:
    try:
        return (BUILT / STAMP).read_text() == _stamp()
    except OSError:
        return False


def _stamp() -> str:
    """The digest of each file that decides about the result. The server reads it too, to notice later changes."""
    files = [*_sources(), LOCK, Path(__file__)]
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def _sources() -> list[Path]:
    return sorted(STATIC.glob("*.js"))


def build() -> None:
    """All of it, or nothing changes."""
    stamp = _stamp()  # before reading: what is edited meanwhile is built again next time
    with tempfile.TemporaryDirectory(prefix="everstep-page-") as name:
        folder = Path(name)
        for path in _sources():
            shutil.copy(path, folder)
        if is_as_locked(ROOT / "node_modules"):
            (folder / "node_modules").symlink_to(ROOT / "node_modules")
        else:
            _install(folder)
        bundle(folder)
        (folder / "out" / "LICENSES.txt").write_text(_licenses(folder / "node_modules"))
        (folder / "out" / STAMP).write_text(stamp)
        _replace(folder / "out", BUILT)


def is_as_locked(modules: Path) -> bool:
    """npm writes down what it has installed, which leaves out the packages for other platforms."""
    try:
        installed = json.loads((modules / ".package-lock.json").read_text())["packages"]
    except (OSError, ValueError):
        return False
    locked = {name: each for name, each in _locked().items() if name in installed or not each.get("optional")}
    return {name: each.get("integrity") for name, each in installed.items()} == {
        name: each["integrity"] for name, each in locked.items()
    }


def _locked() -> dict[str, dict[str, object]]:
    packages: dict[str, dict[str, object]] = json.loads(LOCK.read_text())["packages"]
    return {name: each for name, each in packages.items() if name}  # "" is the page itself


def _install(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("npm is missing: cannot build the page's scripts\n  HINT: install Node.js with npm, then make page")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(ROOT / name, folder)
    if not _succeeds([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], folder):
        sys.exit("npm ci failed: cannot build the page's scripts\n  HINT: can npm reach its registry?")


def bundle(folder: Path) -> None:
    """From the scripts in this folder and the packages in its node_modules to files in its `out`."""
    if not _succeeds([folder / "node_modules" / ".bin" / "esbuild", *PARTS, *OPTIONS, "--outdir=out"], folder):
        sys.exit("esbuild failed: the page's scripts are as they were\n  HINT: see its message above")


def _succeeds(command: Sequence[str | Path], folder: Path) -> bool:
    environ = {key: value for key, value in os.environ.items() if key != "NODE_PATH"}  # packages of nowhere else
    try:
        return subprocess.run(command, cwd=folder, env=environ, timeout=LONGEST_S).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _licenses(modules: Path) -> str:
    """Of the packages that are part of the result; those for development only are not."""
    names = [name.removeprefix("node_modules/") for name, each in _locked().items() if not each.get("dev")]
    return "\n\n".join(_license(modules / name, name) for name in names)


def _license(package: Path, name: str) -> str:
    found = next((each for each in sorted(package.iterdir()) if each.name.upper().startswith("LICEN")), None)
    return f"{name}\n\n{found.read_text().strip() if found else 'see its package.json'}"


def _replace(made: Path, place: Path) -> None:
    near = Path(tempfile.mkdtemp(prefix=".built-", dir=place.parent))  # the same disk: a rename is all or nothing
    try:
        shutil.copytree(made, near, dirs_exist_ok=True)
        near.chmod(0o755)
        shutil.rmtree(place, ignore_errors=True)
        near.rename(place)
    except BaseException:  # beside `place`, it would be packed and served
        shutil.rmtree(near, ignore_errors=True)
        raise


def main() -> None:
    if "--check" in sys.argv:
        sys.exit(0 if is_fresh() else "the page's scripts are missing, or older than their sources\n  HINT: make page")
    if not is_fresh():
        build()


if __name__ == "__main__":
    main()
