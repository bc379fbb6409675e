"""Everstep itself as a wheel for an image, if the package index does not have this version.

That is the case where it runs from a checkout, or was installed from a wheel file."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from urllib.parse import unquote, urlsplit

from everstep.errors import PermanentError
from everstep.process import ask

FOLDER = "everstep-wheels"  # of the build context; the templates' Dockerfiles install what is in it
_BUILD_S = 600.0
_PARTS = ("everstep", "pyproject.toml", "README.md", "LICENSE")


@contextmanager
def wheels_in(context: Path) -> Iterator[None]:
    """Keep the wheel, if one is needed, in the build context while this is open."""
    folder = context / FOLDER
    try:
        place_wheel(folder)
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def place_wheel(folder: Path) -> bool:
    """Whether one was needed."""
    checkout = Path(__file__).parents[2]
    if (checkout / "pyproject.toml").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        _build(checkout, folder)
        return True
    if (wheel := _installed_from()) is not None:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(wheel, folder)
        return True
    return False


def _build(checkout: Path, folder: Path) -> None:
    """From a copy: setuptools writes beside what it builds."""
    with tempfile.TemporaryDirectory(prefix="everstep-wheel-") as copied:
        for name in _PARTS:
            if (checkout / name).is_dir():
                ignore = shutil.ignore_patterns("__pycache__")
                shutil.copytree(checkout / name, Path(copied, name), ignore=ignore)
            elif (checkout / name).exists():
                shutil.copy(checkout / name, copied)
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder)]
        answer = ask([*command, *_isolation(), copied], timeout_s=_BUILD_S)
    if not answer.exit.is_good:
        raise PermanentError(
            f"could not build Everstep's wheel from {checkout}: {answer.errors.strip()[-2000:]}",
            hint="pip must be installed, and reach a package index that has setuptools",
            code="own-wheel-failed",
        )


def _isolation() -> list[str]:
    """With a setuptools that is recent enough, no package index is needed."""
    try:
        return ["--no-build-isolation"] if int(version("setuptools").partition(".")[0]) >= 77 else []
    except PackageNotFoundError:
        return []


def _installed_from() -> Path | None:
    """The wheel file that this installation came from, if it still exists."""
    try:
        url = str(json.loads(distribution("everstep").read_text("direct_url.json") or "{}").get("url", ""))
    except PackageNotFoundError:
        return None
    path = Path(unquote(urlsplit(url).path))
    return path if url.startswith("file:") and path.suffix == ".whl" and path.is_file() else None
