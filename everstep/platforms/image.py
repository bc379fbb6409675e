"""How docker builds and pushes an image: name, files, arguments; and Everstep itself as a wheel for it.

The wheel is needed if the package index does not have this version: where Everstep runs from a checkout, or was
installed from a wheel file."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from urllib.parse import unquote, urlsplit

from everstep.errors import PermanentError
from everstep.job_file.schema import Build, Job
from everstep.process import ask

ADS_DOCKERFILE = "oci_dist_training_artifacts/pytorch/v1/Dockerfile"
FOLDER = "everstep-wheels"  # of the build context; the templates' Dockerfiles install what is in it
_BUILD_S = 600.0
_PARTS = ("everstep", "tools", "pyproject.toml", "package.json", "package-lock.json", "README.md", "LICENSE")
# Docker passes the value of a variable that is only named, and does not keep these in the image.
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildPlan:
    image: str  # NAME:TAG
    build: tuple[str, ...]
    push: tuple[str, ...] | None


def plan_build(
    job: Job,
    *,
    environ: Mapping[str, str],
    name: str | None = None,
    tag: str | None = None,
    dockerfile: str | None = None,
    arguments: Sequence[str] = (),
    pushes: bool = False,
) -> BuildPlan:
    """Arguments override the job file."""
    build = job.build or Build()
    image = image_name(job, name=name, tag=tag)
    named = [each for name in _PROXIES for each in (name, name.upper()) if each in environ]
    passed = [*named, *(f"{key}={value}" for key, value in build.args.items()), *arguments]
    return BuildPlan(
        image=image,
        build=(
            "docker",
            "build",
            "--force-rm",  # a step that fails leaves no container behind
            *(part for argument in passed for part in ("--build-arg", argument)),
            *("--tag", image, "--file", dockerfile or build.dockerfile, build.context),
        ),
        push=("docker", "push", image) if pushes or build.push else None,
    )


def image_name(job: Job, *, name: str | None = None, tag: str | None = None) -> str:
    """NAME:TAG. A registry may have a port: text after the last colon is a tag only if no slash follows it."""
    given = name or job.image or job.slug
    base, colon, last = given.rpartition(":")
    if not colon or "/" in last:
        return f"{given}:{tag or 'latest'}"
    return f"{base}:{tag or last}"


def found_dockerfile(job: Job, folder: Path) -> str | None:
    """ADS's layout has its own path; None: the job file's."""
    is_elsewhere = job.build is None and not (folder / "Dockerfile").exists() and (folder / ADS_DOCKERFILE).exists()
    return ADS_DOCKERFILE if is_elsewhere else None


# --- the wheel ------------------------------------------------------------------------------------


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
