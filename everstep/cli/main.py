"""The `everstep` command: its subcommands and their help. What they do is imported when one is called.

`--help` must answer at once on a login node, so nothing heavy is imported at the top."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from everstep.cli import options as opt
from everstep.cli.checkpoint_commands import checkpoint
from everstep.cli.job_commands import jobs

_SETTINGS: dict[str, Any] = {
    "token_normalize_func": opt.spelling,
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


@app.command(
    context_settings=_SCRIPT_LAST,
    no_args_is_help=True,
    epilog="Options of torchrun are also read from PET_<NAME>, such as PET_NPROC_PER_NODE=4, and may be spelt with _.",
)
def run(
    ctx: typer.Context,
    script: opt.OptionalScript = None,
    args: opt.Args = None,
    file: opt.JobFile = None,
    platform: opt.PlatformName = None,
    changes: opt.Changes = None,
    dry_run: opt.IsDryRender = False,
    follow: opt.IsFollowed = False,
    nproc_per_node: opt.NumWorkersOfNode = "1",
    max_restarts: opt.MaxRestarts = 0,
    module: opt.IsModule = False,
    no_python: opt.IsProgram = False,
    role: opt.Role = "default",
    virtual_local_rank: opt.IsLocalRankVirtual = False,
    shutdown_s: opt.ShutdownS = 30.0,
    signals_to_handle: opt.Signals = "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    hang_timeout: opt.HangTimeoutS = None,
    check: opt.WantsCheck = False,
    keep_warm: opt.KeepWarmS = 0.0,
    nnodes: opt.Nodes = "",
    standalone: opt.IsStandalone = False,
    rdzv_endpoint: opt.RdzvEndpoint = "",
    rdzv_id: opt.RdzvId = None,
    rdzv_backend: opt.RdzvBackend = None,
    rdzv_conf: opt.RdzvConf = "",
    node_rank: opt.NodeRank = None,
    master_addr: opt.MasterAddr = None,
    master_port: opt.MasterPort = None,
    address: opt.Address = None,
    coordinator: opt.OptionalCoordinatorUrl = None,
    token_file: opt.GivenTokenFile = None,
    ca_file: opt.CaFile = None,
    job: opt.OptionalJobId = None,
    log_dir: opt.LogDir = Path("runs"),
    redirects: opt.Redirects = "0",
    tee: opt.Tee = "0",
    local_ranks_filter: opt.LocalRanks = "",
    duplicate_stdout_filters: opt.StdoutTexts = "",
    duplicate_stderr_filters: opt.StderrTexts = "",
    quiet: opt.IsQuiet = False,
    min_workers: opt.MinWorkers = None,
    max_workers: opt.MaxWorkers = None,
    start_s: opt.StartS = None,
    heartbeat_s: opt.HeartbeatS = None,
    lease_s: opt.LeaseS = None,
    arrive_s: opt.ArriveS = None,
    stall_s: opt.StallS = None,
    hang_s: opt.HangS = None,
    fence_s: opt.FenceS = None,
    micro_batch_deaths: opt.MicroBatchDeaths = None,
    last_call_s: opt.LastCallS = None,
    join_s: opt.JoinS = None,
    undecided_s: opt.UndecidedS = None,
    minibatches_per_shard: opt.MinibatchesPerShard = None,
    shard_lease_s: opt.ShardLeaseS = None,
    shard_failures: opt.ShardFailures = None,
    straggler_factor: opt.StragglerFactor = None,
    monitor_interval: opt.MonitorInterval = None,
    start_method: opt.StartMethod = None,
    event_log_handler: opt.EventLogHandler = None,
    run_path: opt.IsRunPath = False,
    logs_specs: opt.LogsSpecs = None,
    numa_binding: opt.NumaBinding = None,
) -> None:
    """Train: SCRIPT on this machine, or a job file (-f) on any platform; and keep it going, whoever dies.

    Options stand before SCRIPT; what follows is the script's own."""
    if file is not None:
        from everstep.cli.submitted import leave, submit_file

        opt.refuse_others(ctx, ("file", "platform", "changes", "dry_run", "follow"), because="-f FILE says it all")
        leave(submit_file(file, changes or [], platform=platform, is_dry=dry_run, follows=follow))
    if script is None:
        raise typer.BadParameter("give SCRIPT, or a job file with -f", ctx=ctx)
    opt.refuse(ctx, ("platform", "changes", "dry_run", "follow"), because="it goes with a job file: -f FILE")
    from everstep.jobs.script import check_script
    from everstep.launcher import torchrun_options as torchrun
    from everstep.launcher.machine import count_cpus, count_gpus
    from everstep.launcher.node import worker_command
    from everstep.launcher.shown_streams import STDERR, STDOUT, Shown
    from everstep.launcher.starter import Starter

    is_program = no_python and not run_path
    told = check_script(script, args or [], is_module=module, is_program=is_program)
    command = tuple(worker_command(script, args or [], is_module=module, is_program=is_program))
    num_workers = torchrun.parse_num_workers(nproc_per_node, num_gpus=count_gpus(), num_cpus=count_cpus())
    rendezvous = torchrun.parse_rendezvous(
        backend=rdzv_backend,
        endpoint=rdzv_endpoint,
        rdzv_id=rdzv_id,
        conf=rdzv_conf,
        is_standalone=standalone,
        node_rank=node_rank,
        master_addr=master_addr,
        master_port=master_port,
    )
    notes = torchrun.notes_on(
        monitor_interval=monitor_interval,
        start_method=start_method,
        event_log_handler=event_log_handler,
        is_run_path=run_path,
        logs_specs=logs_specs,
        numa_binding=numa_binding,
    )
    copied = {STDOUT: duplicate_stdout_filters, STDERR: duplicate_stderr_filters}
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
        "micro_batch_deaths": micro_batch_deaths,
        "last_call_s": rendezvous.last_call_s if last_call_s is None else last_call_s,
        "join_s": rendezvous.join_s if join_s is None else join_s,
        "undecided_s": undecided_s,
        "minibatches_per_shard": minibatches_per_shard,
        "shard_lease_s": shard_lease_s,
        "shard_failures": shard_failures,
        "straggler_factor": straggler_factor,
        "silence_s": hang_timeout,
        "max_restarts": max_restarts,
    }
    # First of all: what it starts in the background takes longer than all that there is to do meanwhile.
    with Starter.open(command, num_workers=num_workers, outer=os.environ, keep_warm_s=keep_warm) as starter:
        from everstep.jobs.run import RunRequest, run_job

        if nproc_per_node in ("gpu", "auto") and (num_gpus := starter.num_gpus()) is not None:
            num_workers = torchrun.parse_num_workers(nproc_per_node, num_gpus=num_gpus, num_cpus=count_cpus())
        request = RunRequest(
            command=command,
            name=script,
            num_workers=num_workers,
            role=role,
            is_local_rank_virtual=virtual_local_rank,
            shutdown_s=shutdown_s,
            signals=torchrun.parse_signals(signals_to_handle),
            wants_check=check,
            nodes=torchrun.parse_nodes("1" if standalone else nnodes),
            rendezvous=rendezvous,
            address=address,
            coordinator_url=coordinator,
            token_file=token_file,
            job=job,
            log_dir=log_dir,
            shown=Shown(
                redirects=torchrun.parse_streams(redirects, option="--redirects"),
                tee=torchrun.parse_streams(tee, option="--tee"),
                local_ranks=torchrun.parse_ranks(local_ranks_filter),
                is_quiet=quiet,
            ),
            copied_texts={stream: torchrun.parse_texts(texts) for stream, texts in copied.items() if texts},
            policy={name: value for name, value in policy.items() if value is not None},
            notes=told + rendezvous.notes + notes,
        )
        raise typer.Exit(run_job(request, starter))


@app.command(context_settings=_SCRIPT_LAST, no_args_is_help=True)
def agent(
    coordinator: opt.CoordinatorUrl,
    job: opt.JobId,
    script: opt.Script,
    args: opt.Args = None,
    workers: opt.NumWorkers = 1,
    name: opt.NodeName = None,
    node_rank: opt.NodeRank = None,
    token_file: opt.GivenTokenFile = None,
    ca_file: opt.CaFile = None,
    log_dir: opt.LogDir = Path("runs"),
    address: opt.Address = None,
    shutdown_s: opt.ShutdownS = 30.0,
    heartbeat_s: opt.AgentHeartbeatS = 1.0,
    module: opt.IsModule = False,
    no_python: opt.IsProgram = False,
    keep_warm: opt.KeepWarmS = 0.0,
    quiet: opt.IsQuiet = False,
) -> None:
    """Add this node to a job that exists: start workers of SCRIPT here and watch them."""
    from everstep.launcher.node import worker_command
    from everstep.launcher.shown_streams import Shown
    from everstep.launcher.starter import Starter

    command = tuple(worker_command(script, args or [], is_module=module, is_program=no_python))
    starter = Starter.open(command, num_workers=workers, outer=os.environ, keep_warm_s=keep_warm)
    from everstep.jobs.node_spec import AgentRequest
    from everstep.jobs.run import run_agent

    request = AgentRequest(
        command=command,
        coordinator_url=coordinator,
        token_file=token_file,
        job=job,
        num_workers=workers,
        name=name,
        node_rank=-1 if node_rank is None else node_rank,
        log_dir=log_dir,
        address=address,
        shutdown_s=shutdown_s,
        heartbeat_s=heartbeat_s,
        shown=Shown(is_quiet=quiet),
    )
    with starter:
        raise typer.Exit(run_agent(request, starter))


@app.command()
def serve(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port to listen on; 0: any free one.")] = 7070,
    store: Annotated[
        str,
        typer.Option(
            "--store",
            help="Where facts are kept: sqlite:///FILE or postgresql://…; with a password, give it by EVERSTEP_STORE.",
            metavar="URL",
            envvar="EVERSTEP_STORE",
            show_default=False,
        ),
    ] = "sqlite:///everstep.db",
    token_file: Annotated[
        Path,
        typer.Option("--token-file", envvar="EVERSTEP_TOKEN_FILE", help="The tokens of each role; made if missing."),
    ] = Path("everstep.token"),
    ready_file: Annotated[
        Path | None, typer.Option("--ready-file", help="The URL is written to this file once calls are answered.")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", help="Certificate (PEM) for https, with those between it and its CA.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", help="Its key (PEM), readable by you alone, without a passphrase.")
    ] = None,
    code: Annotated[
        Path | None, typer.Option("--code", help="Folder with jobs' code (code-SHA256.tar.gz) that nodes may fetch.")
    ] = None,
) -> None:
    """Run a coordinator: the one service that workers and agents meet at."""
    from everstep.cli.serve import run_coordinator

    run_coordinator(host, port, store, token_file, ready_file=ready_file, tls_cert=tls_cert, tls_key=tls_key, code=code)


@app.command()
def doctor(
    nnodes: opt.Nodes = "1",
    rdzv_endpoint: opt.RdzvEndpoint = "",
    rdzv_id: opt.RdzvId = None,
    rdzv_conf: opt.RdzvConf = "",
    node_rank: opt.NodeRank = None,
    address: opt.Address = None,
    coordinator: opt.OptionalCoordinatorUrl = None,
    token_file: opt.GivenTokenFile = None,
    ca_file: opt.CaFile = None,
    job: opt.OptionalJobId = None,
    log_dir: opt.LogDir = Path("runs"),
    json: opt.IsJson = False,
) -> None:
    """Tell whether this machine is fit to train. With --nnodes, started on each node: all of them, and the network."""
    from everstep.cli.doctor import DoctorRequest, run_doctor
    from everstep.launcher import torchrun_options as torchrun

    request = DoctorRequest(
        log_dir=log_dir,
        nodes=torchrun.parse_nodes(nnodes),
        rendezvous=torchrun.parse_rendezvous(
            backend="everstep", endpoint=rdzv_endpoint, rdzv_id=rdzv_id, conf=rdzv_conf, node_rank=node_rank
        ),
        address=address,
        coordinator_url=coordinator,
        token_file=token_file,
        job=job,
        is_json=json,
    )
    raise typer.Exit(run_doctor(request))


@app.command()
def status(
    submitted: opt.OptionalSubmittedJob = None,
    coordinator: opt.KnownCoordinatorUrl = None,
    job: opt.KnownJobId = None,
    token_file: opt.GivenTokenFile = None,
    ca_file: opt.CaFile = None,
    log_dir: opt.LogDir = Path("runs"),
    json: opt.IsJson = False,
) -> None:
    """Show a job: its workers and the coordinator's last decision, or how it ended. Without options: the newest of
    this folder."""
    if submitted is not None:
        from everstep.cli.submitted import print_submitted

        raise typer.Exit(print_submitted(submitted, is_json=json))
    from everstep.cli.status import print_status

    print_status(coordinator, job, token_file, log_dir, is_json=json)


app.add_typer(jobs)
app.add_typer(checkpoint)


def main() -> None:
    from everstep.errors import EverstepError

    try:
        app()
    except EverstepError as error:
        typer.echo(f"everstep: {error}", err=True)
        sys.exit(2)
