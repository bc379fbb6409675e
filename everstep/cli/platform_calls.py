"""The commands that platforms call: `everstep node`, `entry` and `coordinate`."""

from __future__ import annotations

from everstep.cli.options import SCRIPT_LAST, command, say
from everstep.jobs.options import CoordinateOptions, EntryOptions, SubmittedNodeOptions


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


COMMANDS = {"node": node, "entry": entry, "coordinate": coordinate}
