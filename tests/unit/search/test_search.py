"""A search as a fold: what is saved is the search, bad events change nothing, the end is said."""

from __future__ import annotations

import json
import re

import pytest
from unit.search.world import World, noise

from everstep.errors import UsageError
from everstep.search.config import read_searcher
from everstep.search.draws import content_seed
from everstep.search.events import (
    Advanced,
    SearchOver,
    StopTrial,
    Suggested,
    TrainTo,
    TrialEnded,
    Validated,
    event_from_plain,
    to_plain,
)
from everstep.search.read_space import read_space
from everstep.search.search import Search, fold
from everstep.search.space import Space
from lab.command import ROOT

HALVING = {"name": "async_halving", "metric": "loss", "max_length": {"batches": 64}, "num_rungs": 2, "max_trials": 8}


@pytest.mark.parametrize("order", ["exact", "arrival"])
def test_a_search_is_the_fold_of_its_events(order):
    config = read_searcher({**HALVING, "order": order, "divisor": 2})
    search = Search.begin(config, Space(), 7)
    search.start()
    events = [
        Validated(trial=1, length=32, metric=0.5),
        TrialEnded(trial=2, why="ERRORED"),
        Validated(trial=4, length=32, metric=0.1),
        Advanced(trial=3, fraction=0.5),
    ]
    for event in events:
        search.apply(event)
    plain = json.loads(json.dumps(search.save()))
    assert fold(config, Space(), 7, events).save() == search.save() == Search.read(config, Space(), 7, plain).save()


@pytest.mark.parametrize(
    "event",
    [
        Validated(trial=99, length=32, metric=0.5),
        Validated(trial=1, length=-1, metric=0.5),
        TrialEnded(trial=1, why="BROKEN"),
        TrialEnded(trial=0),
        Advanced(trial=1, fraction=float("nan")),
    ],
)
def test_a_bad_event_is_refused_and_changes_nothing(event):
    search = Search.begin(read_searcher(HALVING), Space(), 7)
    search.start()
    before = search.save()
    with pytest.raises(UsageError):
        search.apply(event)
    assert search.save() == before


@pytest.mark.parametrize("name", [{}, ["random"], 5, None, "rondom"])
def test_a_name_of_no_searcher_is_refused(name):
    with pytest.raises(UsageError) as refused:
        read_searcher({**HALVING, "name": name})
    assert refused.value.code == "searcher-name-unknown"


@pytest.mark.parametrize("plain", [{"kind": "exploded"}, {"kind": "ended"}, {"kind": "ended", "trial": 1, "x": 2}, {}])
def test_an_event_that_is_none_is_refused(plain):
    with pytest.raises(UsageError):
        event_from_plain(plain)


def test_a_search_starts_once():
    search = Search.begin(read_searcher(HALVING), Space(), 7)
    assert search.start() and search.start() == []
    again = Search.read(read_searcher(HALVING), Space(), 7, search.save())
    assert again.start() == []


def test_events_and_operations_are_plain_data():
    search = Search.begin(read_searcher(HALVING), read_space({"lr": {"log": [1e-5, 1e-1]}}), 7)
    for operation in search.start():
        assert json.loads(json.dumps(to_plain(operation)))["reason"]
    event = TrialEnded(trial=1, why="ERRORED", length=3)
    assert event_from_plain(to_plain(event)) == event


@pytest.mark.parametrize(
    ("whys", "state", "reason"),
    [
        (["ERRORED", "ERRORED"], "ERROR", "all 2 trials failed"),
        (["USER_CANCELED", "USER_CANCELED"], "CANCELED", "all 2 trials were canceled"),
        (["ERRORED"], "ERROR", "the only trial failed"),
        (["USER_CANCELED"], "CANCELED", "the only trial was canceled"),
        ([None], "COMPLETED", "1 trial is over"),
        (["ERRORED", None], "COMPLETED", "2 trials are over; 1 failed"),
        ([None, None], "COMPLETED", "2 trials are over"),
    ],
)
def test_the_end_says_what_became_of_the_trials(whys, state, reason):
    config = read_searcher({"name": "random", "metric": "loss", "max_trials": len(whys)})
    search = Search.begin(config, Space(), 7)
    search.start()
    last = [search.apply(TrialEnded(trial=number, why=why)) for number, why in enumerate(whys, start=1)][-1]
    assert last == [SearchOver(state=state, reason=reason)] and search.is_done
    assert search.apply(TrialEnded(trial=1)) == []


def test_a_grid_is_not_replaced_and_goes_from_the_end():
    config = read_searcher({"name": "grid", "metric": "loss", "max_concurrent_trials": 1})
    search = Search.begin(config, read_space({"x": {"choice": [1, 2, 3]}}), 7)
    assert search.start()[0].hparams == {"x": 3}
    assert search.apply(TrialEnded(trial=1, why="INVALID_HP"))[0].hparams == {"x": 2}


def test_a_trial_of_a_random_search_is_stopped_at_its_length():
    config = read_searcher({"name": "random", "metric": "loss", "max_trials": 2, "max_length": {"epochs": 3}})
    search = Search.begin(config, Space(), 7)
    search.start()
    assert search.targets == {1: 3, 2: 3}
    assert search.apply(Validated(trial=1, length=2, metric=0.5)) == []
    stop = StopTrial(trial=1, reason="trained to 3 epochs, the full length")
    assert search.apply(Validated(trial=1, length=3, metric=0.7)) == [stop]
    assert search.apply(Validated(trial=1, length=3, metric=0.7)) == []
    assert search.best == (1, 0.5, 2)


@pytest.mark.parametrize("searcher", [{"name": "random"}, {"name": "async_halving", "num_rungs": 2}])
def test_a_replaced_trial_is_not_the_best(searcher):
    given = {**searcher, "metric": "loss", "max_trials": 2, "max_length": {"batches": 8}, "order": "arrival"}
    search = Search.begin(read_searcher(given), Space(), 7)
    search.start()
    search.apply(Validated(trial=1, length=8, metric=0.0))
    assert search.best == (1, 0.0, 8 if searcher["name"] == "random" else 2)
    search.apply(TrialEnded(trial=1, why="INVALID_HP"))
    assert search.best is None
    search.apply(Validated(trial=2, length=8, metric=2.0))
    search.apply(Validated(trial=3, length=8, metric=3.0))
    assert search.best[:2] == (2, 2.0)


PAST = [Validated(trial=1, length=6, metric=0.9), Validated(trial=1, length=12, metric=0.5)]
LATER = Validated(trial=1, length=18, metric=0.1)  # of a script that does not stop at once


@pytest.mark.parametrize("name", ["single", "random", "tpe"])
@pytest.mark.parametrize("posts", [PAST, [*PAST, LATER], [PAST[1], LATER, PAST[0]], [LATER, *PAST]])
def test_of_results_past_the_full_length_only_the_first_counts(name, posts):
    more = {} if name == "single" else {"max_trials": 2, "max_concurrent_trials": 1}
    config = read_searcher({"name": name, "metric": "loss", "max_length": {"batches": 8}, **more})
    search = Search.begin(config, Space(), 7)
    search.start()
    search.apply(Suggested(cohort=0, hparams={"1": {}, "2": {}}))
    for post in posts:
        search.apply(post)
    assert search.best == (1, 0.5, 12)
    search.apply(TrialEnded(trial=1, length=max(each.length for each in posts)))
    search.apply(Validated(trial=2, length=12, metric=0.7)) if more else None
    over = search.apply(TrialEnded(trial=2, length=12)) if more else []
    assert search.is_done and search.best == (1, 0.5, 12)
    assert [each.state for each in over] == ["COMPLETED"] * len(over)


def test_a_result_that_is_overtaken_by_its_trials_end_counts():
    config = read_searcher({**HALVING, "max_trials": 2, "divisor": 2})
    search = Search.begin(config, Space(), 7)
    search.start()
    search.apply(TrialEnded(trial=1, length=32))
    search.apply(Validated(trial=2, length=32, metric=0.5))
    (going_on,) = search.apply(Validated(trial=1, length=32, metric=0.9))
    assert (going_on.trial, going_on.length) == (2, 64)
    assert [trial["results"] for trial in search.save()["trials"]] == [[[32, 0.9]], [[32, 0.5]]]


def test_progress_grows_from_0_to_1():
    config = read_searcher({**HALVING, "divisor": 2})
    world, seen = World(config=config, space=Space(), metric=noise), []
    deliver = world._deliver

    def watched():
        seen.append(world.search.progress)
        deliver()

    world._deliver = watched
    search = world.run()
    assert seen[0] == 0 and seen == sorted(seen) and search.progress == 1.0


def test_a_single_trial_is_validated_at_given_lengths() -> None:
    section = {"name": "single", "metric": "loss", "max_length": {"batches": 64}, "lengths": [16, 4, 64]}
    search = Search.begin(read_searcher(section), read_space({}, num_micro_batches=1), 7)
    targets = [each.length for each in search.start() if isinstance(each, TrainTo)]
    for length in (2, 4, 4, 16, 64):
        operations = search.apply(Validated(trial=1, length=length, metric=1.0))
        targets += [each.length for each in operations if isinstance(each, TrainTo)]
    assert targets == [4, 16, 64]
    assert isinstance(operations[-1], StopTrial)


def test_the_contract_of_a_pure_search_names_all_its_modules() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    (listed,) = re.findall(r'"A search is pure:.*?source_modules = \[(.*?)\]', text, re.DOTALL)
    modules = {f"everstep.search.{path.stem}" for path in (ROOT / "everstep" / "search").glob("*.py")}
    assert modules - {"everstep.search.__init__", "everstep.search.optuna_process"} == set(
        re.findall(r"[\w.]+", listed)
    )


def test_a_seed_may_depend_on_hyperparameters_alone() -> None:
    assert content_seed(1, {"a": 1, "b": 0.1}) == content_seed(1, {"b": 0.1, "a": 1}) < 2**31
    assert len({content_seed(1, {"a": 1}), content_seed(2, {"a": 1}), content_seed(1, {"a": 2})}) == 3
