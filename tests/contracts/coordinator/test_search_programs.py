"""Search programs on both stores: posts are applied once, whatever dies. And Optuna's samples, kept as events."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator

import pytest

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.errors import Refused
from lab.command import until
from lab.experiments import ToyTrials, spec
from lab.search_programs import close, create, custom, post, searched, tpe, validate


@pytest.fixture
def people(server_on_each_store) -> Iterator[Coordinator]:
    with Coordinator(server_on_each_store.url, server_on_each_store.token, "none") as coordinator:
        yield coordinator


@pytest.fixture
def toys(server_on_each_store, people) -> Iterator[ToyTrials]:
    toys = ToyTrials(
        server_on_each_store.url, server_on_each_store.token, people.create_experiment(custom()).experiment
    )
    yield toys
    toys.close()


def test_a_post_is_applied_once_and_its_state_goes_with_it(people, toys):
    number = toys.experiment
    first = post(1, create("a", lr=0.1), validate("a", 8), state="one")
    assert people.search_state(number) == wire.SearchState(after_event=0, state="", last_event=1)
    known = people.search_operations(number, first)
    assert known == wire.SearchState(after_event=1, state="one", last_event=2)
    assert people.search_operations(number, first) == known
    late = post(1, create("b", lr=0.2), validate("b", 8), state="another")
    assert people.search_operations(number, late) == known  # there was one after this event
    (trial,) = toys.trials()
    assert (trial.trial, trial.hparams, trial.target) == (1, {"lr": 0.1}, 8)


def test_posts_that_cannot_be_applied_are_refused_and_change_nothing(people, toys):
    number = toys.experiment
    people.search_operations(number, post(1, create("a"), validate("a", 8), state="one"))
    before = (people.search_state(number), toys.trials())
    for bad, code in (
        (post(9, create("b")), "search-event-ahead"),
        (post(2, create("b"), create("a")), "search-program-trial"),
        (post(2, create("b"), {"kind": "dance"}), "search-program-operation"),
        (post(2, {**create("b"), "checkpoint": "unknown"}), "checkpoint-unknown"),
        (post(2, create("b", lr=float("nan"))), "body-inconsistent"),
        (post(2, create("b", layers={"sizes": [8, float("inf")]})), "body-inconsistent"),
    ):
        with pytest.raises(Refused) as refused:
            people.search_operations(number, bad)
        assert refused.value.code == code
    assert (people.search_state(number), toys.trials()) == before


def test_only_a_custom_search_takes_operations(people):
    number = people.create_experiment(spec("random")).experiment
    with pytest.raises(Refused) as refused:
        people.search_operations(number, post(1, create("a")))
    assert refused.value.code == "search-not-custom"


def test_events_are_held_until_there_is_one_and_a_shutdown_ends_the_experiment(people, toys):
    number = toys.experiment
    people.search_operations(number, post(1, create("a"), validate("a", 8), create("b"), validate("b", 8)))
    assert toys.train(1) == wire.WAIT
    events = people.search_events(number, after=2, is_held=True).events
    assert [(each.number, each.event["kind"], each.event["trial"]) for each in events] == [(3, "validated", 1)]
    people.search_operations(number, post(3, {"kind": "progress", "progress": 0.5}))
    assert people.experiment(number).progress == 0.5
    people.search_operations(number, post(4, {"kind": "close", "request_id": "a"}))
    until(lambda: toys.trials()[0].state == wire.COMPLETED, lambda: str(toys.trials()))
    people.search_operations(number, post(6, {"kind": "shutdown", "cancel": False, "failure": False}))
    until(lambda: people.experiment(number).state == wire.COMPLETED, lambda: str(people.experiment(number)))
    found = people.search_events(number, after=0, is_held=True)
    assert found.is_over and found.events[0].event == {"kind": "began"}
    known = people.search_state(number)
    assert people.search_operations(number, post(7, create("c"))) == known  # too late: ignored


@pytest.mark.parametrize("is_closed_before", [False, True])
def test_a_trial_begins_with_the_checkpoint_that_the_program_names_once_its_own_trial_ends(
    people, toys, is_closed_before
):
    number = toys.experiment
    people.search_operations(number, post(1, create("a"), validate("a", 8)))
    saved = wire.CheckpointReport(uuid=str(uuid.uuid4()), uri="file:///somewhere", step=8)
    begin = [{**create("b"), "checkpoint": saved.uuid}, validate("b", 16)]
    with toys.open(1) as job:
        job.report_checkpoint(saved)
        for too_early in ([], [close("a")], [close("a"), validate("a", 16)]):
            with pytest.raises(Refused) as refused:
                people.search_operations(number, post(2, *too_early, *begin))
            assert refused.value.code == "checkpoint-of-open-trial"
        job.report_result(wire.TrialResult(length=8, metric=0.5, batches=8))
    if is_closed_before:
        people.search_operations(number, post(3, close("a")))
    last = people.search_state(number).last_event
    people.search_operations(number, post(last, *([] if is_closed_before else [close("a")]), *begin))
    made = [each for row in people.search_events(number).events for each in row.operations if each["kind"] == "create"]
    assert made[1]["checkpoint"] == {"uuid": saved.uuid, "uri": "file:///somewhere", "step": 8}


# --- Optuna


@pytest.fixture
def _optuna():
    pytest.importorskip("optuna")


@pytest.mark.usefixtures("_optuna")
def test_tpe_on_one_slot_and_on_three_tries_the_same(server_on_each_store):
    alone = searched(server_on_each_store, 1, None)
    assert [each[0] for each in alone] == list(range(1, 10))
    assert searched(server_on_each_store, 3, random.Random(3)) == alone


def test_a_search_whose_package_is_missing_is_refused_with_how_to_get_it(tmp_path, server_class):
    server = server_class(tmp_path, str(tmp_path / "store.db"), before="import sys\nsys.modules['optuna'] = None\n")
    try:
        missing = pytest.raises(Refused, match=r"needs optuna.*pip install 'everstep\[search\]'")
        with Coordinator(server.url, server.token, "none") as people, missing:
            people.create_experiment(tpe(1))
    finally:
        server.end()
