"""torch's own DDP, loader and optimizer with our sampler and trainer: uneven worlds end together, and a worker's death
restarts all, from the checkpoint, to the weights of a run that nothing happened to."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from everstep.testing.tape import Tape, is_match
from lab import nest
from lab.command import Command
from lab.stage import SCRIPTS
from lab.terminal import Run

SCRIPT = SCRIPTS / "classic_loop.py"
SAMPLES, EPOCHS, STEPS = (
    103,
    2,
    4,
)  # 103 = 3 · 32 + 7: the last step of an epoch has samples for two micro-batches of eight
MICRO_BATCHES = 8


def results(directory: Path, *command: object, **how: Any) -> list[dict[str, Any]]:
    """What a run under `python` or `torchrun` tells at its end."""
    events = directory / "events.jsonl"
    told = {"EVERSTEP_EVENTS": str(events), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, *command, "checkpoint.pt", f"--micro-batches={MICRO_BATCHES}"]
    with Command(*words, folder=directory, **told, **how) as run:
        run.finish()
    return [event for event in Tape(events).read() if event["event"] == "result"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """How one process ends, with eight micro-batches of its own in each step."""
    (result,) = results(tmp_path_factory.mktemp("alone"), SCRIPT, start=nest.start_script)
    assert (result["steps"], result["micro_batches"]) == (EPOCHS * STEPS, MICRO_BATCHES)
    return result


def test_three_workers_of_torchruns_share_eight_micro_batches_and_end_together(
    alone: dict[str, Any], tmp_path: Path
) -> None:
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=3", "--standalone", SCRIPT]
    ends = results(tmp_path, *torchrun)
    assert [event["steps"] for event in ends] == [EPOCHS * STEPS] * 3
    assert {event["weights_digest"] for event in ends} == {alone["weights_digest"]}


def test_a_killed_worker_restarts_all_and_the_end_is_that_of_one_process(alone: dict[str, Any], tmp_path: Path) -> None:
    options = ["--nnodes=1", "--nproc-per-node=3", "--max-restarts=1"]
    with Run(
        *options, SCRIPT, "checkpoint.pt", f"--micro-batches={MICRO_BATCHES}", directory=tmp_path, GATES="5"
    ) as run:

        def events(name: str, **facts: Any) -> list[dict[str, Any]]:
            return [event for event in run.tape.read() if is_match(event, name, facts)]

        run.until(lambda: len({event["worker"] for event in events("gate.reached", step=5)}) == 3, "step 5")
        run.kill("w1")
        run.until(lambda: len(events("worker.exited")) == 3, "the end of the others")
        (tmp_path / "gate-5").touch()
        run.finish()
        resumed, micro_batches, ends = events("resumed"), events("micro_batch"), events("result")

    assert {(event["epoch"], event["position"]) for event in resumed} == {(0, 96)}, "after step 3"
    assert {event["steps"] for event in ends} == {EPOCHS * STEPS - 3}
    assert {event["weights_digest"] for event in ends} == {alone["weights_digest"]}
    assert len(ends) == len(resumed) == 3

    def parts(epoch: int, *, is_before: bool) -> set[tuple[int, ...]]:
        wanted = [event for event in micro_batches if event["epoch"] == epoch]
        return {tuple(event["indices"]) for event in wanted if (event["t"] < resumed[0]["t"]) == is_before}

    assert sum(len(part) for part in parts(0, is_before=False)) == SAMPLES - 96, "only what was left of the epoch"
    epochs = [parts(0, is_before=True) | parts(0, is_before=False), parts(1, is_before=False)]
    for each in epochs:
        assert sorted(index for part in each for index in part) == list(range(SAMPLES))
