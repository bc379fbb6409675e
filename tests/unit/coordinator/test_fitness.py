"""Which nodes take part after a check, and what happens when too few are fit."""

from __future__ import annotations

from everstep.coordinator.roster import changes
from everstep.coordinator.roster.advance import advance
from everstep.coordinator.roster.facts import Node, Roster
from everstep.coordinator.roster.fitness import Fit, decide_fit
from everstep.coordinator.roster.replies import Orders, Peers
from everstep.wire import AgentReport, Fitness, Policy, WorkerExit


def decide(min_nodes: int, **found: Fitness | None) -> Fit:
    nodes = [
        Node(agent=agent, incarnation="i", order=order, num_workers=1, address="", fitness=fitness)
        for order, (agent, fitness) in enumerate(found.items())
    ]
    return decide_fit(nodes, min_nodes)


def speed(gflops: float, mb_per_s: float | None = None) -> Fitness:
    return Fitness(gflops=gflops, mb_per_s=mb_per_s)


def test_nodes_that_were_not_checked_are_taken_as_they_are() -> None:
    assert decide(1, a=None, b=None).kept == {"a", "b"}
    assert decide(1, a=None, b=speed(1), c=speed(100), d=speed(100)).kept == {"a", "c", "d"}


def test_more_than_twice_slower_than_the_median_is_left_out() -> None:
    fit = decide(1, a=speed(100), b=speed(100), c=speed(49))
    assert fit.left_out == {"c": "49 GFLOP/s, the median is 100"}
    assert decide(1, a=speed(100), b=speed(100), c=speed(50)).kept == {"a", "b", "c"}


def test_a_slow_network_counts_like_a_slow_device() -> None:
    fit = decide(2, a=speed(100, 1000), b=speed(10, 12), c=speed(100, 1000))
    assert fit.notes == [
        "b is left out: 10 GFLOP/s, the median is 100 and 12 MB/s to its best neighbor, the median is 1000"
    ]


def test_never_fewer_than_the_least_remain() -> None:
    fit = decide(3, a=speed(100), b=speed(100), c=speed(40), d=speed(30), e=speed(100))
    assert fit.kept == {"a", "b", "e"}
    fit = decide(4, a=speed(100), b=speed(100), c=speed(40), d=speed(30), e=speed(100))
    assert fit.kept == {"a", "b", "c", "e"}  # the least slow
    assert fit.needed.keys() == {"c"}
    assert fit.slow.keys() == {"d"}


def test_who_failed_is_of_no_use_even_if_needed() -> None:
    fit = decide(3, a=speed(100), b=Fitness(failure="no GPU"), c=speed(100))
    assert fit.kept == {"a", "c"}
    assert fit.failed == {"b": "no GPU"}


class Job:
    def __init__(self, **policy: object) -> None:
        self.roster = Roster(job="j", name="j", policy=Policy(**policy))  # type: ignore[arg-type]
        self.now = 100.0

    def report(self, agent: str, fitness: Fitness) -> None:
        report = AgentReport(incarnation="i", node=agent, workers=[], num_workers=1, free_port=4000, fitness=fitness)
        self.roster = changes.node_reported(self.roster, agent, report, self.now)
        self.advance()

    def advance(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.roster, _, _ = advance(self.roster, {}, self.now)

    @property
    def taking_part(self) -> set[str]:
        return {part.agent for part in self.roster.attempt.parts}


def test_a_slow_node_is_left_out_of_the_attempt_and_all_are_told() -> None:
    job = Job(min_nodes=2, max_nodes=3)
    for agent, gflops in {"a": 100, "b": 100, "c": 10}.items():
        job.report(agent, speed(gflops))
    assert job.taking_part == {"a", "b"}, "at once: all who were to come have come"
    orders = Orders(job.roster, Peers(seen=0, all=[]))
    (start,) = orders.of("a", "i", []).start
    assert start.notes == ["c is left out: 10 GFLOP/s, the median is 100"]
    assert orders.of("c", "i", []).why.startswith("left out, a spare from now on: 10 GFLOP/s")


def test_a_slow_spare_comes_in_when_too_few_are_left() -> None:
    job = Job(min_nodes=2, max_nodes=3)
    for agent, gflops in {"a": 100, "b": 100, "c": 10}.items():
        job.report(agent, speed(gflops))
    job.advance(1.0)
    job.roster = changes.node_away(job.roster, "b", "its agent ended", job.now)
    job.advance()
    assert job.roster.attempt.is_closed
    job.roster = changes.exited(job.roster, "w0", WorkerExit(exit_code=-15), job.now)
    job.advance(1.0)
    assert job.taking_part == {"a", "c"}


def test_too_many_failures_stop_the_job_and_are_named() -> None:
    job = Job(min_nodes=2, max_nodes=2)
    job.report("a", speed(100))
    job.report("b", Fitness(failure="its probe failed: exit code 1"))
    assert not job.roster.is_over
    job.advance(1.0)
    assert job.roster.is_stopped
    assert job.roster.reason == "1 of at least 2 nodes are fit; b: its probe failed: exit code 1"


def test_a_node_that_left_is_not_brought_back_by_its_last_report() -> None:
    job = Job(min_nodes=1)
    job.report("a", speed(100))
    job.roster = changes.node_away(job.roster, "a", "its work is done", job.now, has_left=True)
    job.report("a", speed(100))
    assert not job.roster.nodes["a"].is_present
