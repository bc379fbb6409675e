"""What the commands about pools share: the link to the coordinator, and the tables of nodes and slots."""

from __future__ import annotations

import time

from everstep import env, wire
from everstep.cli.experiment_show import print_rows
from everstep.cli.options import say
from everstep.cli.printable import counted
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.jobs.tokens import find_token
from everstep.pool.options import PoolOptions
from everstep.wire.pool import ENABLED

_SLOTS = ("node", "kind", "state", "slot", "runs", "owner", "for", "reason")
_SLOTS_GIVE_WAY = ("reason", "kind", "owner")
_NODES = ("pool", "node", "kind", "state", "slots", "busy", "reason")
_NODES_GIVE_WAY = ("kind",)


def pool_link(options: PoolOptions) -> CoordinatorLink | None:
    """A link to the coordinator, or to the local service if it is running."""
    if options.coordinator is not None:
        url = options.coordinator if "://" in options.coordinator else f"http://{options.coordinator}"
        return CoordinatorLink(lambda: (url, find_token(options.token_file)), say=say)
    from everstep.pool.local_service import running_service

    if (local := running_service()) is None:
        say("the local service is not running; --coordinator URL or EVERSTEP_COORDINATOR selects a cluster")
        return None
    url, token = local[0], env.read_token(local[1])
    return CoordinatorLink(lambda: (url, token), is_local=True, say=say)


def pools_of(link: CoordinatorLink, name: str | None) -> list[wire.PoolView]:
    """The pool of that name, or all."""
    if name is not None:
        return [link(lambda coordinator: coordinator.pool(name))]
    return link(lambda coordinator: coordinator.pools()).pools


def pool_line(view: wire.PoolView) -> str:
    num_absent = sum(not each.is_present for each in view.agents)
    absent = f" ({num_absent} absent)" if num_absent else ""
    return (
        f"pool {view.pool}: {counted(len(view.agents), 'nodes')}{absent}, "
        f"{view.num_free} of {view.num_slots} slots free, {counted(view.num_queued, 'trials')} waiting"
    )


def state_of(node: wire.PoolAgentView) -> str:
    if node.is_present:
        return node.state
    return "absent" if node.state == ENABLED else f"absent, {node.state}"


def print_slots(view: wire.PoolView) -> None:
    """One row per slot."""
    now = time.time()
    rows: list[tuple[object, ...]] = []
    for node in view.agents:
        about = (node.agent, node.kind, state_of(node))
        rows += [(*about, *_slot_row(slot, now), slot.reason or node.state_reason) for slot in node.slots] or [
            (*about, "", "", "", "", node.state_reason)
        ]
    print_rows(_SLOTS, rows, _SLOTS_GIVE_WAY)


def _slot_row(slot: wire.SlotView, now: float) -> tuple[object, ...]:
    if not slot.assignment:
        return slot.slot, "free", "", ""
    leaves = "" if slot.state in ("", "given") else f" ({slot.state})"
    runs = f"experiment {slot.experiment}, trial {slot.trial}{leaves}"
    return slot.slot, runs, slot.owner, f"{max(0.0, now - slot.since):.0f} s"


def print_nodes(views: list[wire.PoolView]) -> None:
    """One row per node."""
    rows = [
        (
            view.pool,
            node.agent,
            node.kind,
            state_of(node),
            len(node.slots),
            sum(slot.assignment != 0 for slot in node.slots),
            node.state_reason,
        )
        for view in views
        for node in view.agents
    ]
    print_rows(_NODES, rows, _NODES_GIVE_WAY, nothing="no nodes; `everstep pool join` adds this machine")
