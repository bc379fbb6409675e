"""`everstep build`: the job's image by docker, and pushed if asked. Its name goes to stdout, all else to stderr."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from everstep.errors import PermanentError, UsageError
from everstep.job_file.load import load_file
from everstep.job_file.schema import Build, Job
from everstep.platforms.image import found_dockerfile, plan_build
from everstep.platforms.own_wheel import wheels_in
from everstep.process import Child

_JOB_FILES = ("job.yaml", "train.yaml")


def build(
    file: Path | None,
    *,
    name: str | None,
    tag: str | None,
    dockerfile: str | None,
    arguments: Sequence[str],
    pushes: bool,
    is_dry: bool,
) -> int:
    job = _job(file)
    plan = plan_build(
        job,
        name=name,
        tag=tag,
        dockerfile=dockerfile or found_dockerfile(job, Path.cwd()),
        arguments=arguments,
        pushes=pushes,
        environ=os.environ,
    )
    commands = [plan.build, *([] if plan.push is None else [plan.push])]
    if is_dry:
        typer.echo("\n".join(map(shlex.join, commands)))
        return 0
    with wheels_in(Path((job.build or Build()).context)):
        for command in commands:
            _run(command)
    typer.echo(plan.image)
    return 0


def _job(file: Path | None) -> Job:
    path = file or next((Path(name) for name in _JOB_FILES if Path(name).exists()), None)
    return Job(entrypoint=("train.py",), name=Path.cwd().name) if path is None else load_file(path).job


def _run(command: Sequence[str]) -> None:
    typer.echo(f"everstep: {shlex.join(command)}", err=True)
    with Child.start(command, env=os.environ, output=sys.stderr.fileno()) as child:
        ended = child.wait()
    if ended is not None and ended.code == 127:
        raise UsageError("there is no docker command here", hint="install Docker")
    if ended is None or not ended.is_good:
        raise PermanentError(f"{' '.join(command[:2])} failed: {ended}", hint="what it said stands above")
