"""`everstep pool …`: offer this machine's slots, look at a pool, stop the local service."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict

import click

from everstep.cli.options import command, say
from everstep.pool.options import (
    LocalServiceOptions,
    PoolJoinOptions,
    PoolListOptions,
    PoolStopOptions,
    TrialNodeOptions,
)


@click.group(no_args_is_help=True)
def pool() -> None:
    """Offer this machine's slots to the trials of experiments, and show pools."""


@command(PoolJoinOptions)
def join(options: PoolJoinOptions) -> int:
    """Run trials of experiments on this machine until Ctrl-C or SIGTERM; then trials save, and continue elsewhere."""
    from everstep.pool.join import join_pool

    return join_pool(options, say)


@command(PoolListOptions, name="list")
def list_pool(options: PoolListOptions) -> None:
    """Show the nodes of a pool, and what runs on their slots."""
    from rich.console import Console

    from everstep.cli.tables import print_json, table
    from everstep.client.calls import Coordinator
    from everstep.env import read_token
    from everstep.jobs.tokens import find_token
    from everstep.pool.local_service import running_service

    url, token = options.coordinator, ""
    if url is not None:
        token = find_token(options.token_file)
    elif (local := running_service()) is not None:
        url, token = local[0], read_token(local[1])
    else:
        say("the local service is not running")
        return
    with closing(Coordinator(url, token, "")) as coordinator:
        view = coordinator.pool(options.pool)
    if options.json:
        print_json(asdict(view))
        return
    now = time.time()
    rows = [
        (
            node.agent if node.is_present else f"{node.agent} (lost)",
            slot.slot,
            f"experiment {slot.experiment}, trial {slot.trial}" if slot.assignment else "free",
            f"{now - slot.since:.0f} s" if slot.assignment else "",
        )
        for node in view.agents
        for slot in node.slots
    ]
    click.echo(f"pool {view.pool}: {view.num_free} of {view.num_slots} slots free, {view.num_queued} trials waiting")
    Console().print(table(None, ("node", "slot", "runs", "for"), rows))


@command(PoolStopOptions)
def stop(_options: PoolStopOptions) -> None:
    """Stop the local service; trials save first, and continue when it is started again."""
    from everstep.pool.local_service import stop_local

    if not stop_local(say):
        say("the local service is not running")


@command(TrialNodeOptions, name="trial-node")
def trial_node(options: TrialNodeOptions) -> int:
    """Run one assignment of a pool's agent."""
    from everstep.pool.trial_node import run_trial

    return run_trial(options.folder)


@command(LocalServiceOptions, name="local-service")
def local_service(options: LocalServiceOptions) -> int:
    """Run the local service in the foreground."""
    from everstep.pool.local_service import serve_local

    return serve_local(options.folder, say)


for each in (join, list_pool, stop):
    pool.add_command(each)
COMMANDS = {"pool": pool, "trial-node": trial_node, "local-service": local_service}
