"""`everstep init` writes a new project; `everstep build` makes its image with docker.

build prints the image's name on stdout, everything else on stderr."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from everstep import env
from everstep.cli.options import command, say
from everstep.errors import PermanentError, UsageError
from everstep.job_file.load import load_file
from everstep.job_file.platform_options import check_platform
from everstep.job_file.schema import Build, Job
from everstep.platforms.image import found_dockerfile, plan_build, wheels_in
from everstep.process import Child
from everstep.settings import setting

FRAMEWORKS = ("pytorch",)
_TEMPLATES = Path(__file__).parents[1] / "templates"
_FIRST = {"compose": "everstep build && ", "kubernetes": "everstep build --push && "}
_ADS_FILES = ("train.py", ".dockerignore")  # the usual files that ADS's layout has too
_JOB_FILES = ("job.yaml", "train.yaml")


@dataclass(frozen=True, kw_only=True)
class InitOptions:
    folder: Path = setting(Path(), "Folder of the project", is_argument=True, metavar="[DIR]")
    framework: str = setting("pytorch", "Framework of the training script", metavar="NAME")
    platform: str | None = setting(
        None, "Platform for the job file; oci writes files in the ADS layout", also=("-b",), metavar="NAME"
    )
    force: bool = setting(False, "Overwrite existing files")


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    file: Path | None = setting(
        None, "The job file; default: job.yaml or train.yaml, if there is one", also=("-f",), metavar="FILE"
    )
    image: str | None = setting(
        None,
        "Name of the image; default: from the job file, or the job's name",
        metavar="NAME",
        variables=("IMAGE_NAME",),
    )
    tag: str | None = setting(
        None,
        "Tag of the image; default: the tag in the image name, or latest",
        also=("-t",),
        metavar="TAG",
        variables=("TAG",),
    )
    dockerfile: str | None = setting(None, "Path of the Dockerfile; default: from the job file", metavar="FILE")
    build_arg: tuple[str, ...] = setting((), "Build argument for the Dockerfile; repeatable", metavar="KEY=VALUE")
    push: bool = setting(False, "Push the image too", also=("-p",))
    dry_run: bool = setting(False, "Print the commands without running them")


@command(InitOptions)
def init(options: InitOptions) -> int:
    """Write the files of a new project to DIR: script, job file, Dockerfile and more, ready to run. Keeps
    existing files unless you use --force."""
    folder, platform = options.folder, options.platform
    if options.framework not in FRAMEWORKS:
        raise UsageError(f"--framework={options.framework} is not known", hint="pytorch", code="framework-unknown")
    if platform is not None:
        check_platform(platform)
    name = Job(entrypoint=("train.py",), name=re.sub(r"[^\w.-]", "-", folder.resolve().name)).slug
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file", hint="everstep init FOLDER", code="project-folder-is-a-file")
    job = "train.yaml" if platform == "oci" else "job.yaml"
    others = [
        path
        for path, text in _project(options.framework, platform or "local")
        if not _write(folder / path, text.replace("@NAME@", name), is_forced=options.force)
    ]
    if Path(job) in others:
        say(f"{folder / job} is not the requested one: --force overwrites it")
        return 1
    there = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    where = " --platform local" if platform == "oci" else ""
    first = _FIRST.get(platform or "", "")
    say(f"now: {there}{first}everstep run -f {job}{where} --follow")
    if platform == "kubernetes":
        say("before that, give job.yaml an `image` in a registry that the cluster can read")
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
    """Whether the file now exists with this text."""
    is_there = path.exists()
    if is_there and not is_forced:
        same = path.is_file() and path.read_text(errors="replace") == text
        say(f"{path} exists already" + ("" if same else ", with other content, and was kept: --force overwrites it"))
        return same
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755 if text.startswith("#!") else 0o644)
    except OSError as error:
        hint = "choose a folder that you can write to"
        raise UsageError(f"{path}: {error.strerror}", hint=hint, code="project-file-not-written") from None
    click.echo(str(path))
    return True


# --- build ----------------------------------------------------------------------------------------


def build_image(options: BuildOptions) -> None:
    """Build the job's image with docker. Prints its name."""
    job = _job(options.file)
    plan = plan_build(
        job,
        name=options.image,
        tag=options.tag,
        dockerfile=options.dockerfile or found_dockerfile(job, Path.cwd()),
        arguments=options.build_arg,
        pushes=options.push,
        environ=env.everything(),
    )
    commands = [plan.build, *([] if plan.push is None else [plan.push])]
    if options.dry_run:
        click.echo("\n".join(map(shlex.join, commands)))
        return
    with wheels_in(Path((job.build or Build()).context)):
        for each in commands:
            _run(each)
    click.echo(plan.image)


def _job(file: Path | None) -> Job:
    path = file or next((Path(name) for name in _JOB_FILES if Path(name).exists()), None)
    return Job(entrypoint=("train.py",), name=Path.cwd().name) if path is None else load_file(path).job


def _run(words: Sequence[str]) -> None:
    if shutil.which(words[0]) is None:
        raise UsageError(f"there is no {words[0]} command here", hint="install Docker", code="docker-missing")
    say(shlex.join(words))
    with Child.start(words, env=env.everything(), output=sys.stderr.fileno()) as child:
        ended = child.wait()
    if ended is None or not ended.is_good:
        problem = f"{' '.join(words[:2])} failed: {ended}"
        raise PermanentError(problem, hint="its output is above", code="docker-build-failed")


COMMANDS = {"init": init, "build": command(BuildOptions, name="build")(build_image)}
