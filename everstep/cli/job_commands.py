"""Commands for job files and submitted jobs, and those that platforms call. What they do is imported in the call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from everstep.cli import options as opt

jobs = typer.Typer()
_COMMAND_LAST: dict[str, Any] = {"allow_interspersed_args": False}


@jobs.command(no_args_is_help=True)
def convert(source: opt.JobSource, changes: opt.Changes = None) -> None:
    """Print a job file of ADS, Determined or DLRover, or a command of ElasticDL, as a job file of Everstep."""
    from everstep.cli.job_file_commands import convert

    raise typer.Exit(convert(source, changes or []))


@jobs.command()
def schema() -> None:
    """Print the JSON schema of the job file."""
    from everstep.cli.job_file_commands import print_schema

    raise typer.Exit(print_schema())


@jobs.command(context_settings={"ignore_unknown_options": False}, hidden=True)
def node(
    order: opt.OrderText,
    coordinator: opt.OptionalCoordinatorUrl = None,
    token_file: opt.TokenFile = None,
    ca_file: opt.CaFile = None,
    name: opt.NodeName = None,
    node_rank: opt.NodeRank = None,
    log_dir: opt.LogDir = Path("runs"),
    address: opt.Address = None,
    deadline: opt.Deadline = None,
) -> None:
    """Be one node of a submitted job: fetch its code, run its setup lines, start its workers. Platforms call it."""
    from everstep.jobs.node import NodeRequest, run_node

    request = NodeRequest(
        order=order,
        coordinator_url=coordinator,
        token_file=token_file,
        name=name,
        node_rank=node_rank,
        log_dir=log_dir,
        address=address,
        deadline=deadline,
    )
    raise typer.Exit(run_node(request))


@jobs.command(hidden=True, context_settings=_COMMAND_LAST)
def entry(
    command: opt.ContainerCommand = None,
    order: opt.OptionalOrderText = None,
    coordinator: opt.OptionalCoordinatorUrl = None,
    token_file: opt.TokenFile = None,
    ca_file: opt.CaFile = None,
    name: opt.NodeName = None,
    log_dir: opt.LogDir = Path("runs"),
    address: opt.Address = None,
    deadline: opt.Deadline = None,
) -> None:
    """Be the node that this container's environment speaks of, or run COMMAND. Our image's entry point."""
    from everstep.jobs.entry import EntryRequest, run_entry

    request = EntryRequest(
        command=tuple(command or ()),
        order=order,
        coordinator_url=coordinator,
        token_file=token_file,
        name=name,
        log_dir=log_dir,
        address=address,
        deadline=deadline,
    )
    raise typer.Exit(run_entry(request, lambda line: typer.echo(f"everstep: {line}", err=True)))


@jobs.command(hidden=True)
def coordinate(
    order: opt.OrderText,
    folder: opt.JobFolder,
    host: opt.ListenHost = "127.0.0.1",
    port: opt.ListenPort = 0,
    token_file: opt.TokenFile = None,
    fleet: opt.FleetName = "none",
) -> None:
    """Be the coordinator of a submitted job, from its creation to its end. Platforms call it."""
    from everstep.jobs.coordinate import CoordinateRequest, run_coordinate

    request = CoordinateRequest(order=order, folder=folder, host=host, port=port, token_file=token_file, fleet=fleet)
    raise typer.Exit(run_coordinate(request, lambda line: typer.echo(f"everstep: {line}", err=True)))


@jobs.command()
def init(
    folder: opt.ProjectFolder = Path(),
    framework: opt.Framework = "pytorch",
    platform: opt.ProjectPlatform = None,
    force: opt.IsForced = False,
) -> None:
    """Write the files of a new project: script, job file, Dockerfile and more, runnable as they are."""
    from everstep.cli.init import init

    raise typer.Exit(init(folder, framework=framework, platform=platform, is_forced=force))


@jobs.command()
def build(
    file: opt.BuildFile = None,
    image: opt.ImageName = None,
    tag: opt.ImageTag = None,
    dockerfile: opt.DockerfilePath = None,
    build_arg: opt.BuildArguments = None,
    push: opt.IsPushed = False,
    dry_run: opt.IsDryBuild = False,
) -> None:
    """Build the job's image with docker. Prints its name."""
    from everstep.cli.build import build

    arguments = build_arg or []
    raise typer.Exit(
        build(file, name=image, tag=tag, dockerfile=dockerfile, arguments=arguments, pushes=push, is_dry=dry_run)
    )


@jobs.command(no_args_is_help=True)
def watch(job: opt.SubmittedJob) -> None:
    """Follow a submitted job until its end. Exit code 0 if it succeeds. Ctrl-C stops watching, not the job."""
    from everstep.cli.submitted import leave, watch

    leave(watch(job))


@jobs.command(no_args_is_help=True)
def logs(
    job: opt.SubmittedJob, rank: opt.LogRank = None, worker: opt.LogWorker = None, follow: opt.IsFollowed = False
) -> None:
    """Print what a submitted job has printed."""
    from everstep.cli.submitted import leave, print_logs

    leave(print_logs(job, rank=rank, worker=worker, follows=follow))


@jobs.command("list")
def list_jobs(json: opt.IsJson = False) -> None:
    """List the jobs that you have submitted, newest first."""
    from everstep.cli.submitted import list_jobs

    raise typer.Exit(list_jobs(is_json=json))


@jobs.command("show-config", no_args_is_help=True)
def show_config(job: opt.OptionalSubmittedJob = None, file: opt.InfoFile = None) -> None:
    """Show a submitted job as a job file, and where its parts are; by its id, or by what `run` printed (-f)."""
    from everstep.cli.submitted import show_config

    raise typer.Exit(show_config(job, file))


@jobs.command(no_args_is_help=True)
def scale(job: opt.SubmittedJob, nodes: opt.NumNodes) -> None:
    """Change the number of nodes of a running job."""
    from everstep.cli.submitted import scale

    raise typer.Exit(scale(job, nodes))


@jobs.command(no_args_is_help=True)
def cancel(job: opt.SubmittedJob) -> None:
    """End a submitted job, and clean up what is left of it."""
    from everstep.cli.submitted import cancel

    raise typer.Exit(cancel(job))
