"""What can happen to a roster, each as a pure function: roster in, roster out, or Refused and nothing changed.

All of them may be repeated: a request whose reply was lost is sent again, and must find the same answer.
Nothing is decided here; that a generation is closed by a member's arrival or death is a consequence, not a choice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from everstep.coordinator.roster.facts import (
    ALIVE,
    DEAD,
    GONE,
    LEFT,
    LOST,
    SENT,
    Arrival,
    Attempt,
    Generation,
    Node,
    NodePart,
    Roster,
    Wish,
    Worker,
)
from everstep.errors import Refused
from everstep.process import Exit
from everstep.wire import AgentReport, Announce, Arrive, Broken, Leave, Policy, ReserveWorker, Settled, WorkerExit

K = TypeVar("K")
V = TypeVar("V")


# --- the job ---


def stop(roster: Roster, reason: str) -> Roster:
    return roster if roster.is_over else replace(roster, is_stopped=True, reason=reason)


def finish(roster: Roster, reason: str) -> Roster:
    return roster if roster.is_over else replace(roster, is_finished=True, reason=reason)


def form(roster: Roster, generation: Generation, now: float) -> Roster:
    """The next generation begins: its members have what they waited for; the others' arrivals and wishes stand."""
    if generation.number != roster.generation.number + 1 or roster.generation.is_open:
        raise AssertionError(f"generation {generation.number} cannot follow {roster.generation}")
    return replace(
        roster,
        generation=generation,
        previous=roster.generation,
        arrivals=_without(roster.arrivals, generation.ranks),
        wishes=_without(roster.wishes, generation.ranks),
        recalled={},
        formed_at=now,
    )


def close(roster: Roster, reason: str, now: float, *, must_probe: bool = False, is_broken: bool = True) -> Roster:
    """End the latest generation. In good order, members finish their step first; a loss on top of that breaks it."""
    generation = roster.generation
    if generation.number == 0 or generation.is_broken or (generation.is_closed and not is_broken):
        return roster
    closed = replace(generation, is_closed=True, is_broken=is_broken, reason=reason, must_probe=must_probe)
    return replace(roster, generation=closed, closed_at=now)


# --- reported by agents ---


def reserve(roster: Roster, request: ReserveWorker) -> tuple[Roster, str]:
    """A new worker's id; an empty one if it would be a restart and none is left."""
    key = (request.agent, request.request)
    if known := roster.reserved.get(key):
        return roster, known
    _refuse_if_over(roster)
    is_restart = counts(roster, request)
    if is_restart and roster.num_restarts >= roster.policy.max_restarts:
        return roster, ""
    roster, (name,) = _add_workers(roster, request.agent, [request.request])
    return replace(roster, num_restarts=roster.num_restarts + is_restart), name


def counts(roster: Roster, request: ReserveWorker) -> bool:
    """Whether it asks for a restart: one caused by the loss of the state does not count."""
    ended = roster.workers.get(request.replaces)
    return bool(request.replaces) and not (ended and ended.is_stale)


def _add_workers(roster: Roster, agent: str, requests: Sequence[str]) -> tuple[Roster, tuple[str, ...]]:
    first, attempt = len(roster.workers), roster.attempt.number
    workers = [
        Worker(worker=f"w{first + n}", number=first + n, agent=agent, request=request, attempt=attempt)
        for n, request in enumerate(requests)
    ]
    reserved = {**roster.reserved, **{(agent, each.request): each.worker for each in workers}}
    return replace(_with(roster, *workers), reserved=reserved), tuple(each.worker for each in workers)


def node_reported(roster: Roster, agent: str, report: AgentReport, now: float) -> Roster:
    """A node is there. Another incarnation is another node of the same name."""
    known = roster.nodes.get(agent)
    is_same = known is not None and known.incarnation == report.incarnation
    if known is not None and is_same and known.has_left:
        return roster
    node = Node(
        agent=agent,
        incarnation=report.incarnation,
        order=known.order if is_same and known else max((each.order for each in roster.nodes.values()), default=-1) + 1,
        num_workers=report.num_workers,
        address=report.address,
        probe_port=report.probe_port,
        node_rank=report.node_rank,
        free_port=report.free_port,
        unreachable=tuple(sorted(report.unreachable)),
        fitness=report.fitness,
    )
    if node == known:
        return roster
    is_coming = not is_same or known is None or not known.is_present
    nodes_at = now if is_coming and node.num_workers else roster.nodes_at
    return replace(roster, nodes={**roster.nodes, agent: node}, nodes_at=nodes_at)


def suspect_node(roster: Roster, agent: str) -> Roster:
    """Its connection broke. Until it is known whether the node is gone, no worker is blamed for what follows."""
    node = roster.nodes[agent]
    return replace(roster, nodes={**roster.nodes, agent: replace(node, is_suspect=True)}) if node.is_present else roster


def node_away(roster: Roster, agent: str, reason: str, now: float, *, has_left: bool = False) -> Roster:
    node = roster.nodes.get(agent)
    if node is None or node.has_left or not (node.is_present or has_left):
        return roster
    gone = replace(node, is_present=False, is_suspect=False, has_left=has_left, reason=reason)
    return replace(roster, nodes={**roster.nodes, agent: gone}, nodes_at=now)


def begin_attempt(roster: Roster, nodes: Sequence[Node], reason: str, now: float) -> Roster:
    """All workers are started together, on these nodes, by node rank."""
    if roster.attempt.is_open:
        raise AssertionError(f"attempt {roster.attempt.number} is not over")
    attempt = Attempt(
        number=roster.attempt.number + 1,
        master_address=nodes[0].address,
        master_port=nodes[0].free_port,
        max_workers=roster.attempt.max_workers or _max_workers(roster.policy, nodes),
        reason=reason,
    )
    roster = replace(roster, attempt=attempt, attempt_at=now)
    for node in nodes:
        roster = add_node(roster, node)
    return roster


def _max_workers(policy: Policy, nodes: Sequence[Node]) -> int:
    """As many as all nodes that may take part will start; where there is no limit, as many as begin."""
    if policy.max_nodes is None:
        largest = sum(node.num_workers for node in nodes)
    else:
        largest = policy.max_nodes * max(node.num_workers for node in nodes)
    return min(largest, policy.max_workers or largest)


def add_node(roster: Roster, node: Node) -> Roster:
    """A node takes part in the open attempt, with the next ranks."""
    attempt = roster.attempt
    requests = [f"{node.incarnation}/{attempt.number}/{local_rank}" for local_rank in range(node.num_workers)]
    roster, names = _add_workers(roster, node.agent, requests)
    part = NodePart(agent=node.agent, incarnation=node.incarnation, workers=names, first_rank=attempt.size)
    return replace(roster, attempt=replace(attempt, parts=(*attempt.parts, part)))


def close_attempt(roster: Roster, reason: str, *, is_restart: bool, wants_stacks: bool = False) -> Roster:
    closed = replace(roster.attempt, is_closed=True, reason=reason, wants_stacks=wants_stacks)
    return replace(roster, attempt=closed, num_restarts=roster.num_restarts + is_restart)


def exited(roster: Roster, name: str, end: WorkerExit, now: float) -> Roster:
    """The process is gone for certain. Exit code 0 is a leaving in good order, released or not; one that was asked to
    go has not come to its end."""
    worker = roster.worker(name)
    if worker.status in GONE:
        return roster
    good, bad = (LEFT, "ended in good order"), (DEAD, f"died: {Exit(code=end.exit_code)}")
    sent = (SENT, "was asked to go, and went in good order")
    status, reason = bad if end.exit_code != 0 else sent if end.was_asked else good
    micro_batch = end.micro_batch if status == DEAD else -1
    step = end.step if micro_batch >= 0 else max(worker.step, end.step)
    gone = replace(worker, status=status, reason=reason, step=step, micro_batch=micro_batch)
    return _drop(roster, gone, f"{name} {reason}", now)


# --- reported by workers ---


def announce(roster: Roster, name: str, message: Announce, now: float) -> Roster:
    """The process is up. Another incarnation than before means that the earlier process is gone."""
    worker = roster.worker(name)
    _refuse_if_gone(worker)
    if worker.incarnation in ("", message.incarnation):
        _refuse_if_stale(worker)
    if worker.attempt < roster.attempt.number or (roster.attempt.is_closed and not roster.is_regrouping):
        raise Refused(f"{name} belongs to an attempt that is over: {roster.attempt.reason}", code="attempt-over")
    if not message.incarnation:
        raise Refused("an incarnation must not be empty", status=422, code="incarnation-empty")
    if worker.incarnation != message.incarnation:
        roster = _begin_process(roster, worker, now)
    up = replace(
        roster.workers[name],
        incarnation=message.incarnation,
        pid=message.pid,
        address=message.address,
        store_port=message.store_port,
        probe_port=message.probe_port,
    )
    return roster if up == worker else _with(roster, up)


def _begin_process(roster: Roster, worker: Worker, now: float) -> Roster:
    """A new process holds nothing, and is in no generation that there is. Seniority stays with the worker."""
    is_first = worker.incarnation == ""
    if not is_first:
        roster = _drop(roster, worker, f"{worker.worker} was replaced by a new process", now)
    new = replace(
        worker,
        status=ALIVE,
        reason="announced",
        seniority=roster.num_announced if is_first else worker.seniority,
        announced_in=roster.generation.number,
        settled=0,
        held=0,
        step=0,
        wants_stacks=False,
        died_as=-1,
        is_stale=False,
    )
    return replace(_with(roster, new), num_announced=roster.num_announced + is_first)


def arrive(roster: Roster, name: str, message: Arrive, now: float) -> Roster:
    """Ready for the next generation. A lost worker that arrives is alive again; a member's arrival closes its own."""
    worker = known(roster, name, message.incarnation)
    _refuse_if_newer(roster, max(message.generation, message.settled))
    if roster.is_over or is_formed(roster, name, message.generation):
        return roster
    if roster.generation.is_open and roster.is_member(name):
        roster = close(roster, _why_arrived(roster, name), now, is_broken=False)
    if (worker.status, worker.settled) != (ALIVE, message.settled):
        up = replace(
            worker,
            status=ALIVE,
            reason="",
            wants_stacks=False,
            settled=message.settled,
            held=max(worker.held, message.settled),
            step=max(worker.step, message.step),
        )
        roster = _with(roster, up)
    known_arrival = roster.arrivals.get(name)
    arrival = Arrival(
        since=known_arrival.since if known_arrival else now,
        settled=message.settled,
        step=message.step,
        max_workers=message.max_workers,
        unreachable=tuple(message.unreachable),
    )
    if arrival == known_arrival:
        return roster
    return replace(
        roster,
        arrivals={**roster.arrivals, name: arrival},
        wishes=_without(roster.wishes, [name]),
        recalled=_without(roster.recalled, [name]),
        lost_at=_without(roster.lost_at, [name]),
    )


def is_formed(roster: Roster, name: str, after: int) -> bool:
    """Whether an open generation contains this worker that is newer than the one it names."""
    return roster.generation.is_open and roster.generation.number > after and roster.is_member(name)


def broken(roster: Roster, name: str, message: Broken, now: float) -> Roster:
    known(roster, name, message.incarnation)
    _refuse_if_newer(roster, message.generation)
    if message.is_fatal and (roster.is_member(name) or roster.generation.number == 0):
        return stop(roster, f"{name}: {message.reason}")
    if message.generation < roster.generation.number or roster.generation.is_broken:
        return roster
    _refuse_if_no_member(roster, name)
    return close(roster, f"{name}: {message.reason}", now, must_probe=message.must_probe)


def settled(roster: Roster, name: str, message: Settled) -> Roster:
    worker = known(roster, name, message.incarnation)
    _refuse_if_newer(roster, message.generation)
    if message.generation < roster.generation.number or message.generation == 0:
        return roster  # late: its arrival said the same
    _refuse_if_no_member(roster, name)
    up = replace(worker, settled=message.generation, held=message.generation, step=max(worker.step, message.step))
    return roster if up == worker else _with(roster, up)


def leave(roster: Roster, name: str, message: Leave) -> Roster:
    """Wants to end. Whether it may is decided later (`ending`); a wish about an earlier generation is void."""
    worker = roster.worker(name)
    if worker.status in (LEFT, SENT) and worker.incarnation == message.incarnation:
        return roster
    worker = known(roster, name, message.incarnation)
    _refuse_if_newer(roster, message.generation)
    if roster.is_over or name in roster.recalled or is_formed(roster, name, message.generation):
        return roster
    wish = Wish(generation=message.generation, step=message.step, reason=message.reason, is_asked=message.is_asked)
    if worker.status == LOST:
        roster = _with(roster, replace(worker, status=ALIVE, reason="", wants_stacks=False))
    if roster.wishes.get(name) == wish:
        return roster
    return replace(
        roster,
        wishes={**roster.wishes, name: wish},
        arrivals=_without(roster.arrivals, [name]),
        lost_at=_without(roster.lost_at, [name]),
    )


# --- decided ---


def lose(roster: Roster, name: str, reason: str, now: float, *, wants_stacks: bool = False) -> Roster:
    """No proof that it is alive or makes progress, and none that it is gone: its agent must kill it."""
    worker = roster.workers[name]
    if worker.status != ALIVE:
        return roster
    gone = replace(worker, status=LOST, reason=reason, wants_stacks=wants_stacks)
    return replace(_drop(roster, gone, f"{name} is lost: {reason}", now), lost_at={**roster.lost_at, name: now})


def lose_state(roster: Roster, reason: str, now: float) -> Roster:
    """All holders of the state are gone for certain. A worker that is here now may have loaded an old checkpoint: it
    ends, and is started again so that its script loads the newest. Workers started from now on count as fresh."""
    roster = replace(roster, generation=replace(roster.generation, is_lost=True))
    for worker in [each for each in roster.workers.values() if each.status not in GONE]:
        roster = lose(_with(roster, replace(worker, is_stale=True)), worker.worker, reason, now)
    return roster


def release(roster: Roster, names: Iterable[str], reason: str, *, status: str = LEFT) -> Roster:
    names = list(names)
    gone = [replace(roster.workers[name], status=status, reason=reason) for name in names]
    return replace(_with(roster, *gone), wishes=_without(roster.wishes, names))


def send_away(roster: Roster, names: Iterable[str], reason: str, now: float) -> Roster:
    """All members go, and none has finished: the next workers to come form another generation."""
    return close(release(roster, names, reason, status=SENT), reason, now)


def recall(roster: Roster, names: Iterable[str], now: float) -> Roster:
    """Leavers that hold the newest state are needed again."""
    names = list(names)
    return replace(
        roster, wishes=_without(roster.wishes, names), recalled={**roster.recalled, **dict.fromkeys(names, now)}
    )


def known(roster: Roster, name: str, incarnation: str) -> Worker:
    """The worker, if this is its present process and it is not known to be gone."""
    worker = roster.worker(name)
    if worker.incarnation != incarnation:
        raise Refused(f"{name} is another process now, or has not announced itself", code="incarnation-unknown")
    _refuse_if_gone(worker)
    _refuse_if_stale(worker)
    return worker


def _why_arrived(roster: Roster, name: str) -> str:
    wait, leave_ = len(roster.arrivals), len(roster.wishes)
    parts = [f"{wait} newcomer{'s' * (wait != 1)} wait{'s' * (wait == 1)}"] if wait else []
    parts += [f"{leave_} leave{'s' * (leave_ == 1)} in good order"] if leave_ else []
    return f"{name} arrived for the next generation" + (f"; {', '.join(parts)}" if parts else "")


def _drop(roster: Roster, gone: Worker, reason: str, now: float) -> Roster:
    """Take a worker out of everything it stood in; an open generation of which it was a member is over."""
    name = gone.worker
    if roster.is_member(name):
        roster = close(roster, reason, now)
        gone = replace(gone, died_as=roster.generation.ranks[name])
    return replace(
        _with(roster, gone),
        arrivals=_without(roster.arrivals, [name]),
        wishes=_without(roster.wishes, [name]),
        recalled=_without(roster.recalled, [name]),
        lost_at=_without(roster.lost_at, [name]),
    )


def _with(roster: Roster, *workers: Worker) -> Roster:
    return replace(roster, workers={**roster.workers, **{worker.worker: worker for worker in workers}})


def _without(mapping: Mapping[K, V], keys: Iterable[K]) -> Mapping[K, V]:
    keys = [key for key in keys if key in mapping]
    if not keys:
        return mapping
    left = dict(mapping)
    for key in keys:
        del left[key]
    return left


def _refuse_if_over(roster: Roster) -> None:
    if roster.is_over:
        raise Refused(f"job {roster.job} is over: {roster.reason}", code="job-over")


def _refuse_if_no_member(roster: Roster, name: str) -> None:
    if not roster.is_member(name):
        text = f"{name} is not a member of generation {roster.generation.number}"
        raise Refused(text, code="worker-not-a-member")


def _refuse_if_gone(worker: Worker) -> None:
    if worker.status in GONE:
        raise Refused(f"{worker.worker} is {worker.status}: {worker.reason}", code="worker-gone")


def _refuse_if_stale(worker: Worker) -> None:
    if worker.is_stale:
        raise Refused(
            f"{worker.worker} was started before all who held the state were lost: what it loaded may be old",
            hint="start it again, so that its script loads the newest checkpoint",
            code="worker-stale",
        )


def _refuse_if_newer(roster: Roster, generation: int) -> None:
    if generation > roster.generation.number:
        raise Refused(
            f"generation {generation} does not exist; the latest is {roster.generation.number}", code="generation-ahead"
        )
