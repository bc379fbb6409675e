"""`everstep pool …`: offer this machine's slots, look at a pool, stop the local service."""

from __future__ import annotations

from dataclasses import asdict

import click

from everstep.cli.options import command, say
from everstep.cli.printable import printable
from everstep.pool.options import (
    LocalServiceOptions,
    PoolCheckOptions,
    PoolJoinOptions,
    PoolListOptions,
    PoolNodesOptions,
    PoolStopOptions,
    PoolUseOptions,
    TrialNodeOptions,
)


@click.group(no_args_is_help=True)
def pool() -> None:
    """Offer this machine's slots to the trials of experiments, and show pools."""


@command(PoolJoinOptions)
def join(options: PoolJoinOptions) -> int:
    """Offer this machine's slots to a pool until Ctrl-C or SIGTERM. Its trials then save, and continue on other
    machines."""
    from everstep.pool.join import join_pool

    return join_pool(options, say)


@command(PoolListOptions, name="list")
def list_pools(options: PoolListOptions) -> None:
    """Show pools: their nodes, and what runs on the slots."""
    from everstep.cli.pool_tables import pool_line, pool_link, pools_of, print_slots
    from everstep.cli.tables import print_json

    if (link := pool_link(options)) is None:
        return
    with link:
        views = pools_of(link, options.pool)
    if options.json:
        print_json(asdict(views[0]) if options.pool is not None else [asdict(each) for each in views])
        return
    for view in views:
        click.echo(printable(pool_line(view)))
        if view.nodes is not None:
            click.echo(printable(f"nodes from {view.nodes.platform}: {view.nodes.reason}"))
        if view.agents:
            print_slots(view)


@command(PoolCheckOptions)
def check(options: PoolCheckOptions) -> None:
    """Check a pool file, and show its pools. Nothing is started."""
    from everstep.pool.show_pools import show_pools

    click.echo(show_pools(options.file, is_whole=options.show))


@command(PoolNodesOptions, name="pool-nodes")
def pool_nodes(options: PoolNodesOptions) -> int:
    """Manage the nodes of a pool file's pools, beside a coordinator."""
    from everstep.pool.keep_nodes import keep_nodes

    return keep_nodes(options, say)


@command(PoolUseOptions)
def use(options: PoolUseOptions) -> None:
    """Show how long each person has held slots, by day (UTC)."""
    from everstep.cli.pool_tables import pool_link
    from everstep.cli.pool_use import print_use

    if (link := pool_link(options)) is None:
        return
    with link:
        found = link(lambda coordinator: coordinator.pool_use(options.pool, days=options.days))
    print_use(found, is_json=options.json, is_csv=options.csv)


@command(PoolStopOptions)
def stop(_options: PoolStopOptions) -> None:
    """Stop the local service. Trials save first, and continue when it starts again."""
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


for each in (join, list_pools, check, use, stop):
    pool.add_command(each)
COMMANDS = {"pool": pool, "pool-nodes": pool_nodes, "trial-node": trial_node, "local-service": local_service}
