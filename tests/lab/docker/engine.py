"""A docker engine and an image for tests, without a registry: Debian with Python, and Everstep from this very checkout.

Its Python and its virtual environment are mounted from this machine, at their own paths."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from io import BytesIO
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from everstep.platforms.docker import compose
from lab.required import missing

LAB = Path(__file__).parent
ROOT = Path(__file__).parents[3]
_KEPT = Path(os.environ.get("EVERSTEP_LAB", "~/.cache/everstep-lab")).expanduser()
BASE, IMAGE = "everstep-lab/debian-py:12", "everstep-lab/node:latest"
PYTHON = "everstep-lab/python:latest"  # a base for images that need no mounts
MOUNTED = tuple(dict.fromkeys((sys.prefix, sys.base_prefix, str(ROOT))))
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DOCKERFILE = f"""\
FROM {BASE}
ENV PATH={sys.prefix}/bin:{_PATH} PYTHONPATH={ROOT} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
ENTRYPOINT ["everstep", "entry"]
"""


@contextmanager
def running_engine() -> Iterator[Mapping[str, str]]:
    """What commands need in their environment to reach it. One that was there stays."""
    was_there = _answers({}) or _answers({"DOCKER_HOST": f"unix://{_KEPT / 'docker' / 'docker.sock'}"})
    done = subprocess.run([LAB / "up"], stdout=subprocess.PIPE, text=True, timeout=600)
    if done.returncode != 0:
        missing("docker engine", "see tests/lab/docker/up")
    env = {"DOCKER_HOST": done.stdout.strip()} if done.stdout.strip() else {}
    try:
        docker(env, "build", "--quiet", "--tag", IMAGE, "-", text=DOCKERFILE)
        yield env
    finally:
        if not was_there:
            subprocess.run([LAB / "down"], check=True, timeout=240)


def make_python_base(env: Mapping[str, str]) -> str:
    """Debian with this machine's Python, pip and all that `everstep[torch]` needs, but not Everstep: no package index
    is needed to install it."""
    with tempfile.TemporaryFile() as file:
        with tarfile.open(fileobj=file, mode="w") as tar:
            python = f"python{sys.version_info.major}.{sys.version_info.minor}"
            where = f"ENV PATH=/opt/python/bin:{_PATH} LD_LIBRARY_PATH=/opt/python/lib"
            _add(tar, "Dockerfile", f"FROM {BASE}\nCOPY python /opt/python\n{where}\n")
            prefix = Path(sys.base_prefix)
            for path in (prefix / "bin" / "python3", prefix / "bin" / python, *prefix.glob("lib/libpython*.so*")):
                tar.add(path, f"python/{path.relative_to(prefix)}")
            tar.add(prefix / "lib" / python, f"python/lib/{python}", filter=_without_packages)
            site = f"python/lib/{python}/site-packages"
            for each in needed(distribution("pip"), *_dependencies("everstep", {"torch"})):
                for path in each.files or ():
                    if path.parts[0] != ".." and (found := Path(str(each.locate_file(path)))).is_file():
                        tar.add(found, f"{site}/{path}")
        file.seek(0)
        command = ["docker", "build", "--quiet", "--tag", PYTHON, "-"]
        subprocess.run(command, env={**os.environ, **env}, stdin=file, check=True, timeout=1200)
    return PYTHON


def needed(*first: Distribution) -> list[Distribution]:
    """These and all that they need."""
    found: dict[str, Distribution] = {}
    left = list(first)
    while left:
        each = left.pop()
        if each.metadata["Name"] not in found:
            found[each.metadata["Name"]] = each
            left += _dependencies(each.metadata["Name"], set())
    return list(found.values())


def _dependencies(name: str, extras: set[str]) -> list[Distribution]:
    found = []
    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in (extras or {""})):
            try:
                found.append(distribution(requirement.name))
            except PackageNotFoundError:  # an extra of another platform
                continue
    return found


def _without_packages(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    is_package = "/site-packages/" in info.name or "__pycache__" in info.name or info.name.endswith(".a")
    return None if is_package or "/test/" in info.name else info


def _add(tar: tarfile.TarFile, name: str, text: str) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(text.encode())
    tar.addfile(info, BytesIO(text.encode()))


def docker(env: Mapping[str, str], *words: str, text: str = "") -> str:
    done = subprocess.run(
        ["docker", *words], env={**os.environ, **env}, input=text, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, f"docker {words}: {done.stderr}"
    return done.stdout


def leftovers(env: Mapping[str, str], project: str) -> list[str]:
    label = ["--filter", f"label=com.docker.compose.project={project}", "--quiet"]
    return [
        f"{kind} {each}"
        for kind, words in (
            ("container", ["ps", "--all"]),
            ("network", ["network", "ls"]),
            ("volume", ["volume", "ls"]),
        )
        for each in docker(env, *words, *label).split()
    ]


def compose_up(env: Mapping[str, str], folder: Path, project: str, *files: Path) -> tuple[int, str]:
    """`docker compose up` until all containers have ended; then nothing of them is left."""
    command = [*compose(), "-p", project, *(part for file in files for part in ("-f", str(file)))]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        outer = {**os.environ, **env}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.run([*command, *words], cwd=folder, env=outer, timeout=800, **pipes)

    try:
        done = run("up")
    finally:
        run("down", "--volumes", "--timeout", "1")
    return done.returncode, done.stdout


def mounts() -> list[str]:
    return [f"{folder}:{folder}:ro" for folder in MOUNTED]


def job_here() -> dict[str, Any]:
    """What a job file needs for the image."""
    lab = {"volumes": mounts()}
    return {"image": IMAGE, "platform": {"compose": {"raw": {"services": {"coordinator": lab, "node": lab}}}}}


def _answers(env: Mapping[str, str]) -> bool:
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        return subprocess.run(command, env={**os.environ, **env}, capture_output=True, timeout=120).returncode == 0
    except FileNotFoundError:
        missing("docker command", "apt-get install docker.io docker-compose debootstrap")
