"""What the soak would see: other weights, records trained on twice, a newest checkpoint that is not of the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

import everstep
from soak.facts import Facts
from soak.scripts.task import RECORDS, Net, digest, optimizers
from soak.verdict import BITS, CHECKPOINTS, Problem, bits, checkpoint, records, went_back


def told(folder: Path, *facts: dict[str, Any]) -> Facts:
    path = folder / "facts.jsonl"
    path.write_text("".join(json.dumps({"worker": "w0", **fact}) + "\n" for fact in facts))
    return Facts(path)


def step(number: int, weights: str, **more: Any) -> dict[str, Any]:
    return {"fact": "step", "step": number, "digest": weights, **more}


def result(number: int, weights: str) -> dict[str, Any]:
    return {**step(number, weights), "fact": "result"}


def test_equal_weights_are_right(tmp_path: Path) -> None:
    facts = told(tmp_path, step(1, "a"), step(1, "a", worker="w1"), step(2, "b"), result(2, "b"))
    assert bits(facts, {1: "a", 2: "b"}) == bits(facts, {}) == []


def test_other_weights_than_undisturbed_are_wrong(tmp_path: Path) -> None:
    facts = told(tmp_path, step(1, "x"), result(2, "b"))
    assert bits(facts, {1: "a", 2: "b"}) == [Problem(BITS, "w0 has other weights after step 1")]


def test_without_an_expectation_workers_must_still_agree_at_the_end(tmp_path: Path) -> None:
    facts = told(tmp_path, result(2, "b"), {**result(2, "c"), "worker": "w1"})
    assert bits(facts, {}) == [Problem(BITS, "w1 has other weights after step 2")]


def test_an_end_at_another_step_is_wrong(tmp_path: Path) -> None:
    assert bits(told(tmp_path, result(2, "b")), {2: "b", 3: "c"}) == [Problem(BITS, "ended at step 2, not 3")]


def test_a_worker_that_goes_back_has_lost_its_state(tmp_path: Path) -> None:
    facts = told(tmp_path, step(5, "a"), step(6, "b"), step(6, "b", worker="w1"), step(5, "a"))
    assert went_back(facts) == [Problem(BITS, "w0 went back from step 6 to 5")]


def test_the_state_itself_knows_how_often_each_record_was_trained_on() -> None:
    net = Net()
    learning, counting = optimizers(net)
    for indices in ([0, 1, 2, 3], [4, 5, 6], [6, 7]):
        learning.zero_grad()
        counting.zero_grad()
        chosen = torch.tensor(indices)
        net.loss(net(torch.randn(len(chosen), 16), chosen), chosen % 4).backward()
        counting.step()
    assert net.tally.tolist() == [1, 1, 1, 1, 1, 1, 2, 1, *[0] * (RECORDS - 8)]


def test_a_record_that_is_in_one_step_twice_is_counted_twice() -> None:
    net = Net()
    net.tally.grad = torch.zeros(RECORDS, dtype=torch.float64)
    net.tally.grad[:3] = torch.tensor([0.1, 0.2, 0.1])
    optimizers(net)[1].step()
    assert net.tally.tolist()[:4] == [1, 2, 1, 0]


def test_records_of_another_number_are_named() -> None:
    (problem,) = records([{"worker": "w1", "wrong_records": {"7": 15.0}}])
    assert problem.reason == "w1 trained on some records another number of times: {'7': 15.0}"


def test_the_newest_checkpoint_must_be_that_of_the_end(tmp_path: Path) -> None:
    net = Net()
    with everstep.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(5, {"model": net}, wait=True)
    right = {"step": 5, "digest": digest(net.state_dict())}
    assert checkpoint(tmp_path, right) == []
    assert [each.reason for each in checkpoint(tmp_path, {**right, "step": 6})] == [
        "the newest is of step 5, the training ended at 6"
    ]
    assert [each.kind for each in checkpoint(tmp_path, {**right, "digest": "x"})] == [CHECKPOINTS]


def test_a_checkpoint_that_cannot_be_read_is_lost(tmp_path: Path) -> None:
    with everstep.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(5, {"model": Net()}, wait=True)
    next(tmp_path.rglob("*.safetensors")).write_bytes(b"")
    assert {each.kind for each in checkpoint(tmp_path, {"step": 5, "digest": ""})} == {CHECKPOINTS}
