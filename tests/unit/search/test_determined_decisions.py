"""Single decisions of Determined's: places in a rung, who is stopped there, which metric counts."""

from __future__ import annotations

from fractions import Fraction

from unit.search.determined import BAD_METRIC, LATE, instead, of, searcher

from everstep.errors import UsageError
from everstep.record.trial_result import read_result
from everstep.search.arrival_halving import ArrivalHalving, Rung
from everstep.search.config import SearchConfig
from everstep.search.events import StopTrial, Validated, finite
from everstep.search.method import STOPPED, TrialRecord
from everstep.search.space import Space
from lab.refused import refused


@of("rung_insert")
def test_place_in_a_rung(case):
    given = case["input"]
    rung = Rung(length=1, ranks=[(False, each) for each in given["metrics"]], numbers=[0] * len(given["metrics"]))
    assert rung.insert((False, given["new"]), 1, is_before_equals=True) == case["expect"]["index"]
    assert [value for _, value in rung.ranks] == case["expect"]["metrics"]


def rung_story(given: dict) -> ArrivalHalving:
    """In the middle of a search."""
    lengths = given["lengths"]
    config = SearchConfig(
        name="async_halving", order="arrival", max_length=lengths[-1], max_trials=len(given["at"]),
        num_rungs=len(lengths), divisor=Fraction(str(given["divisor"])), max_concurrent_trials=0,
    )  # fmt: skip
    method = ArrivalHalving(config, Space(), 1)
    method.rungs = [[Rung(length=length) for length in lengths]]
    for rung, results in zip(method.rungs[0], given["rungs"], strict=True):
        rung.ranks, rung.numbers = [(False, each) for _, each in results], [number for number, _ in results]
    for number, at in given["at"].items():
        method.trials[int(number)] = TrialRecord(number=int(number), place=int(number), rung=at)
    return method


@of("rung_decision")
def test_decision_at_a_rung(case):
    given, expected = case["input"], case["expect"]
    method = rung_story(given)
    trial, time, metric = given["validation"]
    method.validated(method.trials[trial], Validated(trial=trial, length=time, metric=metric))

    assert any(isinstance(each, StopTrial) for each in method.out) == expected["stop"]
    found = [[[n, v] for n, (_, v) in zip(each.numbers, each.ranks, strict=True)] for each in method.rungs[0]]
    assert found == expected["rungs"]
    assert {number: method.trials[int(number)].rung for number in given["at"]} == expected["at"]


@instead(LATE, kind="rung_decision")
def test_a_late_result_of_a_stopped_trial_is_not_inserted(case):
    method = rung_story(case["input"])
    trial, time, metric = case["input"]["validation"]
    method.trials[trial].state = STOPPED
    before = method.save()
    method.validated(method.trials[trial], Validated(trial=trial, length=time, metric=metric))
    assert method.out == [] and method.save() == before


def read(given: dict, metrics: dict) -> tuple[int, float | None]:
    """As loops do, and then the search. JSON has no NaN: the cases have texts."""
    plain = {name: float(value) if value in ("NaN", "Infinity") else value for name, value in metrics.items()}
    length, metric = read_result(plain, metric=given["metric"], unit=given["time_metric"])
    return length, finite(float(metric))


@of("metric_reading")
def test_metric_of_a_validation(case):
    given, expected = case["input"], case["expect"]
    if "error" in expected:
        with refused(f"searcher-{expected['error'].replace('_', '-')}-missing", UsageError):
            read(given, given["metrics"])
    else:
        assert read(given, given["metrics"]) == (expected["time"], expected["value"])


@instead(BAD_METRIC, kind="search")
def test_a_result_without_its_numbers_never_reaches_the_search(case):
    config = searcher(case["input"]["searcher"], order="arrival")
    given = {"metric": config.metric, "time_metric": config.unit}
    metrics, (_, what) = case["expect"]["steps"][-1]["event"][2], case["expect"]["steps"][-1]["actions"][0]
    if case["id"] == "search-057":  # NaN
        assert read(given, metrics)[1] is None
        return
    with refused(f"searcher-{what.replace('_', '-')}-missing", UsageError):
        read(given, metrics)


@instead(BAD_METRIC, kind="metric_reading")
def test_a_metric_that_is_not_finite_is_the_worst_value(case):
    given = case["input"]
    assert read(given, given["metrics"])[1] is None
