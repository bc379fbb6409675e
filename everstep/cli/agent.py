"""`everstep agent …`: the nodes of pools, and which of them get work."""

from __future__ import annotations

from dataclasses import asdict

import click

from everstep import wire
from everstep.cli.options import DeclaredCommand, command, say
from everstep.cli.pool_tables import pool_link, pools_of, print_nodes
from everstep.cli.tables import print_json
from everstep.pool.options import AgentListOptions, AgentStateOptions
from everstep.wire.pool import DISABLED, DRAINING, ENABLED

_TEXTS = {
    "drain": "Give nodes no new work, and move their trials away: each leaves after its step, and continues elsewhere.",
    "disable": "Give nodes no new work. Trials that run there stay.",
    "enable": "Give nodes work again.",
}
_STATES = {"drain": DRAINING, "disable": DISABLED, "enable": ENABLED}


@click.group(no_args_is_help=True)
def agent() -> None:
    """List the nodes of pools; drain, enable and disable them. A node keeps its state when it is started again."""


@command(AgentListOptions, name="list")
def list_agents(options: AgentListOptions) -> None:
    """List nodes with their kind, state and slots. `everstep pool list` shows what runs on each slot."""
    if (link := pool_link(options)) is None:
        return
    with link:
        views = pools_of(link, options.pool)
    if options.json:
        print_json([{"pool": view.pool, **asdict(node)} for view in views for node in view.agents])
    else:
        print_nodes(views)


def _setting(verb: str) -> DeclaredCommand:
    def call(options: AgentStateOptions) -> int:
        if options.all == bool(options.nodes):
            raise click.UsageError("give the names of nodes, or --all")
        if (link := pool_link(options)) is None:
            return 1
        message = wire.AgentsChange(
            state=_STATES[verb], agents=list(options.nodes), is_all=options.all, reason=options.reason
        )
        with link:
            view = link(lambda coordinator: coordinator.change_agents(options.pool, message))
        changed = [each for each in view.agents if options.all or each.agent in options.nodes]
        if options.json:
            print_json([{"pool": view.pool, **asdict(node)} for node in changed])
            return 0
        for node in changed:
            click.echo(f"{node.agent}: {node.state}{_what_is_left(node)}")
        if not changed:
            say(f"pool {view.pool} has no nodes")
        return 0

    call.__doc__ = _TEXTS[verb]
    return command(AgentStateOptions, name=verb, no_args_is_help=True)(call)


def _what_is_left(node: wire.PoolAgentView) -> str:
    busy = sum(slot.assignment != 0 for slot in node.slots)
    if not busy or node.state == ENABLED:
        return ""
    slots = f"{busy} slot{'s' * (busy != 1)}"
    return f", {slots} still in use" if node.state == DRAINING else f", its trials keep {slots}"


agent.add_command(list_agents)
for each in _TEXTS:
    agent.add_command(_setting(each))
COMMANDS = {"agent": agent}
