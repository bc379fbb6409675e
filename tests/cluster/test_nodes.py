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
from lab.nodes import Nodes
from lab.stage import pass_time

pytestmark = pytest.mark.skipif(not can_make_hosts(), reason="needs root, iproute2 and nftables")

STEPS, MICRO_BATCHES = 40, 6
FIRST, LAST = 2, STEPS - 1

PATIENT = ("--lease-s=600", "--arrive-s=600", "--stall-s=600")  # nobody is lost by being slow
# For an agent that is killed: if it dies between two of its calls, nothing but its lease tells.
WAITING = ("--lease-s=20", "--arrive-s=60")
STRICT = ("--lease-s=6", "--arrive-s=60")  # for hosts that fall silent: longer than a busy machine lets any stand still


def ddp(*options: str, **settings: object) -> Nodes:
    """torch's DDP, held before its third step, until all are there that are to be, and before its last one."""
    options = ("--undecided-s=0.3", *options)
    return Nodes("checkpoint.pt", "--steps", STEPS, script="ddp.py", options=options, gates=[FIRST, LAST], **settings)


def let_step(nodes: Nodes, size: int) -> float:
    """Open the first gate when so many stand there; when they have stepped together."""
    nodes.wait("ddp.formed", size=size)
    nodes.open_gate(FIRST)
    return float(nodes.wait("ddp.step", size=size, step=FIRST + 1)["t"])


def wait_formed(nodes: Nodes, size: int, since: float) -> float:
    """Until torch's DDP has so many workers again; when it had."""
    return float(nodes.wait("ddp.formed", size=size, t=lambda t: t > since)["t"])


def engine(*options: str, gates: Sequence[int] = (), **settings: object) -> Nodes:
    """The engine, held in its last step and wherever else something is to be waited for."""
    return Nodes("--steps", STEPS, "--micro-batches", MICRO_BATCHES, options=options, gates=[*gates, LAST], **settings)


def puppets() -> Nodes:
    """Workers without a model, for stories that are about something else."""
    return Nodes("3", script="puppet.py", options=["--nnodes=2", *PATIENT], env={"EVERSTEP_NURSERY": "off"})


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
    assert (
        f"HINT: set the same EVERSTEP_TOKEN on all nodes, or let them share the home folder: it is in {tmp_path}"
        in told
    )
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
    with Nodes(script="linger.py", options=["--nnodes=2", *PATIENT], env={"EVERSTEP_NURSERY": "off"}, hosts=2) as nodes:
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
    with ddp("--nnodes=3", "--max-restarts=1", *PATIENT) as nodes:
        names = nodes.run(1, 2, 3)
        let_step(nodes, 3)
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
    with ddp("--nnodes=2:3", *STRICT, is_standing=True) as nodes:
        names = nodes.run(1, 2, 3)
        whole = let_step(nodes, 3)
        leader = nodes.wait("ddp.step", size=3, rank=0)["worker"]
        crashed = next(number for number, name in enumerate(names, 1) if leader in nodes.workers_on(name))
        nodes.hosts.crash(crashed)
        fewer = wait_formed(nodes, 2, since=whole)
        nodes.hosts.mend(crashed)
        (back,) = nodes.run(crashed)
        wait_formed(nodes, 3, since=fewer)
        nodes.open_gate(LAST)
        result = nodes.finish_classic()
    assert result.exit_codes == dict.fromkeys((*names, back), 0) | {names[crashed - 1]: -signal.SIGKILL}
    assert {event["restarts"] for event in result.events("ddp.formed")} == {0}  # what nodes do costs no restart


def test_ddp_goes_on_without_a_host_that_is_cut_off_until_it_is_mended() -> None:
    with ddp("--nnodes=2:3", *STRICT) as nodes:
        names = nodes.run(1, 2, 3)
        whole = let_step(nodes, 3)
        nodes.hosts.cut(3)
        fewer = wait_formed(nodes, 2, since=whole)
        nodes.hosts.mend(3)
        wait_formed(nodes, 3, since=fewer)
        nodes.open_gate(LAST)
        result = nodes.finish_classic()
    assert result.exit_codes == dict.fromkeys(names, 0)


def test_ddp_goes_on_without_one_of_two_hosts_that_lost_each_other() -> None:
    with ddp("--nnodes=2:3", *PATIENT) as nodes:
        nodes.run(1, 2, 3)
        whole = let_step(nodes, 3)
        nodes.hosts.cut_between(2, 3)
        wait_formed(nodes, 2, since=whole)
        nodes.open_gate(LAST)
        nodes.finish_classic()


def test_ddp_grows_with_its_nodes_and_shrinks_with_its_agents() -> None:
    with ddp("--nnodes=2:4", *WAITING, hosts=4) as nodes:
        nodes.run(1, 2)
        few = let_step(nodes, 2)
        nodes.run(3, 4)
        more = wait_formed(nodes, 4, since=few)
        nodes.signal_agent("node3", signal.SIGTERM)
        fewer = wait_formed(nodes, 3, since=more)
        nodes.signal_agent("node4", signal.SIGKILL)
        wait_formed(nodes, 2, since=fewer)
        nodes.open_gate(LAST)
        result = nodes.finish_classic()
    assert result.exit_codes == {"node1": 0, "node2": 0, "node3": 128 + signal.SIGTERM, "node4": -signal.SIGKILL}


# --- the engine -------------------------------------------------------------------------------------


def let_in(nodes: Nodes, gate: int, newcomer: str, size: int) -> None:
    """Start a newcomer while the others wait at the gate or lack a peer. They must know of the newcomer before the gate
    opens; otherwise, they would reach the next gate without it. `size`: how many train after that."""
    nodes.wait("worker.started", worker=newcomer)
    nodes.wait_ready(newcomer)
    nodes.open_gate(gate)
    nodes.wait("regroup.settled", worker=newcomer, size=size)


def test_the_engine_goes_on_over_a_killed_worker_a_crashed_host_and_its_return() -> None:
    with engine("--nnodes=3", "--max-restarts=1", *STRICT, gates=[10, 20, 30]) as nodes:
        names = nodes.run(1, 2, 3)
        nodes.wait("step.committed", size=3, step=3)
        (victim,) = nodes.workers_on(names[1])
        nodes.kill(victim)
        let_in(nodes, 10, newcomer="w3", size=3)
        nodes.wait("step.committed", size=3, step=12)
        nodes.hosts.crash(3)
        nodes.open_gate(20)
        nodes.wait("regroup.settled", size=2, step=lambda step: step > 10)
        nodes.hosts.mend(3)
        (back,) = nodes.run(3)
        let_in(nodes, 30, newcomer="w4", size=3)
        nodes.open_gate(LAST)
        result = nodes.finish_undisturbed()
    assert result.exit_codes == {names[0]: 0, names[1]: 0, names[2]: -signal.SIGKILL, back: 0}
    assert len(result.outputs) == 3


def test_the_engine_goes_on_without_a_host_that_is_cut_off_until_it_is_mended() -> None:
    with engine("--nnodes=3", *STRICT, gates=[20]) as nodes:
        names = nodes.run(1, 2, 3)
        nodes.wait_at_gate(20, "w0", "w1", "w2")
        nodes.hosts.cut(3)
        nodes.open_gate(20)
        nodes.wait("regroup.settled", size=2, step=20)
        nodes.hosts.mend(3)
        nodes.open_gate(LAST)
        result = nodes.finish_undisturbed()
    assert {result.exit_codes[name] for name in names[:2]} == {0}


def test_the_engine_goes_on_when_hosts_lose_each_other_and_when_the_first_host_is_lost() -> None:
    with engine("--nnodes=3", *STRICT, "--stall-s=5", is_standing=True, gates=[5, 10]) as nodes:
        nodes.run(1, 2, 3)
        nodes.wait_at_gate(5, "w0", "w1", "w2")
        nodes.hosts.cut_between(2, 3)
        nodes.open_gate(5)
        nodes.wait("regroup.settled", size=2, step=5)
        nodes.wait_at_gate(10)
        nodes.hosts.crash(1)
        nodes.open_gate(10)
        nodes.wait("regroup.settled", size=1, step=lambda step: step > 5)
        nodes.open_gate(LAST)
        nodes.finish_undisturbed()


def test_a_job_with_a_name_goes_on_when_the_host_of_its_coordinator_is_started_again() -> None:
    with engine("--nnodes=2", "--job", JOB, *STRICT, gates=[20]) as nodes:
        nodes.run(1, 2)
        nodes.wait("step.committed", size=2, step=3)
        nodes.signal_agent("node1", signal.SIGKILL)
        (back,) = nodes.run(1)
        let_in(nodes, 20, newcomer="w2", size=2)
        nodes.open_gate(LAST)
        result = nodes.finish_undisturbed()
    assert result.exit_codes == {"node1": -signal.SIGKILL, "node2": 0, back: 0}


def test_the_engine_grows_with_its_nodes_and_shrinks_with_its_agents() -> None:
    with engine("--nnodes=2:4", *WAITING, hosts=4, gates=[10, 20, 30]) as nodes:
        nodes.run(1, 2)
        nodes.wait_at_gate(10)
        nodes.run(3, 4)
        for newcomer in ("w2", "w3"):
            nodes.wait("worker.started", worker=newcomer)
        nodes.wait_ready("w2", "w3")
        nodes.open_gate(10)
        more = nodes.wait("step.committed", size=4)
        nodes.signal_agent("node3", signal.SIGTERM)
        nodes.wait_said("node3", "SIGTERM: workers have")  # its worker has it too, and goes after this step
        nodes.open_gate(20)
        fewer = nodes.wait("generation.formed", size=3, generation=lambda number: number > more["generation"])
        nodes.signal_agent("node4", signal.SIGKILL)
        nodes.open_gate(30)
        nodes.wait("generation.formed", size=2, generation=lambda number: number > fewer["generation"])
        nodes.open_gate(LAST)
        result = nodes.finish_undisturbed()
    assert result.exit_codes == {"node1": 0, "node2": 0, "node3": 128 + signal.SIGTERM, "node4": -signal.SIGKILL}
