"""How many nodes a pool should have: which to add, and which to release.

Pure: facts in, orders with a reason out; time comes in as an argument. Nodes are created on demand, within the pool's
limits. Nodes that have been idle for long are released, the newest first. Nodes that end soon after they started are
replaced after growing pauses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from everstep.platforms.fleet import BACK_OFF_S, MAX_SHORT_LIVES, SHORT_LIFE_S, FleetNode, useless_in_a_row

PAUSES_S = (*BACK_OFF_S, 60.0, 120.0, 300.0, 600.0)  # by the number of nodes in a row that ended at once
LOST_S = 60.0  # a node that has joined, and that the coordinator has not heard for this long, is ended
LATE_S = 60.0  # mention a node that has not joined after this time
_ENOUGH = 1 << 20  # slots


@dataclass(frozen=True, kw_only=True, slots=True)
class NodesSpec:
    min_nodes: int
    max_nodes: int
    slots_per_node: int  # 0: each node tells its own
    idle_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolNode:
    """A node as its platform and the coordinator see it."""

    made: FleetNode
    num_slots: int = 0  # that it offers; 0: it has not joined, or it leaves
    has_joined: bool = False
    is_present: bool = False
    is_busy: bool = False
    is_disabled: bool = False  # or draining: it gets no trials
    quiet_since: float = 0.0  # nothing has run on it since then
    silent_since: float = 0.0  # the coordinator has not heard it since then, if it is not present

    @property
    def is_leaving(self) -> bool:
        """It was asked to, or its time is up."""
        return self.made.is_leaving or (self.is_present and not self.num_slots)

    @property
    def is_kept(self) -> bool:
        return not (self.made.is_over or self.is_leaving)

    @property
    def is_coming(self) -> bool:
        return self.is_kept and not self.has_joined

    @property
    def is_useful(self) -> bool:
        return self.is_coming or (self.is_kept and self.is_present and not self.is_disabled)


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeOrders:
    reason: str
    add: tuple[int, ...] = ()  # numbers of new nodes
    remove: tuple[str, ...] = ()


def decide_nodes(num_wanted: int, nodes: Sequence[PoolNode], spec: NodesSpec, now: float) -> NodeOrders:
    """`num_wanted`: slots that trials hold, and slots that others wait for. `nodes`: also those that have ended."""
    lost = [each for each in nodes if _is_lost(each, now)]
    if lost:
        name, silent_s = lost[0].made.name, now - lost[0].silent_since
        return NodeOrders(
            reason=f"ending {name}: silent for {silent_s:.0f} s",
            remove=tuple(each.made.name for each in lost),
        )
    useful = [each for each in nodes if each.is_useful]
    if spare := _spare(nodes, num_wanted, spec, now):
        return _let_go(spare, now)
    per_node = _slots_of_a_node(useful, spec)
    num_slots = sum(each.num_slots or per_node for each in useful)
    num_missing = max(ceil((num_wanted - num_slots) / per_node), spec.min_nodes - len(useful), 0)
    return _add(num_missing, num_wanted, nodes, spec, now)


def most_slots(nodes: Sequence[PoolNode], spec: NodesSpec) -> int:
    """The most slots that the pool can ever have; 0: unknown."""
    largest = spec.slots_per_node or max((each.num_slots for each in nodes), default=0)
    return spec.max_nodes * largest


def _is_lost(node: PoolNode, now: float) -> bool:
    return node.is_kept and node.has_joined and not node.is_present and now - node.silent_since >= LOST_S


def _slots_of_a_node(useful: Sequence[PoolNode], spec: NodesSpec) -> int:
    """With `auto`, wait for the first node to report its number of slots. Until then, one node counts as enough."""
    known = [each.num_slots for each in useful if each.num_slots]
    return spec.slots_per_node or (known[-1] if known else _ENOUGH)


def _spare(nodes: Sequence[PoolNode], num_wanted: int, spec: NodesSpec, now: float) -> list[PoolNode]:
    """Nodes to release: the newest first, as long as the others have the slots that are wanted."""
    kept = sorted((each for each in nodes if each.is_kept), key=lambda each: each.made.number, reverse=True)
    if len(kept) > spec.max_nodes:  # the pool file has changed
        return sorted(kept, key=lambda each: each.is_busy)[: len(kept) - spec.max_nodes]
    idle = [each for each in kept if not each.is_busy and now - each.quiet_since >= spec.idle_s]
    spare = [each for each in idle if each.is_disabled]
    useful = [each for each in kept if each.is_useful]
    per_node = _slots_of_a_node(useful, spec)
    num_slots, num_left = sum(each.num_slots or per_node for each in useful), len(useful)
    for each in [each for each in idle if each.is_useful]:
        offered = each.num_slots or per_node
        if num_left > spec.min_nodes and num_slots - offered >= num_wanted:
            spare.append(each)
            num_left, num_slots = num_left - 1, num_slots - offered
    return spare


def _let_go(spare: Sequence[PoolNode], now: float) -> NodeOrders:
    names = tuple(each.made.name for each in spare)
    if any(each.is_busy for each in spare):
        reason = f"releasing {', '.join(names)}: more nodes than max_nodes"
    else:
        reason = f"releasing {', '.join(names)}: idle for {now - max(each.quiet_since for each in spare):.0f} s"
    return NodeOrders(reason=reason, remove=names)


def _add(num_missing: int, num_wanted: int, nodes: Sequence[PoolNode], spec: NodesSpec, now: float) -> NodeOrders:
    """Nodes that are leaving still count toward max_nodes."""
    num_there = sum(not each.made.is_over for each in nodes)
    state = _state(num_wanted, nodes, now)
    if not num_missing:
        return NodeOrders(reason=state)
    num_new = min(num_missing, spec.max_nodes - num_there)
    if num_new <= 0:
        return NodeOrders(reason=f"{state}; max_nodes: {spec.max_nodes}")
    useless = useless_in_a_row([each.made for each in nodes])
    pause_s = PAUSES_S[min(len(useless), len(PAUSES_S) - 1)]
    if useless and now < useless[-1].ended_at + pause_s:
        return NodeOrders(reason=f"{_short_lives(useless)}; the next node starts after a pause of {pause_s:.0f} s")
    if len(useless) >= MAX_SHORT_LIVES:
        num_new = 1  # to see whether it lasts
    first = max((each.made.number for each in nodes), default=-1) + 1
    return NodeOrders(reason=f"{state}; {_nodes(num_new)} more", add=tuple(range(first, first + num_new)))


def _short_lives(useless: Sequence[FleetNode]) -> str:
    if len(useless) == 1:
        return f"the last node ended within {SHORT_LIFE_S:.0f} s: {useless[-1].reason}"
    return f"the last {len(useless)} nodes ended within {SHORT_LIFE_S:.0f} s: {useless[-1].reason}"


def _state(num_wanted: int, nodes: Sequence[PoolNode], now: float) -> str:
    kept = [each for each in nodes if each.is_kept]
    coming = [each for each in kept if each.is_coming]
    parts = [_nodes(len(kept))]
    if coming:
        first = min(coming, key=lambda each: each.made.started_at)
        late_s = now - first.made.started_at
        why = f" for {late_s // 60:.0f} min: {first.made.reason or first.made.name}" if late_s >= LATE_S else ""
        parts.append(f"{len(coming)} not joined yet{why}")
    if num_leaving := sum(each.is_leaving and not each.made.is_over for each in nodes):
        parts.append(f"{num_leaving} leaving")
    slots = f"{num_wanted} slot{'s' * (num_wanted != 1)}"
    return f"{', '.join(parts)}; {slots} wanted"


def _nodes(number: int) -> str:
    return f"{number} node{'s' * (number != 1)}"
