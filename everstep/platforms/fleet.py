"""Keep the wanted number of nodes: replace lost ones, grow, shrink, and give up when new nodes keep failing.

`decide_fleet` is pure. A `Fleet` makes the nodes, as processes or as pods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from everstep.errors import PermanentError

SHORT_LIFE_S = 60.0  # a node that fails sooner was never useful
MAX_SHORT_LIVES = 4  # in a row: then the nodes are not to blame
BACK_OFF_S = (0.0, 1.0, 5.0, 15.0)  # before the next one, by the number of short lives in a row


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetNode:
    number: int
    name: str
    is_over: bool = False
    is_leaving: bool = False  # it was asked to
    is_lost: bool = False  # preempted, evicted, or its machine is gone
    is_dead: bool = False  # it is over, and none of its processes is left, as the platform has seen
    started_at: float = 0.0
    ended_at: float = 0.0
    reason: str = ""  # of its end

    @property
    def was_of_no_use(self) -> bool:
        is_own_end = self.is_over and not (self.is_leaving or self.is_lost)
        return is_own_end and self.ended_at - self.started_at < SHORT_LIFE_S


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetOrders:
    reason: str
    add: tuple[int, ...] = ()  # numbers of new nodes
    remove: tuple[str, ...] = ()
    failure: str = ""  # why more nodes would not help


class Fleet:
    """Use it by `with`; on exit, nodes continue (`lives_on`) or are ended. This one has none: the platform's own tools
    make the nodes."""

    lives_on: bool = False  # nodes outlive this process
    makes_nodes: bool = False

    def prepare(self) -> None:
        """Called before `with`, while no coordinator runs yet: start slow work early."""

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def wanted(self) -> int:
        """How many nodes the user wants now."""
        return 0

    def nodes(self) -> Sequence[FleetNode]:
        """All nodes ever made and still known, also after a restart of this process."""
        return ()

    def add(self, number: int) -> None:
        raise AssertionError(f"node {number} is made by the platform")

    def remove(self, name: str) -> None:
        """Ask it to leave in good order; it ends a little later."""
        raise AssertionError(f"{name} is ended by the platform")

    def dissolve(self, *, is_good: bool) -> None:
        """The job is over, successfully or not: leave nothing behind."""


class ReturningNodes(Fleet):
    """All nodes may go, with or without the coordinator, and return: a scheduler or an Indexed Job makes them again."""

    lives_on = True


def decide_fleet(nodes: Sequence[FleetNode], wanted: int, *, now: float) -> FleetOrders:
    present = sorted((each for each in nodes if not each.is_over and not each.is_leaving), key=lambda each: each.number)
    if len(present) > wanted:
        spare = present[wanted:]
        return FleetOrders(
            reason=f"{len(present)} nodes, {wanted} wanted: {', '.join(each.name for each in spare)} may leave",
            remove=tuple(each.name for each in spare),
        )
    if len(present) == wanted:
        return FleetOrders(reason=f"{wanted} node{'s' * (wanted != 1)}, as wanted")
    useless = useless_in_a_row(nodes)
    if len(useless) >= MAX_SHORT_LIVES:
        last = useless[-1]
        return FleetOrders(
            reason="more nodes would not help",
            failure=f"{len(useless)} nodes ended within {SHORT_LIFE_S:.0f} s of their start; the last: {last.reason}",
        )
    pause_s = BACK_OFF_S[len(useless)]
    if useless and now < useless[-1].ended_at + pause_s:
        return FleetOrders(reason=f"{len(present)} of {wanted} nodes; the next one after a pause of {pause_s:.0f} s")
    first = max((each.number for each in nodes), default=-1) + 1
    missing = range(first, first + wanted - len(present))
    return FleetOrders(reason=f"{len(present)} of {wanted} nodes", add=tuple(missing))


def useless_in_a_row(nodes: Sequence[FleetNode]) -> list[FleetNode]:
    """The latest nodes that ended without use; a useful node starts a new count."""
    row: list[FleetNode] = []
    for each in sorted((each for each in nodes if each.is_over), key=lambda each: each.ended_at):
        row = [*row, each] if each.was_of_no_use else row if each.is_leaving or each.is_lost else []
    return row


def keep(fleet: Fleet, nodes: Sequence[FleetNode], *, now: float, num_wanted: int | None = None) -> FleetOrders:
    """One turn: decide, and act. `nodes` were read before the job's state was: nodes of a finished job need no
    replacement."""
    orders = decide_fleet(nodes, fleet.wanted() if num_wanted is None else num_wanted, now=now)
    if orders.failure:
        raise PermanentError(orders.failure, code="fleet-short-lives")
    for number in orders.add:
        fleet.add(number)
    for name in orders.remove:
        fleet.remove(name)
    return orders
