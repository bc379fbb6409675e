"""`everstep queue …`: which experiments hold slots, which wait, and why."""

from __future__ import annotations

from dataclasses import asdict

import click

from everstep import wire
from everstep.cli.experiment_show import print_rows
from everstep.cli.options import command
from everstep.cli.pool_tables import pool_link
from everstep.cli.printable import counted, printable
from everstep.cli.tables import print_json
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.pool.options import QueueListOptions, QueueUpdateOptions

_COLUMNS = ("position", "id", "name", "owner", "priority", "weight", "slots", "trials", "state", "reason")
_GIVE_WAY = ("weight", "owner", "trials", "name")


@click.group(no_args_is_help=True)
def queue() -> None:
    """Show which experiments hold slots and which wait, and why; change their order."""


@command(QueueListOptions, name="list")
def list_queue(options: QueueListOptions) -> None:
    """List the experiments that hold slots of a pool or wait for some."""
    if (link := pool_link(options)) is None:
        return
    with link:
        names = [options.pool] if options.pool is not None else _names(link)
        views = [link(lambda coordinator, name=name: coordinator.queue(name)) for name in names]  # type: ignore[misc]
    if options.json:
        print_json(asdict(views[0]) if options.pool is not None else [asdict(each) for each in views])
        return
    for view in views:
        title = f"pool {view.pool}: {counted(view.num_waiting, 'trials')} waiting"
        print_rows(_COLUMNS, [_row(each) for each in view.entries], _GIVE_WAY, title=title, nothing=_nothing(view))


def _names(link: CoordinatorLink) -> list[str]:
    return [each.pool for each in link(lambda coordinator: coordinator.pools()).pools]


def _nothing(view: wire.QueueView) -> str:
    return f"pool {view.pool}: no experiments"


def _row(each: wire.QueueEntry) -> tuple[object, ...]:
    trials = f"{each.num_running} running, {each.num_waiting} waiting"
    return (
        each.position or "",
        each.experiment,
        each.name,
        each.owner,
        each.priority,
        f"{each.weight:g}",
        f"{each.num_held}/{each.num_wanted}",
        trials,
        each.state,
        each.reason,
    )


@command(QueueUpdateOptions, no_args_is_help=True)
def update(options: QueueUpdateOptions) -> int:
    """Change an experiment's priority, weight or pool. The next decision uses them."""
    change = wire.ExperimentChange(priority=options.priority, weight=options.weight, pool=options.pool)
    if change == wire.ExperimentChange():
        raise click.UsageError("give --priority, --weight or --pool")
    if (link := pool_link(options)) is None:
        return 1
    with link:
        view = link(lambda coordinator: coordinator.change(options.experiment, change))
    if options.json:
        print_json(asdict(view))
    else:
        told = view.scheduling
        text = f"pool {told.pool}, priority {told.priority}, weight {told.weight:g}"
        click.echo(printable(f"experiment {view.experiment}: {text}"))
    return 0


for each in (list_queue, update):
    queue.add_command(each)
COMMANDS = {"queue": queue}
