"""`everstep init`: the files of a new project, runnable as they are. What is there already stays, unless forced."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import typer

from everstep.errors import UsageError
from everstep.job_file.platform_options import check_platform
from everstep.job_file.schema import Job

FRAMEWORKS = ("pytorch",)
_TEMPLATES = Path(__file__).parents[1] / "templates"
_FIRST = {"compose": "everstep build && ", "kubernetes": "everstep build --push && "}
_ADS_FILES = ("train.py", ".dockerignore")  # of the usual ones, what ADS's layout has too


def init(folder: Path, *, framework: str, platform: str | None, is_forced: bool) -> int:
    if framework not in FRAMEWORKS:
        raise UsageError(f"--framework={framework} is not known", hint="pytorch")
    if platform is not None:
        check_platform(platform)
    name = Job(entrypoint=("train.py",), name=re.sub(r"[^\w.-]", "-", folder.resolve().name)).slug
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file, not a folder", hint="everstep init FOLDER")
    job = "train.yaml" if platform == "oci" else "job.yaml"
    others = [
        path
        for path, text in _project(framework, platform or "local")
        if not _write(folder / path, text.replace("@NAME@", name), is_forced=is_forced)
    ]
    if Path(job) in others:
        typer.echo(f"everstep: {folder / job} is not the one that you have asked for: --force overwrites it", err=True)
        return 1
    there = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    where = " --platform local" if platform == "oci" else ""
    first = _FIRST.get(platform or "", "")
    typer.echo(f"everstep: now: {there}{first}everstep run -f {job}{where} --follow", err=True)
    if platform == "kubernetes":
        typer.echo("everstep: before that, give job.yaml an `image` of a registry that the cluster reads", err=True)
    return 0


def _project(framework: str, platform: str) -> Iterator[tuple[Path, str]]:
    """Paths and contents."""
    usual = _below(_TEMPLATES / framework)
    if platform == "oci":
        yield from ((path, text) for path, text in usual if path.name in _ADS_FILES)
        yield from _below(_TEMPLATES / "oci")
        return
    more = (_TEMPLATES / "platforms" / f"{platform}.yaml").read_text(encoding="utf-8")
    for path, text in usual:
        if platform == "kubernetes" and path.name == "requirements.txt":
            text = text.replace("everstep[torch]", "everstep[torch,kubernetes]")  # the coordinator makes pods
        yield path, text + more if path.name == "job.yaml" else text


def _below(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            name = re.sub("^dot-", ".", path.name)
            yield path.with_name(name).relative_to(folder), path.read_text(encoding="utf-8")


def _write(path: Path, text: str, *, is_forced: bool) -> bool:
    """Whether it is there now, with this text."""
    is_there = path.exists()
    if is_there and not is_forced:
        same = path.is_file() and path.read_text(errors="replace") == text
        left = "is there already" if same else "is another already, and left as it is: --force overwrites it"
        typer.echo(f"everstep: {path} {left}", err=True)
        return same
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755 if text.startswith("#!") else 0o644)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint="a folder that you may write to") from None
    typer.echo(str(path))
    return True
