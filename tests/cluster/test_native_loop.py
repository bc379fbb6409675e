"""The native loop: whoever comes, goes or dies, each epoch has every sample once, and the weights are those of one
process that trains alone."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from everstep.testing import Result
from everstep.wire import Policy
from lab.length import usual
from lab.patience import PATIENT
from lab.random_harm import go_through
from lab.stage import Stage, undisturbed_events
from lab.unequal_machines import JOIN_AT, MICRO_BATCHES, PAUSES, check_shares, kill_and_join

# Longer than a busy machine lets anybody stand still who is not frozen.
STRICT = Policy(heartbeat_s=0.3, lease_s=6.0, arrive_s=60.0, stall_s=60.0)
EAGER = replace(PATIENT, heartbeat_s=0.3)
LOOP = "loop.py"


def audit(result: Result, args: tuple[object, ...], samples: int = 103, epochs: int = 3) -> None:
    """Each sample exactly once in each epoch's committed steps; each micro-batch as in the undisturbed run, loss and
    all; and so is the mean of what was logged. Who comes late tells the last one again."""
    undisturbed = undisturbed_events(LOOP, *map(str, args))
    alone = [event for event in undisturbed if event["event"] == "micro_batch"]
    means = {event["epoch"]: event["loss"] for event in undisturbed if event["event"] == "means"}
    told = {(event["epoch"], event["loss"]) for event in result.events("means")}
    assert len(means) == epochs and told >= means.items(), (told, means)
    assert {loss for _, loss in told} <= {*means.values(), None}
    expected = {(e["step"], tuple(e["indices"])): e["loss"] for e in alone}
    committed = {event["step"] - 1 for event in result.events("step.committed")}
    seen: dict[int, dict[tuple[int, tuple[int, ...]], None]] = defaultdict(dict)
    for event in result.events("micro_batch"):
        key = (event["step"], tuple(event["indices"]))
        assert expected[key] == event["loss"], f"another loss than undisturbed: {event}"
        if event["step"] in committed:
            seen[event["epoch"]][key] = None
    assert sorted(seen) == list(range(epochs))
    for epoch, micro_batches in seen.items():
        indices = sorted(index for _, micro_batch in micro_batches for index in micro_batch)
        assert indices == list(range(samples)), f"epoch {epoch}"


def run_alone(*args: object) -> dict[str, Any]:
    (end,) = (event for event in undisturbed_events(LOOP, *map(str, args)) if event["event"] == "result")
    return end


@pytest.mark.parametrize("seed", range(usual(3, long=6)))
def test_a_random_schedule_trains_every_sample_once_per_epoch(seed: int) -> None:
    chance = random.Random(100 + seed)
    micro_batches, batch_size = chance.choice([(6, 4), (5, 4), (3, 8)])
    samples = chance.choice([103, 98, 62])  # none leaves a single sample over, which batch norm cannot take
    args = (
        "--samples",
        samples,
        "--micro-batches",
        micro_batches,
        "--batch-size",
        batch_size,
        "--num-workers",
        chance.choice([0, 2]),
    )
    gates, last = (2, 7), 3 * ceil(samples / (micro_batches * batch_size)) - 1
    with Stage(*args, script=LOOP, gates=(*gates, last), workers=chance.randint(2, 3), policy=STRICT) as cluster:
        go_through(cluster, gates, last, chance, joins=0.4)
        result = cluster.finish_undisturbed()
    audit(result, args, samples)


@pytest.mark.parametrize("is_persistent", [False, True])
def test_a_death_in_the_short_last_batch(is_persistent: bool) -> None:
    # 50 = 2 * 24 + 2: four micro-batches have no sample
    args = ("--samples", 50, "--micro-batches", 6, "--num-workers", 1, *(["--persistent"] if is_persistent else []))
    with Stage(*args, script=LOOP, gates=[2], workers=3, policy=EAGER) as cluster:
        cluster.wait_at_gate(2, "w0", "w1", "w2")
        cluster.kill("w1")
        cluster.open_gate(2)
        result = cluster.finish_undisturbed()
    audit(result, args, samples=50)


def test_a_newcomer_catches_up_with_the_epochs_and_what_is_done_after_them() -> None:
    args = ("--epochs", 4, "--plain")
    with Stage(*args, script=LOOP, gates=[12], workers=2, policy=EAGER) as cluster:
        cluster.wait_at_gate(12)
        (newcomer,) = cluster.add(1)
        cluster.wait_ready(newcomer)
        cluster.open_gate(12)
        result = cluster.finish_undisturbed()
    audit(result, args, epochs=4)
    agreed = {(event["epoch"], event["value"]) for event in result.events("validated") if event["worker"] != newcomer}
    assert len(agreed) == 4
    rehearsed, *trained = result.events("micro_batch", worker=newcomer)
    assert rehearsed["epoch"] == 0
    assert trained and {event["epoch"] for event in trained} <= {2, 3}


@pytest.mark.parametrize(("before", "after"), [(3, 2), (1, 3)])
def test_after_the_loss_of_all_workers_a_checkpoint_goes_on_with_another_number_of_them(
    before: int, after: int, tmp_path: Path
) -> None:
    kept = tmp_path / "checkpoint.pt"
    args = ("--save", kept)
    whole = run_alone()
    with Stage(*args, script=LOOP, gates=[8], workers=before, policy=EAGER) as cluster:
        cluster.wait_at_gate(8)
        cluster.wait("saved", step=6)
        for number in range(before):
            cluster.kill(f"w{number}")
        first = cluster.finish(check=False)
    with Stage(*args, script=LOOP, workers=after, policy=EAGER) as cluster:
        second = cluster.finish()

    assert {event["step"] for event in second.events("resumed")} == {6}
    assert second.weights_digest == whole["weights_digest"]
    micro_batches = {(e["epoch"], e["step"], tuple(e["indices"])) for e in first.events("micro_batch") if e["step"] < 6}
    micro_batches |= {(e["epoch"], e["step"], tuple(e["indices"])) for e in second.events("micro_batch")}
    for epoch in range(3):
        assert sorted(i for number, _, part in micro_batches if number == epoch for i in part) == list(range(103))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_slow_worker_gets_fewer_micro_batches_and_nothing_else_differs(num_workers: int) -> None:
    samples = 4 * MICRO_BATCHES * 9 - 20  # the last step of an epoch is short
    args = ("--samples", samples, "--micro-batches", MICRO_BATCHES, "--num-workers", num_workers)
    with Stage(*args, script=LOOP, gates=[JOIN_AT], workers=3, env=PAUSES) as cluster:
        kill_and_join(cluster)
        result = cluster.finish_undisturbed()
    audit(result, args, samples)
    check_shares(result, "micro_batch")
