"""A newcomer gets its state while the others compute; they wait for neither its work nor its transfer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from lab.stage import Stage

ARGS = ["--steps", 14, "--micro-batches", 6, "--ballast-mb", 32, "--worker", "w2"]
CHANGED = re.compile(
    "the state changed on its way|w2 received a state with checksum"
)  # whether the sender or w2 is first to report it


def test_the_others_compute_while_a_newcomer_receives_the_state() -> None:
    with Stage(
        *ARGS, "--kind", "slow-join", script="trouble.py", gates=[4, "transfer-1", "perturbed-5"], workers=2
    ) as cluster:
        join_at_4(cluster)
        cluster.wait_at_gate("transfer-1", "w2")
        cluster.wait_at_gate("perturbed-5", "w0", "w1")  # in the step in which it joins
        assert cluster.events("transfer.received", worker="w2") == []
        cluster.open_gate("perturbed-5")
        cluster.open_gate("transfer-1")
        result = cluster.finish_undisturbed()
    assert {event["worker"] for event in result.outputs} == {"w0", "w1", "w2"}
    assert result.events("generation.closed", worker="w0") == []  # nothing broke


def test_a_script_that_changes_its_state_within_a_step_has_it_copied_first() -> None:
    with Stage(
        *ARGS,
        "--kind",
        "perturb",
        "--at-step",
        1,
        script="trouble.py",
        gates=[4, "transfer-1", "perturbed-5"],
        workers=2,
    ) as cluster:
        join_at_4(cluster)
        cluster.wait_at_gate("transfer-1", "w2")
        cluster.wait_at_gate("perturbed-5", "w0", "w1")
        cluster.open_gate("transfer-1")
        cluster.wait("transfer.received", worker="w2")
        cluster.open_gate("perturbed-5")
        result = cluster.finish_undisturbed()
    assert {event["worker"] for event in result.outputs} == {"w0", "w1", "w2"}
    assert result.events("generation.closed", worker="w0") == []


def test_a_state_that_first_changes_while_it_is_sent_is_sent_again() -> None:
    with changing(micro_batches=6) as cluster:
        result = cluster.finish_undisturbed()
    assert {event["worker"] for event in result.outputs} == {"w0", "w1", "w2"}


def test_a_newcomer_is_turned_away_if_the_sender_is_in_the_middle_of_the_change_and_the_next_one_joins() -> None:
    with changing(micro_batches=3) as cluster:  # w0 has one, its last, in which it regroups
        cluster.wait("worker.exited", worker="w2", exit_code=1)
        cluster.wait_at_gate(8, "w0", "w1")
        (other,) = cluster.add()
        cluster.wait_ready(other)
        cluster.open_gate(8)
        result = cluster.finish_undisturbed()
    assert {event["worker"] for event in result.outputs} == {"w0", "w1", other}


@contextmanager
def changing(micro_batches: int) -> Iterator[Stage]:
    """The script first changes its state in the step in which w2 joins."""
    args = [*ARGS, "--micro-batches", micro_batches, "--kind", "perturb", "--at-step", 5]
    gates = [4, "transfer-1", "perturbed-5", *([8] if micro_batches == 3 else [])]
    with Stage(*args, script="trouble.py", gates=gates, workers=2) as cluster:
        join_at_4(cluster)
        cluster.wait_at_gate("transfer-1", "w2")
        cluster.wait_at_gate("perturbed-5", "w0", "w1")
        cluster.open_gate("transfer-1")
        cluster.wait("generation.closed", worker="w0", reason=lambda why: CHANGED.search(why))
        cluster.open_gate("perturbed-5")
        yield cluster


def join_at_4(cluster: Stage) -> None:
    cluster.wait_at_gate(4)
    assert cluster.add() == ["w2"]
    cluster.wait_ready("w2")
    cluster.open_gate(4)
