"""What a trial takes over from one that is the same training, and what a second training is compared by."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from everstep import wire
from everstep.coordinator.experiments.facts import CheckpointRecord, Trial
from everstep.coordinator.experiments.reuse import Reuse, TrainedBefore, decide_reuse, reuse_key, reused_text
from everstep.coordinator.experiments.verification import as_constants
from everstep.jobs.verification import compare, first_difference, kinds_note
from everstep.search.config import SearchConfig
from everstep.search.read_space import read_space

CONFIG = SearchConfig(name="grid", metric="loss")
NEW = Trial(experiment=2, number=1, trial_id=9, bracket=0, hparams={"lr": 0.1}, seed=5, created_at=0.0, target=64)
OLD = replace(NEW, experiment=1, trial_id=3, state=wire.COMPLETED, wish=wire.STOP)


def result(length: int, *, is_planned: bool = False) -> wire.TrialResult:
    return wire.TrialResult(length=length, metric=1 / length, batches=length, digest=f"{length}", is_planned=is_planned)


def saved(step: int, state: str = wire.COMPLETED) -> CheckpointRecord:
    facts: dict[str, Any] = {"generation": 1, "num_bytes": 1, "metrics": {}, "metric": 1 / step, "code": ""}
    return CheckpointRecord(
        uuid=f"u{step}", job=OLD.job, experiment=1, trial=1, uri="x", step=step, created_at=0.0, state=state, **facts
    )


def before(*results: wire.TrialResult, steps: tuple[int, ...] = (), trial: Trial = OLD, **more: Any) -> TrainedBefore:
    known = {each.length: each for each in results}
    more = {"targets": [each.length for each in results if not each.is_planned], **more}
    return TrainedBefore(trial=trial, results=known, checkpoints=[saved(step) for step in steps], **more)


ORDER: dict[str, Any] = {"code": "c", "workdir": "", "script": "a.py", "args": ["--lr", "{lr}"], "env": {"A": "1"}}


def key_of(**change: Any) -> str:
    """Of a training in which only this is different."""
    spec = wire.ExperimentSpec(request="x", searcher={}, order=ORDER, config={"data": {"version": 1}})
    trial, config = replace(NEW, **change.pop("trial", {})), replace(CONFIG, **change.pop("search", {}))
    begins_with, kind = change.pop("begins_with", {}), change.pop("kind", "x86_64 torch-2.8")
    return reuse_key(replace(spec, **change), config, trial, begins_with=begins_with, kind=kind)


def lengths(found: Reuse) -> list[int]:
    return [each.length for each in found.results]


def test_a_known_target_is_taken_with_planned_results_below_it() -> None:
    found = decide_reuse(NEW, [before(result(8, is_planned=True), result(16), result(64), steps=(16, 64))], CONFIG)
    assert (lengths(found), found.checkpoint, found.is_over) == ([8, 64], None, False)
    assert [each.uuid for each in found.borrowed] == ["u64"]
    assert reused_text(found.noted(NEW).reused) == "results of e1-t1 reused up to 64 batches"
    begun = {"job": "e1-t1", "length": 0, "unit": "batches", "step": 8}
    assert reused_text(begun) == "continued from batch 8 of e1-t1"


def test_a_longer_target_continues_from_the_newest_checkpoint_that_is_there() -> None:
    old = before(result(8, is_planned=True), result(16), result(32), steps=(8, 16))
    old = replace(old, checkpoints=[*old.checkpoints, saved(32, "DELETED")])
    found = decide_reuse(NEW, [old], CONFIG)
    assert (lengths(found), found.checkpoint) == ([8], saved(16)), "16 and 32 were the other's targets"
    noted = found.noted(NEW)
    assert (noted.reused["uuid"], noted.reused["step"], noted.reused["checkpoints"]) == ("u16", 16, ["u16", "u8"])


def test_a_shorter_target_takes_no_checkpoint_beyond_it() -> None:
    old = before(result(32, is_planned=True), result(100), steps=(32, 64, 100))
    assert decide_reuse(NEW, [old], CONFIG).checkpoint == saved(32)


def test_with_no_checkpoint_nothing_is_taken() -> None:
    assert decide_reuse(NEW, [before(result(8, is_planned=True), result(32))], CONFIG) == Reuse()
    assert decide_reuse(NEW, [], CONFIG) == Reuse()


def test_a_script_that_validates_where_it_likes_passes_the_same_target_at_the_same_length() -> None:
    old = before(result(60, is_planned=True), result(66, is_planned=True), targets=[64])
    assert lengths(decide_reuse(NEW, [old], CONFIG)) == [60, 66]
    assert decide_reuse(replace(NEW, target=62), [old], CONFIG) == Reuse(), "a Trainer would validate at 62"


@pytest.mark.parametrize("target", [None, 64])
def test_a_script_that_ended_by_itself_ends_there_again(target: int | None) -> None:
    ended = replace(OLD, wish=wire.TRAIN)
    old = before(result(8, is_planned=True), result(20), trial=ended, targets=[target])
    found = decide_reuse(replace(NEW, target=target), [old], CONFIG)
    assert (lengths(found), found.is_over) == ([8, 20], True)
    stopped = before(result(8, is_planned=True), result(20), targets=[target])
    assert not decide_reuse(replace(NEW, target=target), [stopped], CONFIG).is_over


def test_in_epochs_a_checkpoint_needs_a_result_that_tells_its_length() -> None:
    config = replace(CONFIG, unit="epochs")
    epoch = wire.TrialResult(length=1, metric=1.0, batches=40)
    old = TrainedBefore(trial=OLD, results={1: epoch}, targets=[1], checkpoints=[saved(40), saved(60)])
    assert decide_reuse(replace(NEW, target=2), [old], config).checkpoint == saved(40)


@pytest.mark.parametrize(
    "change",
    [
        {"order": ORDER | {"code": "d"}},
        {"order": ORDER | {"workdir": "below"}},
        {"order": ORDER | {"script": "other.py"}},
        {"order": ORDER | {"args": ["--lr", "{rate}"]}},
        {"order": ORDER | {"is_module": True}},
        {"order": ORDER | {"is_program": True}},
        {"order": ORDER | {"env": {"WIDE": "1"}}},
        {"order": ORDER | {"setup": ["pip install torch==2.9"]}},
        {"num_micro_batches": 4},
        {"config": {"data": {"version": 2}}},
        {"config": {"data": {"version": 1, "path": "elsewhere"}}},
        {"config": {"data": {"version": 1}, "min_validation_period": {"batches": 2}}},
        {"trial": {"hparams": {"lr": 0.2}}},
        {"trial": {"hparams": {"lr": 0.1, "wide": False}}},
        {"trial": {"seed": 6}},
        {"search": {"metric": "accuracy"}},
        {"search": {"unit": "epochs"}},
        {"begins_with": {"uuid": "u"}},
        {"kind": "x86_64 torch-2.9"},
    ],
    ids=lambda change: next(f"{name}={value}" for name, value in change.items()),
)
def test_a_training_that_differs_in_one_part_has_another_key(change: dict[str, Any]) -> None:
    assert key_of(**change) != key_of()


def test_what_no_weight_depends_on_is_not_in_the_key() -> None:
    renamed = {"data": {"version": 1}, "name": "y", "searcher": {"max_length": 9}, "restarts": 2, "labels": ["a"]}
    assert key_of(name="y", seed=9, config=renamed, trial={"number": 7, "trial_id": 8, "bracket": 1}) == key_of()


def test_constants_are_a_space_of_the_same_point() -> None:
    hparams = {"lr": 0.1, "net": {"type": "mlp", "sizes": [4, {"type": "int"}], "none": None}, "empty": {}}
    assert read_space(as_constants(hparams), num_micro_batches=1).sample(3, 1) == hparams


# --- comparing ---


def view_of(step: int, digest: str) -> wire.SavedCheckpoint:
    return wire.SavedCheckpoint(
        uuid=f"{digest}{step}", uri="", step=step, job="", experiment=1, trial=1, metric=None, metrics={},
        state="DELETED", num_bytes=0, created_at=0.0, digest=digest,
    )  # fmt: skip


def test_equal_trainings_have_no_difference() -> None:
    both = [result(8), result(16)]
    rows = compare(both, both, [view_of(8, "a"), view_of(11, "b")], [view_of(8, "a"), view_of(12, "c")])
    assert [(row.what, row.length, row.is_equal) for row in rows] == [
        ("validation", 8, True),
        ("checkpoint", 8, True),
        ("checkpoint", 11, None),
        ("validation", 16, True),
    ]
    assert first_difference(rows) is None


def test_the_first_difference_is_named() -> None:
    kept = [result(8), result(16), result(24)]
    again = [result(8), replace(result(16), digest="x")]
    different = first_difference(compare(kept, again))
    assert different is not None and (different.length, different.again) == (16, "x")
    missing = first_difference(compare(kept, kept[:2]))
    assert missing is not None and (missing.length, missing.again) == (24, None)
    saved_at = first_difference(compare(kept, kept, [view_of(10, "a")], [view_of(10, "b")]))
    assert saved_at is not None and (saved_at.what, saved_at.length) == ("checkpoint", 10)


def test_without_digests_metrics_are_compared() -> None:
    plain = [replace(result(8), digest="")]
    assert first_difference(compare(plain, plain)) is None
    assert first_difference(compare(plain, [replace(plain[0], metric=0.5)])) is not None


def test_another_kind_of_machine_is_named() -> None:
    assert kinds_note("a", ["a", "a"]) == kinds_note("", ["b"]) == ""
    assert "b" in kinds_note("a", ["b"]) and kinds_note("a", ["a", "b"])
