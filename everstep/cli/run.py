"""`everstep run` and `join`; and the commands that platforms call: `everstep node`, `entry` and `coordinate`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from everstep.cli.options import SCRIPT_LAST, command, refuse, refuse_others, say
from everstep.jobs.options import CoordinateOptions, EntryOptions, JoinOptions, RunOptions, SubmittedNodeOptions

_OF_JOB_FILES = ("platform", "changes", "dry_run", "follow")
_OF_COORDINATORS = ("coordinator", "token_file", "ca_file")
_VARIABLES = (
    "Options of torchrun may be spelled with _, and are also read from PET_<NAME>, such as PET_NPROC_PER_NODE=4."
)


@command(RunOptions, context_settings=SCRIPT_LAST, no_args_is_help=True, epilog=_VARIABLES)
def run(options: RunOptions) -> int:
    """Train: run SCRIPT on this machine, or a job file (-f) on any platform. Training survives the loss of workers.

    With a coordinator that has a pool, a job file without a platform runs on slots of the pool.

    Put options before SCRIPT; everything after SCRIPT is passed to it."""
    if options.file is not None:
        refuse_others(("file", *_OF_JOB_FILES, *_OF_COORDINATORS), because="-f FILE has all settings")
        from everstep.cli.pool_job import run_in_pool

        text = sys.stdin.read() if str(options.file) == "-" else None
        code = run_in_pool(options, options.file, text)
        return _submit(options, options.file, text) if code is None else code
    if options.script is None:
        raise click.UsageError("give SCRIPT, or a job file with -f")
    refuse(_OF_JOB_FILES, because="it needs a job file: -f FILE")
    from everstep.jobs.script import run_script

    return run_script(options, options.script)


def _submit(options: RunOptions, file: Path, text: str | None) -> int:
    from everstep.job_file.tree import dump
    from everstep.jobs import submitted

    changes, platform = options.changes, options.platform
    if text is not None:
        prepared = submitted.prepare_text(text, changes, platform=platform, name="stdin")
    else:
        prepared = submitted.prepare(file, changes, platform=platform)
    for note in prepared.notes:
        say(note)
    if options.dry_run:
        shown = prepared.request.text
        click.echo(shown, nl=not shown.endswith("\n"))
        return 0
    record = submitted.submit(prepared, say)
    click.echo(dump(submitted.ids_of(record)), nl=False)
    sys.stdout.flush()
    say(f"watch it with: everstep watch {record.id}")
    if not options.follow:
        return 0
    from everstep.cli.submitted import watch_to_end

    return watch_to_end(record)


@command(JoinOptions, context_settings=SCRIPT_LAST, no_args_is_help=True)
def join(options: JoinOptions) -> int:
    """Add this node to a running job: start workers for SCRIPT here and watch them."""
    from everstep.jobs.script import join_job

    return join_job(options)


@command(SubmittedNodeOptions)
def node(options: SubmittedNodeOptions) -> int:
    """Be one node of a submitted job: fetch its code, run its setup lines, start its workers."""
    from everstep.jobs.node import run_node

    return run_node(options, say)


@command(EntryOptions, context_settings=SCRIPT_LAST)
def entry(options: EntryOptions) -> int:
    """Be the node that this container's environment describes, or run COMMAND. Our image's entry point."""
    from everstep.jobs.entry import run_entry

    return run_entry(options, say)


@command(CoordinateOptions)
def coordinate(options: CoordinateOptions) -> int:
    """Be the coordinator of a submitted job, from its creation to its end."""
    from everstep.jobs.coordinate import run_coordinate

    return run_coordinate(options, say)


COMMANDS = {"run": run, "join": join, "node": node, "entry": entry, "coordinate": coordinate}
