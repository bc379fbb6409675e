"""The `everstep` command: names, options and help of the subcommands. What they do is imported when one is called.

`--help` must answer at once on a login node, so nothing heavy is imported at the top."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

_SETTINGS: dict[str, Any] = {
    "token_normalize_func": lambda name: name.replace("_", "-"),  # torchrun's spelling works too
    "help_option_names": ["-h", "--help"],
}
_SCRIPT_LAST = {"allow_interspersed_args": False}  # what follows the script's name is the script's

app = typer.Typer(
    name="everstep",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=_SETTINGS,
)

CoordinatorUrl = Annotated[
    str, typer.Option("--coordinator", envvar="EVERSTEP_COORDINATOR", help="URL of the coordinator.", metavar="URL")
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file", envvar="EVERSTEP_TOKEN_FILE", help="File with the coordinator's token, readable by you alone."
    ),
]
JobId = Annotated[str, typer.Option("--job", envvar="EVERSTEP_JOB", help="The job's id.", metavar="ID")]
MaxRestarts = Annotated[
    int, typer.Option("--max-restarts", min=0, help="Replace so many workers of this node that died.")
]
LogDir = Annotated[
    Path, typer.Option("--log-dir", help="Logs, events and progress boards go to a folder in here, named by the job.")
]
Address = Annotated[
    str | None, typer.Option("--address", help="Where other nodes reach this one; found by itself if not given.")
]
ShutdownS = Annotated[
    float, typer.Option("--shutdown-s", "--shutdown-timeout", help="On SIGTERM, workers have so long to end.")
]
IsModule = Annotated[bool, typer.Option("--module", "-m", help="The script is the name of a module, as in python -m.")]
IsProgram = Annotated[bool, typer.Option("--no-python", help="The script is a program, to be run as it is.")]
KeepWarm = Annotated[
    float,
    typer.Option(
        "--keep-warm",
        min=0.0,
        help="Keep a process with torch imported for so many seconds: the next run starts at once.",
    ),
]
IsQuiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not repeat the workers' output here.")]
Script = Annotated[str, typer.Argument(help="The training script.", metavar="SCRIPT")]
Args = Annotated[list[str] | None, typer.Argument(help="Its arguments.", metavar="ARGS")]

POLICY = "How the coordinator decides"


def _policy_option(name: str, help_text: str) -> Any:
    return typer.Option(f"--{name}", help=help_text, rich_help_panel=POLICY)


MinWorkers = Annotated[int | None, _policy_option("min-workers", "Below this the job waits. Default: 1.")]
MaxWorkers = Annotated[int | None, _policy_option("max-workers", "More are spares. Default: no limit.")]
StartS = Annotated[float | None, _policy_option("start-s", "Wait so long for all workers at the start. Default: 60.")]
HeartbeatS = Annotated[
    float | None, _policy_option("heartbeat-s", "How often workers and agents speak up. Default: 1.")
]
LeaseS = Annotated[float | None, _policy_option("lease-s", "No proof of life for so long: lost. Default: 3.")]
ArriveS = Annotated[
    float | None, _policy_option("arrive-s", "After a loss, survivors have so long to arrive. Default: 2.")
]
StallS = Annotated[
    float | None, _policy_option("stall-s", "All wait for each other for so long: network cut. Default: 5.")
]
HangS = Annotated[
    float | None, _policy_option("hang-s", "One computes for so long while others wait: hung. Default: 600.")
]
FenceS = Annotated[float | None, _policy_option("fence-s", "Cut from the coordinator for so long: stop. Default: 600.")]
LeafDeaths = Annotated[
    int | None, _policy_option("leaf-deaths", "A leaf that killed so many stops the job. Default: 3.")
]


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from everstep import __version__

        typer.echo(f"everstep {__version__}")
        raise typer.Exit


@app.callback()
def everstep(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train PyTorch models on machines that come and go."""


@app.command(context_settings=_SCRIPT_LAST, no_args_is_help=True)
def run(
    script: Script,
    args: Args = None,
    nproc_per_node: Annotated[
        str, typer.Option("--nproc-per-node", help="Workers to start: a number, or auto, gpu, cpu.", metavar="N")
    ] = "1",
    max_restarts: MaxRestarts = 0,
    coordinator: Annotated[
        str | None,
        typer.Option(
            "--coordinator",
            envvar="EVERSTEP_COORDINATOR",
            help="URL of a coordinator; one is started for this run if not given.",
            metavar="URL",
        ),
    ] = None,
    token_file: TokenFile = None,
    job: Annotated[
        str | None, typer.Option("--job", help="The job's id; a new one if not given.", metavar="ID")
    ] = None,
    log_dir: LogDir = Path("runs"),
    address: Address = None,
    shutdown_s: ShutdownS = 30.0,
    module: IsModule = False,
    no_python: IsProgram = False,
    keep_warm: KeepWarm = 0.0,
    quiet: IsQuiet = False,
    min_workers: MinWorkers = None,
    max_workers: MaxWorkers = None,
    start_s: StartS = None,
    heartbeat_s: HeartbeatS = None,
    lease_s: LeaseS = None,
    arrive_s: ArriveS = None,
    stall_s: StallS = None,
    hang_s: HangS = None,
    fence_s: FenceS = None,
    leaf_deaths: LeafDeaths = None,
) -> None:
    """Train on this machine: start the workers of SCRIPT and keep the job going, whoever dies."""
    from everstep.launcher.node import num_processes, worker_command
    from everstep.launcher.starter import Starter

    command = tuple(worker_command(script, args or [], is_module=module, is_program=no_python))
    num_workers = num_processes(nproc_per_node)
    policy = {
        "min_workers": min_workers,
        "max_workers": max_workers,
        "start_s": start_s,
        "heartbeat_s": heartbeat_s,
        "lease_s": lease_s,
        "arrive_s": arrive_s,
        "stall_s": stall_s,
        "hang_s": hang_s,
        "fence_s": fence_s,
        "leaf_deaths": leaf_deaths,
    }
    # First of all: what it starts in the background takes longer than all that there is to do meanwhile.
    with Starter.open(command, num_workers=num_workers, outer=os.environ, keep_warm_s=keep_warm) as starter:
        from everstep.cli.run import RunRequest, run_job

        if nproc_per_node in ("gpu", "auto"):
            num_workers = num_processes(nproc_per_node, num_gpus=starter.num_gpus())
        request = RunRequest(
            command=command,
            name=script,
            num_workers=num_workers,
            max_restarts=max_restarts,
            coordinator_url=coordinator,
            token_file=token_file,
            job=job,
            log_dir=log_dir,
            address=address,
            shutdown_s=shutdown_s,
            is_quiet=quiet,
            policy={name: value for name, value in policy.items() if value is not None},
        )
        raise typer.Exit(run_job(request, starter))


@app.command(context_settings=_SCRIPT_LAST, no_args_is_help=True)
def agent(
    coordinator: CoordinatorUrl,
    job: JobId,
    script: Script,
    args: Args = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Workers to start on this node.")] = 1,
    name: Annotated[
        str | None, typer.Option("--name", help="This node's name, unique in the job; the host's and a number else.")
    ] = None,
    max_restarts: MaxRestarts = 0,
    token_file: TokenFile = None,
    log_dir: LogDir = Path("runs"),
    address: Address = None,
    shutdown_s: ShutdownS = 30.0,
    heartbeat_s: Annotated[float, typer.Option("--heartbeat-s", help="How often to speak up.")] = 1.0,
    module: IsModule = False,
    no_python: IsProgram = False,
    keep_warm: KeepWarm = 0.0,
    quiet: IsQuiet = False,
) -> None:
    """Add this node to a job that exists: start workers of SCRIPT here and watch them."""
    from everstep.launcher.node import worker_command
    from everstep.launcher.starter import Starter

    command = tuple(worker_command(script, args or [], is_module=module, is_program=no_python))
    starter = Starter.open(command, num_workers=workers, outer=os.environ, keep_warm_s=keep_warm)
    from everstep.cli.run import AgentRequest, run_agent

    request = AgentRequest(
        command=command,
        coordinator_url=coordinator,
        token_file=token_file,
        job=job,
        num_workers=workers,
        name=name,
        max_restarts=max_restarts,
        log_dir=log_dir,
        address=address,
        shutdown_s=shutdown_s,
        heartbeat_s=heartbeat_s,
        is_quiet=quiet,
    )
    with starter:
        raise typer.Exit(run_agent(request, starter))


@app.command()
def serve(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen on; 0: any free one.")] = 7070,
    store: Annotated[
        str, typer.Option("--store", help="Where facts are kept: sqlite:///FILE or postgresql://…", metavar="URL")
    ] = "sqlite:///everstep.db",
    token_file: Annotated[
        Path, typer.Option("--token-file", envvar="EVERSTEP_TOKEN_FILE", help="The token that every call must carry.")
    ] = Path("everstep.token"),
    ready_file: Annotated[
        Path | None, typer.Option("--ready-file", help="The URL is written to this file once calls are answered.")
    ] = None,
) -> None:
    """Run a coordinator: the one service that workers and agents meet at."""
    from everstep.cli.serve import run_coordinator

    run_coordinator(host, port, store, token_file, ready_file)


@app.command()
def status(coordinator: CoordinatorUrl, job: JobId, token_file: TokenFile = None) -> None:
    """Show a job: its generation, its workers, and the coordinator's last decision."""
    from everstep.cli.status import print_status

    print_status(coordinator, job, token_file)


def main() -> None:
    from everstep.errors import EverstepError

    try:
        app()
    except EverstepError as error:
        typer.echo(f"everstep: {error}", err=True)
        sys.exit(2)
