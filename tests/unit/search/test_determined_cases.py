"""Determined's searchers by cases from its own tests and sources: what it creates, stops, previews and accepts.

`NOT_COPIED` lists each case that ends differently here, with what we do instead."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from everstep.errors import UsageError
from everstep.search import grid, rungs
from everstep.search.arrival_halving import ArrivalHalving, Rung
from everstep.search.config import SearchConfig, read_searcher
from everstep.search.events import Advanced, CreateTrial, SearchOver, StopTrial, TrainTo, TrialEnded, Validated
from everstep.search.method import STOPPED, TrialRecord
from everstep.search.preview import preview
from everstep.search.read_space import read_space
from everstep.search.search import Search
from everstep.search.space import Space
from everstep.search.validation import read_validation

CASES = [json.loads(line) for line in (Path(__file__).parent / "data" / "determined.jsonl").read_text().splitlines()]

EXACT_LOGARITHM = "rungs are counted with whole numbers; Determined's logarithm is cut off one too low"
BOUNDED = "there are never more trials than max_trials asks for"
LATE = "a stopped trial's later results change nothing"
BAD_METRIC = "a metric that is not finite is the worst value; one that is missing is refused before the search sees it"
BY_ITSELF = "a trial that ends by itself makes room for the next one"
ONLY_ERRORS = "a replaced trial does not count: if all others failed, the experiment is in error"
EMPTY_GRID = "a grid without any hyperparameter is refused: Determined's never ends"
REFUSED = "refused with a hint: Determined accepts it, and then it fails or means something else"
OLD_LENGTH = "max_length means what it did before 0.38; max_time and time_metric are not needed"
ELSEWHERE = "not of the search: the job file's reader decides it"
PROGRAM = "a program searches; Determined dropped it in 0.38"
PLAIN_NUMBER = "a plain number is a number of batches for every searcher"

NOT_COPIED = {
    **dict.fromkeys(["brackets-073", "brackets-075", "brackets-076", "brackets-077"], EXACT_LOGARITHM),
    **dict.fromkeys(["brackets-089", "preview-033"], BOUNDED),
    **dict.fromkeys(["search-051", "search-052", "rung_decision-015"], LATE),
    **dict.fromkeys(["search-055", "search-056", "search-057"], BAD_METRIC),
    **dict.fromkeys(["metric_reading-007", "metric_reading-008"], BAD_METRIC),
    **dict.fromkeys(["search-049", "search-050"], BY_ITSELF),
    "search-044": ONLY_ERRORS,
    **dict.fromkeys(["plain-034", "preview-011"], EMPTY_GRID),
    **{case["id"]: ELSEWHERE for case in CASES if case["kind"] == "merge" or case["input"].get("as") == "resources"},
    **dict.fromkeys(["config-032", "config-269"], ELSEWHERE),
    **dict.fromkeys(["config-050", "config-051", "config-098"], OLD_LENGTH),
    **dict.fromkeys(["config-122", "config-218", "config-221", "config-261"], REFUSED),
    **dict.fromkeys(["config-185", "file-047", "file-112"], PROGRAM),
    "config-153": PLAIN_NUMBER,
    "outcome_0_37-015": "no file asks for two random searches side by side",
}


def of(*kinds: str):
    found = [case for case in CASES if case["kind"] in kinds and case["id"] not in NOT_COPIED]
    return pytest.mark.parametrize("case", found, ids=[case["id"] for case in found])


def searcher(given: dict, **more) -> SearchConfig:
    return read_searcher({"metric": "loss", **given, **more})


# --- arithmetic


@of("brackets")
def test_brackets(case):
    assert plain_brackets(searcher(case["input"])) == case["expect"]["brackets"]


def plain_brackets(config: SearchConfig) -> list[dict]:
    return [
        {
            "rungs": len(each.lengths),
            "trials": each.num_trials,
            "concurrent": each.num_at_once,
            "start": each.num_at_start,
            "lengths": list(each.lengths),
        }
        for each in config.brackets()
    ]


@pytest.mark.parametrize("case", [each for each in CASES if NOT_COPIED.get(each["id"]) == EXACT_LOGARITHM])
def test_rungs_are_counted_with_whole_numbers(case):
    assert len(searcher(case["input"]).brackets()[0].lengths) == case["expect"]["rungs_by_exact_logarithm"]


@of("bracket_trials")
def test_bracket_trials(case):
    given = case["input"]
    trials = rungs.bracket_trials(given["max_trials"], Fraction(str(given["divisor"])), given["rungs"])
    assert list(trials) == case["expect"]["trials"]


@of("bracket_concurrency")
def test_bracket_concurrency(case):
    given = case["input"]
    found = rungs.bracket_concurrency(given["max_concurrent_trials"], Fraction(str(given["divisor"])), given["trials"])
    assert list(found) == case["expect"]["concurrent"]


@of("rung_lengths")
def test_rung_lengths(case):
    given = case["input"]
    found = rungs.rung_lengths(given["rungs"], Fraction(str(given["divisor"])), given["max_time"])
    assert list(found) == case["expect"]["lengths"]


@of("start_trials")
def test_start_trials(case):
    given = case["input"]
    divisor = Fraction(str(given["divisor"]))
    found = rungs.num_at_start(given["max_concurrent_trials"], divisor, given["num_rungs"], given["max_trials"])
    assert found == case["expect"]["start"]


@of("preview")
@pytest.mark.parametrize("order", ["exact", "arrival"])
def test_preview(case, order):
    config = searcher(case["input"]["searcher"], order=order)
    found = preview(config, read_space(case["input"].get("hyperparameters")))
    assert [list(line) for line in found.lines] == case["expect"]["trials"]


# --- events


@of("search", "plain")
def test_events(case):
    Story(case).play()


class Story:
    """Feeds the events of a case. An early exit and the end that follows it are one event here."""

    def __init__(self, case: dict) -> None:
        self.expected = case["expect"]
        given = case["input"]
        self.config = searcher(given["searcher"], order="arrival")
        self.search = Search.begin(self.config, read_space(given.get("hyperparameters")), seed=1)
        self.is_adaptive = self.config.name == "adaptive_asha"
        self.is_grid = self.config.name == "grid"

    def play(self) -> None:
        steps, progress = self.expected["steps"], self.expected["progress"]
        skip = False
        for place, step in enumerate(steps):
            if skip:
                skip = False
                continue
            event, wanted = step["event"], list(step["actions"])
            is_last = place == len(steps) - 1
            if event[0] == "early_exit":
                wanted = [each for each in wanted if each[0] != "stop"]  # it is over: there is nothing to stop
                if not is_last and steps[place + 1]["event"] == ["exit", event[1]]:
                    wanted += steps[place + 1]["actions"]
                    skip, place = True, place + 1
            assert self.feed(event) == wanted, event
            assert self.search.progress == pytest.approx(progress[place], abs=1e-8), event

    def feed(self, event: list) -> list:
        kind, *rest = event
        if kind == "start":
            return self.shown(self.search.start())
        if kind == "exit":
            return self.shown(self.search.apply(TrialEnded(trial=rest[0])))
        if kind == "early_exit":
            why = {"INIT_INVALID_HP": "INVALID_HP", "USER_REQUESTED_STOP": None}.get(rest[1], rest[1])
            return self.shown(self.search.apply(TrialEnded(trial=rest[0], why=why)))
        if kind == "progress":
            return self.shown(self.search.apply(Advanced(trial=rest[0], fraction=rest[1])))
        trial, time, metric = rest
        if isinstance(time, dict):
            time, metric = int(time[self.config.unit]), time[self.config.metric]
        return self.shown(self.search.apply(Validated(trial=trial, length=time, metric=metric)))

    def shown(self, operations: list) -> list:
        shown = []
        for each in operations:
            assert each.reason
            if isinstance(each, CreateTrial):
                more = [each.bracket] if self.is_adaptive else [each.hparams] if self.is_grid else []
                shown.append(["create", each.trial, *more])
            elif isinstance(each, StopTrial):
                shown.append(["stop", each.trial])
            elif isinstance(each, SearchOver):
                shown.append(["shutdown", each.state])
        return shown


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


@of("metric_reading")
def test_metric_of_a_validation(case):
    given, expected = case["input"], case["expect"]
    config = searcher(
        {"name": "async_halving", "max_trials": 4, "max_time": 9, "time_metric": given["time_metric"]},
        metric=given["metric"],
    )
    if "error" in expected:
        with pytest.raises(UsageError) as error:
            read_validation(config, 1, given["metrics"])
        assert error.value.code == f"search-{expected['error'].replace('_', '-')}-missing"
    else:
        found = read_validation(config, 1, given["metrics"])
        assert (found.length, found.metric) == (expected["time"], expected["value"])


@pytest.mark.parametrize("id", ["search-055", "search-056", "search-057"])
def test_a_result_without_its_numbers_never_reaches_the_search(id):
    case = next(each for each in CASES if each["id"] == id)
    config = searcher(case["input"]["searcher"], order="arrival")
    (trial, metrics), (_, what) = case["expect"]["steps"][-1]["event"][1:3], case["expect"]["steps"][-1]["actions"][0]
    if id == "search-057":  # NaN
        assert read_validation(config, trial, metrics).metric is None
        return
    with pytest.raises(UsageError) as error:
        read_validation(config, trial, metrics)
    assert error.value.code == f"search-{what.replace('_', '-')}-missing"


@pytest.mark.parametrize("id", ["metric_reading-007", "metric_reading-008"])
def test_a_metric_that_is_not_finite_is_the_worst_value(id):
    given = next(each for each in CASES if each["id"] == id)["input"]
    config = searcher({"name": "single", "metric": given["metric"]})
    assert read_validation(config, 1, given["metrics"]).metric is None


# --- spaces


@of("grid")
def test_grid(case):
    axes = grid.axes(read_space(case["input"]["hyperparameters"]))
    assert grid.num_points(axes) == case["expect"]["count"]
    assert [list(path) for path, _ in axes] == [axis["path"] for axis in case["expect"]["axes"]]
    for (_, values), axis in zip(axes, case["expect"]["axes"], strict=True):
        assert list(values) == (pytest.approx(axis["values"], rel=1e-12) if is_numbers(values) else axis["values"])
    for place, point in enumerate(case["expect"]["points"]):
        found, wanted = flat(grid.point(axes, place)), flat(point)
        assert found.keys() == wanted.keys()
        assert all(is_same(found[path], wanted[path]) for path in wanted)


def is_same(found, wanted) -> bool:
    is_number = isinstance(wanted, int | float) and not isinstance(wanted, bool)
    return found == pytest.approx(wanted, rel=1e-12) if is_number else found == wanted


def is_numbers(values) -> bool:
    return all(isinstance(each, int | float) for each in values)


def flat(tree, path="") -> dict:
    if isinstance(tree, dict) and tree:
        return {key: value for name, each in tree.items() for key, value in flat(each, f"{path}.{name}").items()}
    return {path: tree}


@of("sampling")
@pytest.mark.parametrize("seed", range(10))
def test_samples_follow_the_rules(case, seed):
    space = read_space(case["input"]["hyperparameters"])
    for number in range(20):
        sample = space.sample(seed, number)
        assert sample == space.sample(seed, number)
        for path, rule, wanted in case["expect"]["rules"]:
            value = sample
            for name in path:
                value = value[name]
            if rule in ("from_below", "integer_from_to"):
                assert wanted[0] <= value and (value < wanted[1] or (rule != "from_below" and value <= wanted[1]))
                assert isinstance(value, int) == (rule == "integer_from_to")
            else:
                assert value == wanted if rule == "equals" else value in wanted


# --- files


def check(config: dict) -> None:
    """As an experiment is checked before it starts."""
    searcher = read_searcher(config.get("searcher"))
    space = read_space(config.get("hyperparameters"))
    if searcher.name == "grid":
        Search.begin(searcher, space, seed=0)


def as_experiment(case: dict) -> dict:
    given, kind = case["input"]["config"], case["input"]["as"]
    single = {"name": "single", "metric": "loss"}
    if kind == "searcher":
        return {"searcher": given, "hyperparameters": {"x": 1}}
    if kind in ("length", "positive_length"):
        return {"searcher": {**single, "max_length": given}}
    if kind == "hyperparameter":
        return {"searcher": single, "hyperparameters": {"x": given}}
    if kind == "grid_hyperparameters":
        return {"searcher": {**single, "name": "grid"}, "hyperparameters": given}
    return given if kind == "experiment" else {"searcher": single, "hyperparameters": given}


@of("config")
def test_files_are_accepted_or_refused(case):
    expected = case["expect"]
    config = as_experiment(case)
    if expected.get("runnable", expected["sane"]):
        check(config)
        if "defaulted" in expected and case["input"]["as"] == "searcher":
            check_defaults(read_searcher(config["searcher"]), expected["defaulted"])
    else:
        with pytest.raises(UsageError) as error:
            check(config)
        assert error.value.hint


def instead(*reasons: str):
    found = [case for case in CASES if NOT_COPIED.get(case["id"]) in reasons]
    return pytest.mark.parametrize("case", found, ids=[case["id"] for case in found])


@instead(REFUSED)
def test_what_would_break_later_is_refused_at_once(case):
    with pytest.raises(UsageError) as error:
        check(as_experiment(case))
    assert error.value.hint


@instead(OLD_LENGTH, PLAIN_NUMBER)
def test_lengths_mean_what_they_did_before_0_38(case):
    config = read_searcher(as_experiment(case)["searcher"])
    assert config.max_length in (100, 1000) and config.unit == "batches"


@instead(BOUNDED)
def test_there_are_never_more_trials_than_asked_for(case):
    given = case["input"].get("searcher", case["input"])
    assert sum(bracket.num_trials for bracket in searcher(given).brackets()) == given["max_trials"] == 2


@instead(EMPTY_GRID)
def test_a_grid_without_hyperparameters_is_refused(case):
    with pytest.raises(UsageError, match="has no trial"):
        preview(searcher(case["input"]["searcher"]), Space())


@instead(LATE)
def test_late_results_of_a_stopped_trial_change_nothing(case):
    if case["kind"] == "rung_decision":
        method = rung_story(case["input"])
        trial, time, metric = case["input"]["validation"]
        method.trials[trial].state = STOPPED
        before = method.save()
        method.validated(method.trials[trial], Validated(trial=trial, length=time, metric=metric))
        assert method.out == [] and method.save() == before
        return
    story, stopped, before = Story(case), set(), None
    for step in case["expect"]["steps"]:
        is_late = step["event"][0] == "validation" and step["event"][1] in stopped
        before = story.search.save()
        actions = story.feed(step["event"])
        stopped |= {action[1] for action in actions if action[0] == "stop"}
        assert not is_late or (actions == [] and story.search.save() == before)


@instead(BY_ITSELF)
def test_a_trial_that_ends_by_itself_makes_room_for_the_next(case):
    story = Story(case)
    for step in case["expect"]["steps"]:
        is_exit = step["event"][0] == "exit" and step["event"][1] not in case["expect"]["end"]["stopped"]
        actions = story.feed(step["event"])
        created = [action for action in actions if action[0] == "create"]
        is_full = len(story.search.save()["trials"]) == case["input"]["searcher"]["max_trials"]
        assert not is_exit or created or is_full or str(step["event"][1]) in case["expect"]["end"]["stopped"]


@instead(ONLY_ERRORS)
def test_a_replaced_trial_does_not_hide_that_all_others_failed(case):
    story = Story(case)
    actions = [
        action for step in case["expect"]["steps"] if step["event"][0] != "exit" for action in story.feed(step["event"])
    ]
    assert actions[-1] == ["shutdown", "ERROR"]


@instead(PROGRAM)
def test_a_search_program_is_accepted_as_before_0_38(case):
    given = case["input"]
    config = read_searcher(given.get("config") or given["searcher"])
    assert (config.name, config.unit, config.max_length) == ("custom", "batches", None)
    with pytest.raises(UsageError) as error:
        preview(config, Space())
    assert error.value.code == "search-preview-custom"


def check_defaults(config: SearchConfig, expected: dict) -> None:
    for key, value in expected.items():
        if key not in ("max_length", "stop_once"):
            found = getattr(config, key)
            assert (list(found) if isinstance(found, tuple) else found) == value, key


@of("file")
def test_files_of_all_releases(case):
    given, expected = case["input"], case["expect"]
    if any("removed" in code or "unknown" in code for _, code in expected.get("why", [])):
        with pytest.raises(UsageError) as error:
            check(given)
        assert str(given["searcher"]["name"]) in error.value.message
        return
    check(given)
    config, space = read_searcher(given["searcher"]), read_space(given.get("hyperparameters"))
    found = preview(replace(config, order="arrival"), space)
    lengths = {line[1] for line in expected["preview"]}
    lines = [[number, "full"] for number, _ in found.lines] if lengths == {"full"} else [list(x) for x in found.lines]
    assert lines == expected["preview"]
    assert found.num_trials == expected["trials"] and found.num_at_once == expected["start"]
    assert plain_brackets(config) == expected["brackets"] if "brackets" in expected else not config.is_halving


def test_what_is_not_copied_is_among_the_cases():
    assert NOT_COPIED.keys() <= {case["id"] for case in CASES}
