"""A search whose operations come from a program: applied once, in the program's order, whatever is repeated."""

from __future__ import annotations

import json
import random

import pytest

from everstep.errors import UsageError
from everstep.search.config import MOST_TRIALS, read_searcher
from everstep.search.events import Programmed, TrialEnded, Validated, event_from_plain, to_plain
from everstep.search.read_space import read_space
from everstep.search.search import Search

CONFIG = read_searcher({"name": "custom", "metric": "loss", "unit": "batches"})


def create(name: str, **hparams: object) -> dict:
    return {"kind": "create", "request_id": name, "hparams": hparams, "checkpoint": None}


def validate(name: str, length: int) -> dict:
    return {"kind": "validate_after", "request_id": name, "length": length}


def close(name: str) -> dict:
    return {"kind": "close", "request_id": name}


SHUTDOWN = {"kind": "shutdown", "cancel": False, "failure": False}


def begin() -> Search:
    search = Search.begin(CONFIG, read_space({}), seed=7)
    assert search.start() == []
    return search


def post(search: Search, after: int, *operations: dict) -> list:
    return [(each.kind, getattr(each, "trial", None), getattr(each, "length", None))
            for each in search.apply(Programmed(after_event=after, operations=operations))]  # fmt: skip


def test_a_trial_trains_from_length_to_length_and_ends_when_it_is_closed():
    search = begin()
    assert post(search, 1, create("a", x=1), validate("a", 10)) == [("create", 1, None), ("train_to", 1, 10)]
    assert search.apply(Validated(trial=1, length=5, metric=3.0)) == []
    assert search.apply(Validated(trial=1, length=10, metric=2.0)) == []
    assert post(search, 4, validate("a", 20)) == [("train_to", 1, 20)]
    assert search.apply(Validated(trial=1, length=20, metric=1.0)) == []
    assert post(search, 6, close("a")) == [("stop", 1, None)]
    assert search.apply(TrialEnded(trial=1)) == [] and not search.is_done
    assert [each[0] for each in post(search, 8, SHUTDOWN)] == ["done"]
    assert search.best == (1, 1.0, 20) and search.progress == 1.0


def test_a_result_past_the_length_that_was_asked_for_may_be_the_best():
    search = begin()
    post(search, 1, create("a"), validate("a", 10))
    search.apply(Validated(trial=1, length=12, metric=1.0))
    assert search.best == (1, 1.0, 12)


def test_lengths_and_a_close_are_queued():
    search = begin()
    post(search, 1, create("a"), validate("a", 10), validate("a", 20), close("a"))
    (second,) = search.apply(Validated(trial=1, length=10, metric=2.0))
    assert (second.kind, second.length) == ("train_to", 20)
    (stop,) = search.apply(Validated(trial=1, length=25, metric=1.0))
    assert stop.kind == "stop"


def test_a_result_past_a_length_answers_it_also_when_it_is_asked_for_later():
    search = begin()
    post(search, 1, create("a"), validate("a", 10))
    search.apply(Validated(trial=1, length=16, metric=2.0))
    assert post(search, 3, validate("a", 12)) == []
    assert post(search, 4, validate("a", 17)) == [("train_to", 1, 17)]


def test_a_trial_begins_with_its_first_length_and_one_that_is_closed_before_never_trains():
    search = begin()
    assert post(search, 1, create("a"), create("b", y=2)) == []
    assert post(search, 2, validate("b", 5), close("a")) == [
        ("create", 2, None),
        ("train_to", 2, 5),
        ("create", 1, None),
        ("stop", 1, None),
    ]


WHERE = {"uuid": "u", "uri": "file:///a", "step": 3}


def test_a_checkpoint_goes_with_its_trial():
    search = begin()
    (created, _) = search.apply(
        Programmed(after_event=1, operations=[{**create("a"), "checkpoint": WHERE}, validate("a", 1)])
    )
    assert created.checkpoint == search.checkpoint_of(1) == WHERE


@pytest.mark.parametrize(
    ("how", "state"), [({}, "COMPLETED"), ({"cancel": True}, "CANCELED"), ({"failure": True}, "ERROR")]
)
def test_a_shutdown_ends_the_search_and_nothing_after_it_counts(how, state):
    search = begin()
    post(search, 1, create("a"), validate("a", 10), create("b"), validate("b", 10))
    search.apply(TrialEnded(trial=2, why="ERRORED"))
    *stopped, over = search.apply(
        Programmed(after_event=3, operations=[{**SHUTDOWN, **how}, create("c"), validate("c", 1)])
    )
    assert (over.kind, over.state) == ("done", state) and search.is_done
    assert [(each.kind, each.trial) for each in stopped] == ([("stop", 1)] if state == "COMPLETED" else [])
    assert post(search, 4, create("d"), validate("d", 1)) == []
    assert search.apply(TrialEnded(trial=1)) == []


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        (create("a"), "search-program-trial"),
        (validate("unknown", 5), "search-program-trial"),
        (close("unknown"), "search-program-trial"),
        (validate("a", 0), "search-program-operation"),
        (validate("a", True), "search-program-operation"),
        ({"kind": "progress", "progress": 2}, "search-program-operation"),
        ({"kind": "create", "request_id": "z"}, "search-program-operation"),
        ({"kind": "create", "request_id": "z", "hparams": [1]}, "search-program-operation"),
        ({"kind": "close", "request_id": "a", "more": 1}, "search-program-operation"),
        ({"kind": "shutdown", "cancel": "no"}, "search-program-operation"),
        ({"kind": "dance"}, "search-program-operation"),
    ],
)
def test_a_post_with_an_operation_that_cannot_be_applied_changes_nothing(operation, code):
    search = begin()
    post(search, 1, create("a"), validate("a", 10))
    before = search.save()
    with pytest.raises(UsageError) as error:
        post(search, 2, create("b"), operation)
    assert error.value.code == code and search.save() == before


def test_there_are_at_most_ten_thousand_trials():
    search = begin()
    post(search, 1, *(create(str(number)) for number in range(MOST_TRIALS)))
    with pytest.raises(UsageError) as error:
        post(search, 2, create("one more"))
    assert error.value.code == "search-program-trials" and MOST_TRIALS == 10_000


def test_only_a_custom_search_takes_operations():
    search = Search.begin(read_searcher({"name": "single", "metric": "loss"}), read_space({}), seed=7)
    with pytest.raises(UsageError) as error:
        search.apply(Programmed(after_event=1, operations=[]))
    assert error.value.code == "search-not-custom"


@pytest.mark.parametrize("seed", range(30))
def test_repeated_and_late_posts_and_restarts_change_nothing(seed):
    """A program that posts after each event, and a world that repeats, drops, delays and restarts."""
    quiet, _ = played(None)
    disturbed, search = played(random.Random(seed))
    assert disturbed == quiet and search.is_done


def played(chance: random.Random | None) -> tuple[list, Search]:
    search, out, sent = begin(), [], []
    facts = [{"kind": "began"}]
    number = 0
    while number < len(facts):
        number += 1
        wanted = decided(facts[number - 1])
        event = Programmed(after_event=number, operations=wanted)
        sent.append(event)
        for each in disturbed_by(chance, event, sent):
            if chance is not None and chance.random() < 0.3:
                plain = json.loads(json.dumps(search.save()))
                search = Search.read(CONFIG, read_space({}), 7, plain)
            operations = search.apply(event_from_plain(json.loads(json.dumps(to_plain(each)))))
            out += [to_plain(operation) for operation in operations]
            for fact in [result for operation in operations for result in trained(operation)]:
                facts.append(fact)
                out += [to_plain(operation) for operation in search.apply(event_from_plain(fact))]
    return out, search


def disturbed_by(chance: random.Random | None, event: Programmed, sent: list[Programmed]) -> list[Programmed]:
    """What arrives: the event, maybe more often than once, and maybe an earlier one too."""
    if chance is None:
        return [event]
    late = [chance.choice(sent[:-1])] if len(sent) > 1 and chance.random() < 0.5 else []
    return [*late, *[event] * chance.randint(1, 3), *late]


def decided(fact: dict) -> list[dict]:
    if fact["kind"] == "began":
        return [each for name in "abc" for each in (create(name, x=name), validate(name, 4))]
    if fact["kind"] == "validated":
        name = "abc"[fact["trial"] - 1]
        return [close(name)] if fact["length"] >= 4 * fact["trial"] else [validate(name, fact["length"] + 4)]
    return [SHUTDOWN] if fact["trial"] == 3 else []


def trained(operation) -> list[dict]:
    if operation.kind == "train_to":
        return [{"kind": "validated", "trial": operation.trial, "length": operation.length,
                 "metric": operation.length / operation.trial}]  # fmt: skip
    if operation.kind == "stop":
        return [{"kind": "ended", "trial": operation.trial, "why": None, "length": None}]
    return []
