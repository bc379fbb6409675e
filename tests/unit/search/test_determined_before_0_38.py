"""Searches of Determined before 0.38: trials that were left behind may continue."""

from __future__ import annotations

from unit.search.determined import of, searcher

from everstep.search.events import CreateTrial, StopTrial, TrainTo, TrialEnded, Validated
from everstep.search.read_space import read_space
from everstep.search.search import Search
from everstep.search.space import Space


def one_searcher(given: dict) -> dict:
    """Halvings side by side are brackets."""
    if "searches" not in given:
        return given
    first, *more = given["searches"]
    assert all(each == first for each in more)
    sizes = {"bracket_rungs": [first["num_rungs"]] * len(given["searches"]), "max_concurrent_trials": 0}
    return {
        "name": "adaptive_asha",
        "max_length": first["max_length"],
        "divisor": first["divisor"],
        "max_trials": first["max_trials"] * len(given["searches"]),
        **sizes,
    }


@of("search_0_37")
def test_events_before_0_38(case):
    given, expected = case["input"], case["expect"]
    config = searcher({"stop_once": False, **one_searcher(given["searcher"])}, order="arrival")
    search = Search.begin(config, Space(), seed=1)
    queue, seen, answers = list(search.start()), [], {}
    for operation in queue:
        if isinstance(operation, CreateTrial):
            seen.append(["create", operation.trial])
        elif isinstance(operation, StopTrial):
            seen.append(["close", operation.trial])
            queue.extend(search.apply(TrialEnded(trial=operation.trial)))
        elif isinstance(operation, TrainTo):
            seen.append(["train_to", operation.trial, operation.length])
            trial = given["trials"][operation.trial - 1]
            number = answers[operation.trial] = answers.get(operation.trial, -1) + 1
            if trial.get("early_exit_at") == number:
                queue.extend(search.apply(TrialEnded(trial=operation.trial, why="ERRORED")))
            else:
                event = Validated(trial=operation.trial, length=operation.length, metric=trial["metric"])
                queue.extend(search.apply(event))
    assert seen == expected["operations"]


@of("outcome_0_37")
def test_outcomes_before_0_38(case):
    given = case["input"]
    is_constant = given["metric"] == "constant"
    order = "arrival" if given["searcher"].get("stop_once") else "exact"
    space = Space()
    if given["searcher"]["name"] == "grid":
        space = read_space({"a": {"choice": [1, 2]}, "b": 1, "c": {"int": [1, 3], "count": 3}})
    search = Search.begin(searcher(given["searcher"], order=order), space, seed=1)
    trained: dict[int, list[int]] = {}
    queue = list(search.start())
    while queue:
        operation = queue.pop(0)
        if isinstance(operation, TrainTo):
            trained.setdefault(operation.trial, []).append(operation.length)
            metric = 1.0 if is_constant else operation.trial
            queue += search.apply(Validated(trial=operation.trial, length=operation.length, metric=metric))
        elif isinstance(operation, StopTrial):
            queue += search.apply(TrialEnded(trial=operation.trial))
    counts: dict[str, int] = {}
    for lengths in trained.values():
        counts[" ".join(map(str, lengths))] = counts.get(" ".join(map(str, lengths)), 0) + 1
    assert search.is_done and counts == case["expect"]["counts"]
