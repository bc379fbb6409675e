"""`everstep run SCRIPT` and `everstep join SCRIPT`: check the script, then start the nursery before all else.

Light: what the nursery imports in the background takes longer than everything that is left to do meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from everstep import env
from everstep.errors import UsageError
from everstep.jobs.options import JoinOptions, RunOptions
from everstep.launcher import torchrun_options as torchrun
from everstep.launcher.machine import count_cpus, count_gpus
from everstep.launcher.node import worker_command
from everstep.launcher.starter import Starter

# Few scripts have these, and people put them last.
_OURS = {"--dry-run", "--follow", "--nproc-per-node", "--nnodes", "--rdzv-endpoint", "--rdzv-id", "--max-restarts"}


def run_script(options: RunOptions, script: str) -> int:
    """The exit code. Runs the job from its creation to its end, or this node's part of it."""
    is_program = options.no_python and not options.run_path
    notes = check_script(script, options.args, is_module=options.module, is_program=is_program) + torchrun.notes_on(
        monitor_interval=options.monitor_interval,
        start_method=options.start_method,
        event_log_handler=options.event_log_handler,
        is_run_path=options.run_path,
        logs_specs=options.logs_specs,
        numa_binding=options.numa_binding,
    )
    command = tuple(worker_command(script, list(options.args), is_module=options.module, is_program=is_program))
    asked = options.nproc_per_node
    num_workers = torchrun.parse_num_workers(asked, num_gpus=count_gpus(), num_cpus=count_cpus())
    with Starter.open(
        command, num_workers=num_workers, outer=env.everything(), keep_warm_s=options.keep_warm
    ) as starter:
        from everstep.jobs.run import run_job

        if asked in ("gpu", "auto") and (num_gpus := starter.num_gpus()) is not None:
            num_workers = torchrun.parse_num_workers(asked, num_gpus=num_gpus, num_cpus=count_cpus())
        return run_job(options, script, command, num_workers, starter, notes)


def join_job(options: JoinOptions) -> int:
    """The exit code. Runs this node's part of a job that exists."""
    command = tuple(
        worker_command(options.script, list(options.args), is_module=options.module, is_program=options.no_python)
    )
    with Starter.open(
        command, num_workers=options.workers, outer=env.everything(), keep_warm_s=options.keep_warm
    ) as starter:
        from everstep.jobs.run import run_joined

        return run_joined(options, command, starter)


def check_script(script: str, args: Sequence[str], *, is_module: bool, is_program: bool) -> tuple[str, ...]:
    """Notes for the user. Raises if the script cannot be run."""
    if not is_module and not is_program:
        if Path(script).suffix in (".yaml", ".yml"):
            hint = f"run a job file with -f: everstep run -f {script}"
            raise UsageError(f"{script} is not a script", hint=hint, code="script-is-a-job-file")
        if not Path(script).exists():
            hint = "give the script's path; use -m for a module's name, --no-python for another program"
            raise UsageError(f"there is no {script} in {Path.cwd()}", hint=hint, code="script-missing")
    return tuple(
        f"{word} comes after the script and is passed to it; options of everstep go before the script"
        for word in args
        if word.partition("=")[0].replace("_", "-") in _OURS
    )
