"""The controller: each record exactly once per epoch in the steps that were committed, whoever dies, freezes or comes,
and the weight tells that these very records were trained on."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import everstep
from everstep.testing import Result
from everstep.testing.tape import Tape
from everstep.wire import Policy
from lab.first_body import check_join, warm
from lab.length import usual
from lab.random_harm import go_through
from lab.records_audit import END, audit
from lab.stage import SCRIPTS, Stage
from lab.unequal_machines import JOIN_AT, MICRO_BATCHES, check_shares, kill_and_join

SCRIPT = "controlled.py"
# For stories in which workers freeze: longer than a busy machine lets anybody stand still.
STRICT = Policy(heartbeat_s=0.3, lease_s=6.0, arrive_s=60.0, stall_s=60.0)


def test_two_epochs_by_three_workers() -> None:
    with Stage(script=SCRIPT, workers=3) as cluster:
        result = cluster.finish()
    audit((result, END))


@pytest.mark.parametrize("loaders", [0, 2])
def test_a_killed_worker_loses_and_repeats_no_record(loaders: int) -> None:
    with Stage("--loaders", loaders, script=SCRIPT, gates=[9], workers=3) as cluster:
        cluster.wait_at_gate(9)
        cluster.kill("w1")
        cluster.open_gate(9)
        result = cluster.finish()
    audit((result, END))


@pytest.mark.parametrize("seed", range(usual(2, long=4)))
def test_a_random_schedule(seed: int) -> None:
    chance = random.Random(200 + seed)
    args = ["--loaders", chance.choice([0, 2]), "--batch-s", 0.01]
    if chance.random() < 0.5:
        args += ["--global-batches", 6]
    last = 20  # of 27 steps at least: nobody comes to the end before all is done to them
    with Stage(*args, script=SCRIPT, gates=[4, 14, last], workers=chance.randint(2, 3), policy=STRICT) as cluster:
        go_through(cluster, (4, 14), last, chance, joins=0.4, most=1)
        result = cluster.finish()
    audit((result, END))


@pytest.mark.parametrize("loaders", [0, 2])
def test_a_controllers_newcomer_leases_nothing_for_its_rehearsal(loaders: int) -> None:
    with Stage("--loaders", loaders, script=SCRIPT, gates=[3, 12, "first-w2"], workers=2) as cluster:
        warm(cluster, "w2", since=3, until=12)
        result = cluster.finish()
    check_join(result, "w2", since=3, until=12)
    audit((result, END))


def test_a_controllers_script_that_catches_an_error_of_the_rehearsal_joins_with_its_next_batch() -> None:
    trouble = ("--trouble", "w2:1:after")
    with Stage(*trouble, script=SCRIPT, gates=[3], workers=2) as cluster:
        cluster.wait_at_gate(3)
        cluster.add()
        cluster.wait("caught", worker="w2")
        cluster.wait_ready("w2")
        cluster.open_gate(3)
        result = cluster.finish()
    assert result.events("step.committed", worker="w2")
    audit((result, END))


def test_a_coordinator_that_is_killed_meanwhile() -> None:
    with Stage("--batch-s", 0.01, script=SCRIPT, gates=[8], workers=2) as cluster:
        cluster.wait_at_gate(8, "w0", "w1")
        cluster.view()  # it has answered all that was asked before: there are records for the next step
        cluster.kill_coordinator()
        cluster.open_gate(8)
        cluster.wait("step.committed", step=9)
        cluster.restart_coordinator()
        result = cluster.finish()
    audit((result, END))


def test_a_worker_whose_batch_is_not_needed_in_the_step_any_more_keeps_it_for_the_next() -> None:
    """The quick one is in the third of its four batches when a peer dies; the other survivor gets all that is left."""
    args = ("--records", 960, "--epochs", 1, "--batch-s", 0.1, "--slow", "w1:4,w2:4", "--global-batches", 6)
    with Stage(*args, "--hold", "w0:3", script=SCRIPT, gates=["batch"], workers=3) as cluster:
        cluster.wait_at_gate("batch")
        cluster.kill("w2")
        cluster.wait("generation.formed", worker="w0", size=2)
        cluster.open_gate("batch")
        cluster.open_gate("hurry")
        result = cluster.finish()
    audit((result, END), records=960, epochs=1)


@pytest.mark.parametrize("where", ["before", "after", "stepped"])
@pytest.mark.parametrize("passes", [1, 3])
def test_an_exception_that_the_script_catches_loses_and_repeats_no_record(where: str, passes: int) -> None:
    args = ("--records", 320, "--passes", passes, "--trouble", f"w1:6:{where}")
    with Stage(*args, script=SCRIPT, workers=2) as cluster:
        result = cluster.finish()
    assert [event["where"] for event in result.events("caught")] == [where]
    audit((result, END), records=320)


def test_a_slow_worker_does_less() -> None:
    """Four workers, one ten times slower: batches are shared out by pace."""
    args = ("--records", 3328, "--epochs", 1, "--batch-s", 0.04, "--slow", "w1:10", "--global-batches", 13)
    with Stage(*args, script=SCRIPT, workers=4) as cluster:
        result = cluster.finish()
    audit((result, END), records=3328, epochs=1)
    num_batches = 3328 // 8
    done = Counter(event["worker"] for event in result.events("batch.begun"))
    assert done["w1"] < num_batches / 4 / 2, done
    assert len(result.events("step.committed", worker="w0")) >= num_batches // 13


@pytest.mark.parametrize("args", [("--passes", 3), ("--global-batches", 7)])
def test_a_death_in_a_step_of_several_batches(args: tuple[object, ...]) -> None:
    with Stage(*args, "--batch-s", 0.005, script=SCRIPT, gates=[12], workers=3) as cluster:
        cluster.wait("step.committed", step=6)
        cluster.kill("w1")
        cluster.open_gate(12)
        result = cluster.finish()
    audit((result, END))


def test_a_worker_whose_own_function_fails_leaves_and_the_others_go_on() -> None:
    with Stage("--error", "w1:9", script=SCRIPT, workers=3) as cluster:
        result = cluster.finish(check=False)
        said = cluster.log("w1")
    audit((result, END))
    assert said.count("ValueError: the script's own error") == 1
    assert {event["worker"] for event in result.events("result")} == {"w0", "w2"}
    assert result.events("worker.exited", worker="w1", exit_code=1)
    assert result.exit_codes == {"node1": 1}  # all is done, but an exception of the script is no success


def test_our_wrapper_around_the_model_over_a_newcomer_and_a_death() -> None:
    with Stage("--wrap", "ours", script=SCRIPT, gates=[6, 20], workers=2) as cluster:
        cluster.wait_at_gate(6)
        cluster.wait_ready(*cluster.add(1))
        cluster.open_gate(6)
        cluster.wait_at_gate(20, "w2")
        cluster.kill("w0")
        cluster.open_gate(20)
        result = cluster.finish()
    audit((result, END))
    assert len(result.outputs) == 2


def test_torchs_wrapper_around_the_model_over_a_death() -> None:
    with Stage("--wrap", "torch", script=SCRIPT, gates=[6], workers=3) as cluster:
        cluster.wait_at_gate(6)
        cluster.kill("w0")
        cluster.open_gate(6)
        result = cluster.finish()
    audit((result, END))
    assert len(result.outputs) == 2


def test_workers_that_run_out_of_batches_leave_and_the_others_go_on() -> None:
    with Stage("--batches-each", 30, "--batches", "w1:10", script=SCRIPT, workers=3) as cluster:
        result = cluster.finish()
    assert {event["worker"]: event["steps"] for event in result.outputs} == {"w0": 30, "w1": 10, "w2": 30}


def test_a_worker_that_leaves_its_loop_early_leaves_its_records_to_the_others() -> None:
    with Stage("--batches", "w1:10", script=SCRIPT, workers=3) as cluster:
        result = cluster.finish()
    audit((result, END))
    assert len(result.outputs) == 3


@pytest.mark.parametrize("args", [(), ("--passes", 2)])
def test_after_the_loss_of_all_another_number_of_workers_goes_on_from_the_checkpoint(
    args: tuple[object, ...], tmp_path: Path
) -> None:
    args = (*args, "--checkpoint", tmp_path / "model.pt")
    with Stage(*args, script=SCRIPT, gates=[9], workers=3) as first, Stage(*args, script=SCRIPT) as second:
        first.wait("saved", step=9)
        for worker in ("w0", "w1", "w2"):
            first.kill(worker)
        second.start(2)
        result = second.finish()
        assert {event["step"] for event in result.events("resumed")} == {9}
        audit((first, 9), (result, END))


def test_a_start_of_all_over_again_in_the_same_job_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    args = ("--checkpoint", tmp_path / "model.pt")
    with Stage(*args, script=SCRIPT, gates=[9], workers=3, max_restarts=6) as cluster:
        cluster.wait("saved", step=9)
        for worker in ("w0", "w1", "w2"):
            cluster.kill(worker)
        cluster.open_gate(9)
        result = cluster.finish()
    assert result.events("resumed", step=9)
    audit((result, END))


def test_torchrun_without_a_coordinator(tmp_path: Path) -> None:
    """41 shards an epoch do not divide by 3: one worker has more than the others, who wait for it without samples."""
    tape = tmp_path / "events.jsonl"
    plain = {name: value for name, value in os.environ.items() if not name.startswith("EVERSTEP_")}
    path = f"{Path(everstep.__file__).parents[1]}{os.pathsep}{SCRIPTS}"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=3", "--standalone", SCRIPTS / SCRIPT,
         "--records=656", "--checkpoint", tmp_path / "model.pt"],
        env=plain | {"EVERSTEP_EVENTS": str(tape), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False, timeout=480,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = Result(exit_codes={}, all_events=list(Tape(tape).read()))
    audit((result, END), records=656)
    assert not result.events("report.refused")


def test_a_slow_worker_does_less_over_a_death_and_a_join() -> None:
    records = 8 * MICRO_BATCHES * 28
    args = ("--records", records, "--epochs", 1, "--global-batches", MICRO_BATCHES, "--batch-s", 0.04)
    with Stage(*args, "--slow", "w1:6", script=SCRIPT, gates=[JOIN_AT], workers=3) as cluster:
        kill_and_join(cluster)
        result = cluster.finish()
    audit((result, END), records=records, epochs=1)
    check_shares(result, "batch.begun")
