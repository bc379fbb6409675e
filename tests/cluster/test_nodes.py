"""`everstep run` on several hosts with networks of their own: workers, agents and hosts go, and come.

Scripts of torch's DDP, which know nothing of us, are restarted all together and go on from their checkpoint. Those that
use the engine are kept, only the dead are replaced, and the weights are those of an undisturbed run, bit for bit."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from everstep.testing import can_make_hosts
from everstep.testing.cluster import JOB
from nodes import Nodes
from stage import pass_time

pytestmark = pytest.mark.skipif(not can_make_hosts(), reason="needs root, iproute2 and nftables")

STEPS, LEAVES = 40, 6
LAST = STEPS - 1


def ddp(*options: str, **settings: object) -> Nodes:
    """torch's DDP, held before its last step."""
    options = ("--undecided-s=0.3", *options)
    return Nodes("checkpoint.pt", "--steps", STEPS, script="ddp.py", options=options, gates=[LAST], **settings)


def engine(*options: str, gates: Sequence[int] = (), **settings: object) -> Nodes:
    """The engine, held in its last step and wherever else a newcomer is to be waited for."""
    args = ["--steps", STEPS, "--leaves", LEAVES, "--leaf-s", 0.01]
    return Nodes(*args, options=options, gates=[*gates, LAST], **settings)


def puppets() -> Nodes:
    """Workers without a model, for stories that are about something else."""
    return Nodes("3", script="puppet.py", options=["--nnodes=2"], env={"EVERSTEP_NURSERY": "off"})


# --- meeting ----------------------------------------------------------------------------------------


def test_a_node_without_the_token_is_told_how_to_get_it(tmp_path: Path) -> None:
    """Homes are not shared: the one that has the token in its environment meets the first, the other does not."""
    elsewhere = {"HOME": str(tmp_path)}
    with puppets() as nodes:
        nodes.run(1, env={"EVERSTEP_TOKEN": "a-token-of-our-own"})
        (stranger,) = nodes.run(2, env=elsewhere)
        assert nodes.exit_code(stranger) == 2
        nodes.run(3, env=elsewhere | {"EVERSTEP_TOKEN": "a-token-of-our-own"})
        result = nodes.finish()
        told = nodes.said(stranger)
        assert not any("a-token-of-our-own" in nodes.said(name) for name in result.exit_codes)
    assert f"no token for the coordinator at {nodes.url.removeprefix('http://')}" in told
    assert f"HINT: set EVERSTEP_TOKEN on all nodes, or let them share the home folder: it is in {tmp_path}" in told
    assert result.exit_codes == {"node1": 0, stranger: 2, "node3": 0}


def test_the_first_host_may_come_last_and_the_same_command_starts_a_new_job() -> None:
    with puppets() as nodes:
        (early,) = nodes.run(2)
        nodes.wait_said(early, "waiting for the coordinator")
        pass_time(2.5)  # longer than a token may take to come once the coordinator is there
        (late,) = nodes.run(1)
        assert nodes.finish().exit_codes == {early: 0, late: 0}
        again = nodes.run(1, 2)
        result = nodes.finish()
    assert result.exit_codes == dict.fromkeys((early, late, *again), 0)
    assert len(result.events("step.committed", step=3)) == 4


def test_a_node_whose_workers_have_ended_says_for_whom_it_waits() -> None:
    with Nodes(script="linger.py", options=["--nnodes=2"], env={"EVERSTEP_NURSERY": "off"}, hosts=2) as nodes:
        first, second = nodes.run(1, 2)
        nodes.until(lambda: "w0 finished" in nodes.said(first) + nodes.said(second), "the first worker's end")
        waits, lingers = (first, second) if "w0 finished" in nodes.said(first) else (second, first)
        agent = next(each.agent for each in nodes.view().workers if each.worker == "w1")
        nodes.wait_said(waits, f"waiting for w1 on {agent} to end")
        nodes.open_gate("end")
        result = nodes.finish()
    assert result.exit_codes == {waits: 0, lingers: 0}


# --- torch's DDP ------------------------------------------------------------------------------------


def test_a_killed_ddp_worker_restarts_all_on_a_fresh_port() -> None:
    with ddp("--nnodes=3", "--max-restarts=1") as nodes:
        names = nodes.run(1, 2, 3)
        nodes.wait("ddp.step", size=3, step=3)
        (victim,) = nodes.workers_on(names[1])
        nodes.kill(victim)
        nodes.wait("ddp.formed", size=3, restarts=1)
        nodes.open_gate(LAST)
        result = nodes.finish_classic()
        assert all("restarted 1 time" in nodes.said(name) for name in names)
    assert result.exit_codes == dict.fromkeys(names, 0)
    assert len({event["port"] for event in result.events("ddp.step")}) == 2


def test_ddp_goes_on_without_a_crashed_host_and_with_it_once_it_is_back() -> None:
    """The host is the one that rank 0 was on; a coordinator stands elsewhere."""
    with ddp("--nnodes=2:3", is_standing=True) as nodes:
        nodes.run(1, 2, 3)
        nodes.wait("ddp.step", size=3, step=3)
        nodes.crash(1)
        fewer = nodes.wait("ddp.formed", size=2)
        nodes.mend(1)
        (back,) = nodes.run(1)
        nodes.wait("ddp.formed", size=3, t=lambda t: t > fewer["t"])
        nodes.open_gate(LAST)
        result = nodes.finish_classic()
    assert result.exit_codes == {"node1": -signal.SIGKILL, "node2": 0, "node3": 0, back: 0}
    assert {event["restarts"] for event in result.events("ddp.formed")} == {0}  # what nodes do costs no restart


def test_ddp_goes_on_without_a_host_that_is_cut_off_until_it_is_mended() -> None:
    with ddp("--nnodes=2:3") as nodes:
        names = nodes.run(1, 2, 3)
        nodes.wait("ddp.step", size=3, step=3)
        nodes.cut(3)
        fewer = nodes.wait("ddp.formed", size=2)
        nodes.mend(3)
        nodes.wait("ddp.formed", size=3, t=lambda t: t > fewer["t"])
        nodes.open_gate(LAST)
        result = nodes.finish_classic()
    assert result.exit_codes == dict.fromkeys(names, 0)


def test_ddp_goes_on_without_one_of_two_hosts_that_lost_each_other() -> None:
    with ddp("--nnodes=2:3") as nodes:
        nodes.run(1, 2, 3)
        nodes.wait("ddp.step", size=3, step=3)
        nodes.cut_between(2, 3)
        nodes.wait("ddp.formed", size=2)
        nodes.open_gate(LAST)
        nodes.finish_classic()


def test_ddp_grows_with_its_nodes_and_shrinks_with_its_agents() -> None:
    with ddp("--nnodes=2:4", hosts=4) as nodes:
        nodes.run(1, 2)
        nodes.wait("ddp.step", size=2, step=3)
        nodes.run(3, 4)
        nodes.wait("ddp.formed", size=4)
        nodes.signal_agent("node3", signal.SIGTERM)
        fewer = nodes.wait("ddp.formed", size=3)
        nodes.signal_agent("node4", signal.SIGKILL)
        nodes.wait("ddp.formed", size=2, t=lambda t: t > fewer["t"])
        nodes.open_gate(LAST)
        result = nodes.finish_classic()
    assert result.exit_codes == {"node1": 0, "node2": 0, "node3": 128 + signal.SIGTERM, "node4": -signal.SIGKILL}


# --- the engine -------------------------------------------------------------------------------------


def let_in(nodes: Nodes, gate: int, newcomer: str, size: int) -> None:
    """The newcomer comes while the others stand at the gate, and is one of so many after it."""
    nodes.wait("worker.started", worker=newcomer)
    nodes.wait_ready(newcomer)
    nodes.open_gate(gate)
    nodes.wait("regroup.settled", worker=newcomer, size=size)


def test_the_engine_goes_on_over_a_killed_worker_a_crashed_host_and_its_return() -> None:
    with engine("--nnodes=3", "--max-restarts=1", gates=[10, 20]) as nodes:
        names = nodes.run(1, 2, 3)
        nodes.wait("step.committed", size=3, step=3)
        (victim,) = nodes.workers_on(names[1])
        nodes.kill(victim)
        let_in(nodes, 10, newcomer="w3", size=3)
        nodes.wait("step.committed", size=3, step=12)
        nodes.crash(3)
        nodes.wait("regroup.settled", size=2, step=lambda step: step > 10)
        nodes.mend(3)
        (back,) = nodes.run(3)
        let_in(nodes, 20, newcomer="w4", size=3)
        nodes.open_gate(LAST)
        result = nodes.finish_undisturbed()
    assert result.exit_codes == {names[0]: 0, names[1]: 0, names[2]: -signal.SIGKILL, back: 0}
    assert len(result.outputs) == 3


def test_the_engine_goes_on_without_a_host_that_is_cut_off_until_it_is_mended() -> None:
    with engine("--nnodes=3", gates=[20]) as nodes:
        names = nodes.run(1, 2, 3)
        nodes.wait("step.committed", size=3, step=3)
        nodes.cut(3)
        nodes.wait("regroup.settled", size=2, step=lambda step: step > 0)
        nodes.mend(3)
        nodes.open_gate(20)
        nodes.open_gate(LAST)
        result = nodes.finish_undisturbed()
    assert {result.exit_codes[name] for name in names[:2]} == {0}


def test_the_engine_goes_on_when_hosts_lose_each_other_and_when_the_first_host_is_lost() -> None:
    with engine("--nnodes=3", is_standing=True) as nodes:
        nodes.run(1, 2, 3)
        nodes.wait("step.committed", size=3, step=3)
        nodes.cut_between(2, 3)
        nodes.wait("regroup.settled", size=2, step=lambda step: step > 0)
        nodes.crash(1)
        nodes.wait("regroup.settled", size=1, step=lambda step: step > 0)
        nodes.open_gate(LAST)
        nodes.finish_undisturbed()


def test_a_job_with_a_name_goes_on_when_the_host_of_its_coordinator_is_started_again() -> None:
    with engine("--nnodes=2", "--job", JOB, gates=[20]) as nodes:
        nodes.run(1, 2)
        nodes.wait("step.committed", size=2, step=3)
        nodes.signal_agent("node1", signal.SIGKILL)
        (back,) = nodes.run(1)
        let_in(nodes, 20, newcomer="w2", size=2)
        nodes.open_gate(LAST)
        result = nodes.finish_undisturbed()
    assert result.exit_codes == {"node1": -signal.SIGKILL, "node2": 0, back: 0}


def test_the_engine_grows_with_its_nodes_and_shrinks_with_its_agents() -> None:
    with engine("--nnodes=2:4", hosts=4, gates=[10]) as nodes:
        nodes.run(1, 2)
        nodes.wait_at_gate(10)
        nodes.run(3, 4)
        for newcomer in ("w2", "w3"):
            nodes.wait("worker.started", worker=newcomer)
        nodes.wait_ready("w2", "w3")
        nodes.open_gate(10)
        nodes.wait("step.committed", size=4)
        nodes.signal_agent("node3", signal.SIGTERM)
        fewer = nodes.wait("generation.formed", size=3)
        nodes.signal_agent("node4", signal.SIGKILL)
        nodes.wait("generation.formed", size=2, generation=lambda number: number > fewer["generation"])
        nodes.open_gate(LAST)
        result = nodes.finish_undisturbed()
    assert result.exit_codes == {"node1": 0, "node2": 0, "node3": 128 + signal.SIGTERM, "node4": -signal.SIGKILL}
