"""What Prometheus gets to know of a coordinator: pools, queues, experiments, and how the coordinator itself is doing.

Numbers of single jobs are not among it: their metrics are on the page, and their number has no bound."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import everstep
from everstep import wire
from everstep.coordinator.experiments.views import experiment_view
from everstep.coordinator.pool.pool_measures import MOVES
from everstep.coordinator.prometheus_text import Family, by_label, counter, gauge, histogram, render
from everstep.coordinator.service import Service
from everstep.wire.pool import AGENT_STATES, ENABLED

_BUSY, _FREE, _LEAVING, _CLOSED, _ABSENT = "busy", "free", "leaving", "closed", "absent"


def prometheus_text(service: Service) -> str:
    return render([*_about(), *_pools(service), *_experiments(service), *_work(service)])


def _about() -> Iterator[Family]:
    yield by_label("info", "Version of the coordinator.", ("version",), {(everstep.__version__,): 1})
    yield gauge("time_seconds", "The coordinator's time of day.", time.time())


def _pools(service: Service) -> Iterator[Family]:
    views = [service.pool.view(name) for name in service.pool.names]
    slots, nodes = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for view in views:
        for agent in view.agents:
            nodes[view.pool, agent.kind, agent.state if agent.is_present else _ABSENT] += 1
            if agent.is_present:
                slots.update((view.pool, agent.kind, _state_of(slot, agent)) for slot in agent.slots)
    text = f"Slots of present nodes: {_BUSY}, {_FREE}, {_LEAVING} (their trials are leaving), {_CLOSED} (no new work)."
    yield by_label("pool_slots", text, ("pool", "kind", "state"), slots)
    text = f"Nodes: {', '.join(AGENT_STATES)}, {_ABSENT}."
    yield by_label("pool_nodes", text, ("pool", "kind", "state"), nodes)
    standings = {view.pool: service.pool.standing(view.pool) for view in views}
    waiting: dict[tuple[str, ...], float] = {(pool,): len(each.queue) for pool, each in standings.items()}
    yield by_label("pool_queue_trials", "Trials that hold no slot and wait for one.", ("pool",), waiting)
    now = service.pool.now()
    oldest: dict[tuple[str, ...], float] = {(pool,): each.oldest_wait_s(now) for pool, each in standings.items()}
    text = "How long the trial that waits longest for a slot has waited."
    yield by_label("pool_queue_oldest_wait_seconds", text, ("pool",), oldest)
    measures = service.pool.decider.measures
    yield histogram("pool_decision_seconds", "Time to decide who gets which slots.", measures.decisions)
    text = f"Slots given and taken, by what it meant for the trial: {', '.join(MOVES)}."
    moves: dict[tuple[str, ...], float] = {
        (view.pool, kind): measures.moves[view.pool, kind] for view in views for kind in MOVES
    }
    yield by_label("pool_moves_total", text, ("pool", "move"), moves, kind="counter")


def _state_of(slot: wire.SlotView, agent: wire.PoolAgentView) -> str:
    if not slot.assignment:
        return _FREE if agent.state == ENABLED else _CLOSED
    return _BUSY if slot.state == "given" else _LEAVING


def _experiments(service: Service) -> Iterator[Family]:
    states, trials = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for live in service.experiments.live.values():
        view = experiment_view(live.facts, live, live.trials, service.pool)
        states[(view.state,)] += 1
        trials.update({(state,): number for state, number in view.num_trials.items()})
    yield by_label("experiments", "Experiments that are not over, by state.", ("state",), states)
    yield by_label("trials", "Trials of experiments that are not over, by state.", ("state",), trials)


def _work(service: Service) -> Iterator[Family]:
    yield gauge("jobs_in_memory", "Jobs that the coordinator keeps in memory.", service.num_jobs)
    yield counter("regroups_total", "Generations formed by jobs after their first one.", service.num_regroups)
    yield counter("metric_points_total", "Points of metrics that were kept.", service.metrics.num_points)
    yield counter("log_bytes_total", "Bytes of workers' output that were kept, as stored.", service.logs.num_bytes)
    yield gauge("stream_readers", "Browsers and programs that follow the live stream.", service.stream.num_readers)
    text = "Time of calls to the store, with the time that they waited for their turn."
    yield histogram("store_seconds", text, service.store_latency)
