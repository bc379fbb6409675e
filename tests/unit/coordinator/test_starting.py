"""When all workers are started together, and on which nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.coordinator.roster import changes
from everstep.coordinator.roster.advance import advance, examine
from everstep.coordinator.roster.facts import NodeSign, Roster
from everstep.coordinator.roster.replies import Orders, Peers, next_peers
from everstep.errors import Refused
from everstep.wire import AgentOrders, AgentReport, Announce, Policy, WorkerExit, limits


class Nodes:
    """A job of nodes that are told what to do, without their processes."""

    def __init__(self, **policy: object) -> None:
        self.roster = Roster(job="j", name="j", policy=Policy(**policy))  # type: ignore[arg-type]
        self.now = 100.0
        self.signs: dict[str, NodeSign] = {}

    def report(self, *agents: str, num_workers: int = 2, **facts: object) -> Nodes:
        for agent in agents:
            report = AgentReport(
                incarnation=f"{agent}-1", node=agent, workers=[], num_workers=num_workers, free_port=4000, probe_port=1,
                address=f"10.0.0.{agent[1:]}", **facts,
            )  # type: ignore[arg-type]  # fmt: skip
            self.signs[agent] = NodeSign(alive_at=self.now)
            self.roster = changes.node_reported(self.roster, agent, report, self.now)
        return self.advance()

    def advance(self, seconds: float = 0.0) -> Nodes:
        self.now += seconds
        self.roster, self.reason, self.next_look = advance(self.roster, {}, self.now)
        return self

    def silence(self, seconds: float) -> Nodes:
        self.now += seconds
        self.roster, _ = examine(self.roster, {}, self.signs, self.now)
        return self.advance()

    def exit(self, *workers: str, code: int = 0) -> Nodes:
        for worker in workers:
            self.roster = changes.exited(self.roster, worker, WorkerExit(exit_code=code), self.now)
        return self.advance()

    def end_attempt(self) -> Nodes:
        """Every node ends its workers, as it is told."""
        return self.exit(*(name for part in self.roster.attempt.parts for name in part.workers), code=-15)

    def orders(self, agent: str, *workers: str) -> AgentOrders:
        orders = Orders(self.roster, next_peers(self.roster, Peers(seen=0, all=[])))
        return orders.of(agent, f"{agent}-1", [self.roster.workers[name] for name in workers])

    @property
    def parts(self) -> dict[str, tuple[str, ...]]:
        return {part.agent: part.workers for part in self.roster.attempt.parts}


def test_one_node_starts_at_once() -> None:
    job = Nodes(max_nodes=1).report("n1")
    assert job.parts == {"n1": ("w0", "w1")}
    assert (job.roster.attempt.number, job.roster.attempt.master_port) == (0, 4000)


def test_the_start_waits_for_the_fewest_nodes_and_a_last_call() -> None:
    job = Nodes(min_nodes=2, max_nodes=4).report("n1")
    assert not job.parts
    assert "1 of at least 2 nodes" in job.reason
    job.report("n2")
    assert not job.parts
    assert job.next_look == pytest.approx(job.now + 1.0)
    job.advance(1.0)
    assert job.parts == {"n1": ("w0", "w1"), "n2": ("w2", "w3")}


def test_the_most_nodes_need_no_last_call() -> None:
    assert Nodes(min_nodes=2, max_nodes=2).report("n1").report("n2").parts.keys() == {"n1", "n2"}


def test_wished_ranks_are_given() -> None:
    job = Nodes(min_nodes=2, max_nodes=2).report("n1", node_rank=1).report("n2", node_rank=0)
    assert [part.agent for part in job.roster.attempt.parts] == ["n2", "n1"]
    assert [part.first_rank for part in job.roster.attempt.parts] == [0, 2]
    assert job.roster.attempt.master_address == "10.0.0.2"


def test_too_few_nodes_for_too_long_stop_the_job() -> None:
    job = Nodes(min_nodes=2, join_s=60).report("n1").advance(60)
    assert job.roster.is_stopped
    assert job.roster.reason == "1 of at least 2 nodes have come, and none came for 60 s"


def test_a_failed_worker_restarts_all_when_every_node_has_ended_its_own() -> None:
    job = Nodes(min_nodes=2, max_nodes=2, max_restarts=1).report("n1", "n2").exit("w3", code=1)
    assert job.roster.attempt.is_closed
    assert job.roster.attempt.reason == "w3 on n2 died: exit code 1; all are restarted, 1 of 1"
    job.exit("w0", "w1", code=-15)
    assert job.roster.attempt.is_closed  # w2 is still there
    job.exit("w2", code=-15)
    assert job.roster.attempt.is_open
    assert job.roster.attempt.number == 1
    assert job.parts == {"n1": ("w4", "w5"), "n2": ("w6", "w7")}


def test_without_a_restart_left_the_job_stops() -> None:
    job = Nodes(max_nodes=1).report("n1").exit("w1", code=1)
    assert job.roster.is_stopped
    assert job.roster.reason == "w1 on n1 died: exit code 1; no restart is allowed (--max-restarts)"


def test_a_good_end_is_no_loss_and_all_good_ends_finish_the_job() -> None:
    job = Nodes(max_nodes=1).report("n1").exit("w1")
    assert job.roster.attempt.is_open
    assert job.exit("w0").roster.is_finished


def test_a_failure_after_a_good_end_restarts_all() -> None:
    job = Nodes(max_nodes=1, max_restarts=1).report("n1").exit("w1").exit("w0", code=1)
    assert job.roster.attempt.number == 1
    assert not job.roster.is_finished
    assert job.exit("w2", "w3").roster.is_finished


def test_a_node_that_never_heard_of_its_part_is_asked_for_it_and_holds_up_nobody() -> None:
    job = Nodes(min_nodes=2, max_nodes=2, lease_s=3).report("n1").report("n2")
    assert job.parts == {"n1": ("w0", "w1"), "n2": ("w2", "w3")}
    job.silence(2).report("n1").silence(2)  # n2 stood still from before it was told until after it was all over
    assert job.roster.attempt.is_closed
    job.exit("w0", "w1", code=-15).report("n1", "n2")
    assert job.reason == "n2 still ends the workers of the last attempt"

    orders = job.orders("n2", "w2", "w3")
    assert (orders.start, orders.past) == ([], ["w2", "w3"])

    job.exit(*orders.past, code=-15)
    assert job.roster.attempt.number == 1
    assert job.orders("n2", "w2", "w3").past == []


def test_peers_have_a_number_that_changes_with_them() -> None:
    none = Peers(seen=7, all=[])
    job = Nodes(min_nodes=2, max_nodes=3, last_call_s=0.0).report("n1", "n2")
    peers = next_peers(job.roster, none)
    assert (peers.seen, [peer.agent for peer in peers.all]) == (8, ["n1", "n2"])
    assert Orders(job.roster, peers).of("n1", "n1-1", []).peers_seen == 8
    assert Orders(job.roster, peers).of("n9", "n9-1", []).peers_seen == 0  # it has no part in it

    assert next_peers(job.report("n1").roster, peers) is peers
    assert next_peers(job.report("n2", unreachable=["n1"]).roster, peers) is peers


def test_no_attempt_has_more_workers_than_a_job_may_have(monkeypatch) -> None:
    monkeypatch.setattr(limits, "MAX_WORKERS", 5)
    job = Nodes(min_nodes=2, max_nodes=3, last_call_s=0.0).report("n1", "n2", num_workers=3)
    assert job.roster.is_stopped
    assert "the job would have 6 workers, the limit is 5" in job.roster.reason


def test_a_node_that_is_silent_is_dropped_and_costs_no_restart() -> None:
    job = Nodes(start_nodes=2, max_nodes=2, last_call_s=0.0).report("n1", "n2")
    assert job.parts.keys() == {"n1", "n2"}
    job.now += 3.5
    job.signs["n1"] = NodeSign(alive_at=job.now)
    job.silence(0.0)
    assert job.roster.attempt.is_closed
    assert "n2 is gone (no report for" in job.roster.attempt.reason
    job.exit(*job.parts["n1"], code=-15)
    assert job.parts.keys() == {"n1"}
    assert job.roster.num_restarts == 0


def test_a_node_that_finished_may_go() -> None:
    job = Nodes(min_nodes=2, max_nodes=2).report("n1", "n2").exit("w2", "w3")
    job.roster = changes.node_away(job.roster, "n2", "its agent ended", job.now)
    assert job.advance().roster.attempt.is_open


def test_a_node_that_said_goodbye_stays_away_whatever_report_was_on_its_way() -> None:
    job = Nodes(max_nodes=2, last_call_s=0.0).report("n1")
    job.roster = changes.node_away(job.roster, "n1", "its work is done", job.now, has_left=True)
    assert not job.report("n1").roster.nodes["n1"].is_present


def test_a_node_that_is_lost_after_the_end_is_waited_for_no_longer() -> None:
    job = Nodes(max_nodes=1).report("n1").exit("w0", "w1")
    assert job.roster.is_finished
    assert not job.silence(3.5).roster.nodes["n1"].is_present


def test_a_late_node_restarts_classic_workers_after_a_while() -> None:
    job = Nodes(min_nodes=1, max_nodes=2, last_call_s=0.0).report("n1")
    job.report("n2")
    assert job.parts.keys() == {"n1"}
    assert job.next_look == pytest.approx(105.0)
    job.advance(5.0)
    assert job.roster.attempt.is_closed
    job.end_attempt()
    assert job.parts.keys() == {"n1", "n2"}


def test_a_late_node_is_seated_beside_regrouping_workers() -> None:
    job = Nodes(min_nodes=1, max_nodes=2, last_call_s=0.0).report("n1")
    announce = Announce(incarnation="i", pid=1, address="10.0.0.1", store_port=1, probe_port=1)
    job.roster = changes.announce(job.roster, "w0", announce, job.now)
    job.report("n2")
    assert job.parts == {"n1": ("w0", "w1"), "n2": ("w2", "w3")}
    assert job.roster.attempt.parts[1].first_rank == 2
    job.report("n3")
    assert "n3" not in job.parts


def test_a_regrouping_workers_death_restarts_nobody() -> None:
    job = Nodes(max_nodes=1).report("n1")
    announce = Announce(incarnation="i", pid=1, address="10.0.0.1", store_port=1, probe_port=1)
    job.roster = changes.announce(job.roster, "w0", announce, job.now)
    assert job.exit("w1", code=-9).roster.attempt.is_open


def test_a_late_node_does_not_disturb_workers_that_have_begun_to_end() -> None:
    job = Nodes(min_nodes=1, max_nodes=2, last_call_s=0.0).report("n1").exit("w0")
    assert job.report("n2").advance(60).parts.keys() == {"n1"}


def test_two_nodes_that_cannot_reach_each_other_do_not_go_on_together() -> None:
    job = Nodes(min_nodes=2, max_nodes=3).report("n1", "n2", "n3")
    assert job.parts.keys() == {"n1", "n2", "n3"}
    job.report("n3", unreachable=["n2"])
    assert job.roster.attempt.reason == "n3 cannot reach n2"
    job.end_attempt()
    job.advance(1.0)
    assert job.parts.keys() == {"n1", "n2"}
    job.advance(60)
    assert job.roster.attempt.is_open  # n3 would come, but not as long as it is cut off from n2
    job.report("n3").advance(60)
    assert job.roster.attempt.is_closed


def test_workers_of_an_attempt_that_is_over_are_turned_away() -> None:
    job = Nodes(max_nodes=1, max_restarts=1).report("n1").exit("w1", code=1)
    announce = Announce(incarnation="i", pid=1, address="10.0.0.1", store_port=1, probe_port=1)
    with pytest.raises(Refused, match="belongs to an attempt that is over"):
        changes.announce(job.roster, "w0", announce, job.now)


def test_classic_workers_that_are_all_silent_hang() -> None:
    job = Nodes(max_nodes=1, max_restarts=1, silence_s=30.0).report("n1")
    job.signs["n1"] = NodeSign(alive_at=job.now + 60, silent_since=job.now + 5)
    job.silence(34.0)
    assert job.roster.attempt.is_open
    job.silence(1.0)
    assert job.roster.attempt.wants_stacks
    assert "no worker printed or did anything for 30.0 s; all are restarted, 1 of 1" in job.roster.attempt.reason


def test_an_agent_that_hung_up_is_gone_soon() -> None:
    job = Nodes(min_nodes=1, max_nodes=1).report("n1")
    job.signs["n1"] = replace(job.signs["n1"], is_cut=True)
    job.silence(0.6)
    assert job.roster.attempt.reason == "n1 is gone (its agent ended)"


def test_workers_that_die_of_a_lost_node_are_no_failure() -> None:
    job = Nodes(start_nodes=2, max_nodes=2).report("n1", "n2")
    job.roster = changes.suspect_node(job.roster, "n2")
    job.exit("w0", code=1)
    assert job.roster.attempt.is_open
    assert "whether n2 is gone is not known yet" in job.reason
    job.roster = changes.node_away(job.roster, "n2", "its agent ended", job.now)
    job.advance()
    assert job.roster.attempt.reason == "n2 is gone (its agent ended)"
    assert not job.roster.is_over


def test_a_failure_is_one_when_the_suspected_node_reports_again() -> None:
    job = Nodes(start_nodes=2, max_nodes=2).report("n1", "n2")
    job.roster = changes.suspect_node(job.roster, "n2")
    job.exit("w0", code=1)
    job.report("n2")
    assert job.roster.is_stopped
