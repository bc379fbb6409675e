"""What people look at when they open an experiment, by real calls on each store: columns, curves, rungs, slots over
time."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace

import httpx
import pytest

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.errors import Refused
from everstep.search.explained_rungs import CUT, PROMOTED, REACHED, UNDECIDED
from everstep.wire.tokens import READ_ONLY, USER, choose, parse_tokens
from lab.browser import EventStream, opened
from lab.command import until
from lab.experiments import ToyPool, ToyTrials, spec

HALVING = {"max_trials": 8, "num_rungs": 2, "divisor": 4, "max_concurrent_trials": 8}


@pytest.fixture
def server(server_on_each_store):
    return server_on_each_store


@pytest.fixture
def begin(server):
    made = []

    def create(*given, more=None, **named):
        """`more`: of the searcher, where the specification has a field of that name."""
        asked = spec(*given, **named)
        with Coordinator(server.url, server.token, "none") as people:
            view = people.create_experiment(replace(asked, searcher={**asked.searcher, **(more or {})}))
        made.append(ToyTrials(server.url, server.token, view.experiment))
        return made[-1]

    yield create
    for each in made:
        each.close()


@pytest.fixture
def browser(server):
    with opened(server) as browser:
        yield browser


def test_columns_are_what_the_trials_are_asked_one_by_one(begin):
    toy = begin(
        "random", max_trials=5, hyperparameters={"lr": {"log": [1e-4, 0.1]}, "net": {"kind": {"choice": ["a"]}}}
    )
    for is_over in (False, True):
        columns, trials = toy.people.trial_columns(toy.experiment), toy.trials()
        assert columns.trials == [each.trial for each in trials] == [1, 2, 3, 4, 5]
        for name, key in (("ids", "trial_id"), ("states", "state"), ("reasons", "reason"), ("lengths", "length"),
                          ("latest", "latest"), ("best", "best"), ("targets", "target"), ("slots", "num_slots"),
                          ("restarts", "num_restarts"), ("ended_at", "ended_at")):  # fmt: skip
            assert getattr(columns, name) == [getattr(each, key) for each in trials], name
        assert columns.hparams["lr"] == [each.hparams["lr"] for each in trials]
        assert columns.hparams["net.kind"] == ["a"] * 5
        lr, kind = columns.searched
        assert (lr.name, lr.kind, lr.least, lr.most) == ("lr", "log", 1e-4, 0.1)
        assert (kind.name, kind.kind, kind.values) == ("net.kind", "choice", ["a"])
        assert (columns.metric, columns.unit, columns.smaller_is_better) == ("loss", "batches", True)
        if not is_over:
            assert toy.train_all().state == "COMPLETED"
    assert columns.last_event == toy.view().last_event


def test_long_answers_are_packed_for_those_who_take_it(begin, server):
    toy = begin("random", max_trials=60, max_concurrent_trials=60)
    path = f"{server.url}/v1/experiments/{toy.experiment}/columns"
    headers = {"authorization": f"Bearer {choose(parse_tokens(server.token), READ_ONLY).word}"}
    plain = httpx.get(path, headers={**headers, "accept-encoding": "identity"}, timeout=60)
    with httpx.stream("GET", path, headers={**headers, "accept-encoding": "gzip"}, timeout=60) as packed:
        raw = b"".join(packed.iter_raw())
    assert plain.status_code == 200 and "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip" and len(raw) < len(plain.content) / 2
    assert json.loads(gzip.decompress(raw)) == plain.json()


def test_curves_are_the_results_and_say_what_is_left_out(begin):
    toy = begin("random", max_trials=3)
    for trial in (1, 2):
        with toy.open(trial) as job:
            for length in range(1, 21):
                job.report_result(wire.TrialResult(length=length, metric=100 - length if length != 7 else 1.0))
    with toy.open(1) as job:
        job.report_result(wire.TrialResult(length=21, metric="nan"))

    whole = toy.people.trial_curves(toy.experiment)
    assert whole.trials == [1, 2] and whole.num_results == [21, 20] and whole.thinned == ""
    for trial, lengths, metrics in zip(whole.trials, whole.lengths, whole.metrics, strict=True):
        told = toy.people.trial_results(toy.experiment, trial).results
        assert lengths == [each.length for each in told]
        assert metrics == [None if each.metric == "nan" else each.metric for each in told]
    assert all(each == sorted(each) for each in whole.times)

    few = toy.people.trial_curves(toy.experiment, points=10)
    assert sum(map(len, few.lengths)) <= 10 and few.num_results == [21, 20]
    for lengths, last in zip(few.lengths, (21, 20), strict=True):
        assert {1, 7, last} <= set(lengths)  # the first, the best and the last
    assert few.thinned.startswith(f"{sum(map(len, few.lengths))} of 41 results")
    fewer = toy.people.trial_curves(toy.experiment, points=3)
    assert fewer.trials == [1] and fewer.num_left_out == 1 and "the best 1 of 2 trials" in fewer.thinned
    assert toy.people.trial_curves(toy.experiment, trials="2,9").trials == [2]
    with pytest.raises(Refused) as refused:
        toy.people.trial_curves(toy.experiment, trials="2;3")
    assert refused.value.code == "parameter-invalid"

    with toy.open(2) as job:
        job.report_result(wire.TrialResult(length=30, metric=0.5))
    later = toy.people.trial_curves(toy.experiment)
    assert later.lengths[1][-1] == 30 and later.last_event == whole.last_event + 1


@pytest.mark.parametrize("order", ["exact", "arrival"])
def test_rungs_are_what_the_search_has_decided(begin, order):
    toy = begin("async_halving", more={"order": order}, **HALVING)
    toy.train(1)
    before = toy.people.rungs(toy.experiment)
    (rung,) = before.cohorts[0].rungs[:1]
    assert before.order == order and (rung.length, rung.trials[0]) == (16, 1)
    assert rung.metrics[0] == toy.loss(1, 16)
    assert rung.outcomes[0] == (UNDECIDED if order == "exact" else PROMOTED)
    assert toy.train_all().state == "COMPLETED"

    after = toy.people.rungs(toy.experiment)  # folded once more: the experiment is over
    (cohort,) = after.cohorts
    first, second = cohort.rungs
    outcomes = dict(zip(first.trials, first.outcomes, strict=True))
    places = dict(zip(first.trials, zip(first.places, first.compared, strict=True), strict=True))
    checked = 0
    for each in toy.people.search_events(toy.experiment, limit=1000).events:
        for operation in each.operations:
            if operation["kind"] == "stop" and (
                said := re.search(r"is (\d+)\w\w of (\d+).* at 16 ", operation["reason"])
            ):
                assert places[operation["trial"]] == (int(said[1]), int(said[2]))
                assert outcomes[operation["trial"]] == CUT
                checked += 1
    assert checked == len(first.trials) - len(second.trials) > 0
    assert set(second.outcomes) == {REACHED} and second.length == 64
    assert after.last_event == toy.view().last_event
    assert toy.people.rungs(begin("random", max_trials=1).experiment).cohorts == []


def test_use_says_how_many_slots_an_experiment_held_and_for_how_long(begin, server):
    toy = begin("random", max_trials=2)
    assert toy.people.experiment_use(toy.experiment) == wire.ExperimentUse(times=[], slots=[], slot_seconds=[])
    pool = ToyPool(server.url, server.token, num_slots=2)
    assert pool.train(toy.experiment).state == "COMPLETED"
    until(lambda: pool.report() and toy.people.experiment_use(toy.experiment).slots[-1] == 0)
    pool.close()
    use = toy.people.experiment_use(toy.experiment)
    assert max(use.slots) in (1, 2) and use.times == sorted(use.times)
    assert use.slot_seconds == sorted(use.slot_seconds) and use.slot_seconds[-1] > 0


def test_the_list_sorts_and_shows_metrics_and_hyperparameters_of_the_best_trials(begin):
    label = f"label-{begin('random', max_trials=1).experiment}"
    many = [begin("random", max_trials=2, labels=[label, "x"], name=f"n{i}", seed=i) for i in range(3)]
    for toy in many[:2]:
        toy.train_all()
    best = {toy.experiment: toy.view().best for toy in many[:2]}
    people = many[0].people
    rates = {number: people.trial(number, each.trial).hparams["lr"] for number, each in best.items()}

    def listed(**asked):
        found = people.experiments(label=label, **asked)
        return [each.experiment for each in found.experiments], found.values

    numbers = [toy.experiment for toy in many]
    assert listed()[0] == numbers[::-1] and listed(is_descending=False)[0] == numbers
    by_rate = sorted(rates, key=lambda number: rates[number])
    assert listed(sort="hp:lr", is_descending=False, columns="hp:lr,hp:none") == (
        [*by_rate, numbers[2]],
        {"hp:lr": [*(rates[each] for each in by_rate), None], "hp:none": [None] * 3},
    )
    assert listed(sort="hp:lr")[0] == [*by_rate[::-1], numbers[2]]
    by_best = sorted(best, key=lambda number: (best[number].metric, -number))  # the newest of equals
    assert listed(sort="best", is_descending=False)[0] == [*by_best, numbers[2]]
    job = many[0].open(best[numbers[0]].trial)
    with job:
        worker = job.reserve(wire.ReserveWorker(agent="a", request="r")).worker
        job.report_metrics(
            worker, wire.MetricReports(reports=[wire.MetricReport(step=1, time=1.0, generation=0, values={"acc": 0.5})])
        )
    assert listed(columns="metric:acc")[1] == {"metric:acc": [None, None, 0.5]}
    assert listed(sort="metric:acc")[0][0] == numbers[0]
    assert people.experiments(label=f"{label},none").num_found == 0
    assert people.experiments(owner="nobody").num_found == 0
    columns = people.experiment_columns()
    assert "acc" in columns.metrics and "lr" in columns.hyperparameters and label in columns.labels
    for bad in ({"sort": "spec"}, {"columns": "spec"}):
        with pytest.raises(Refused) as refused:
            people.experiments(**bad)
        assert refused.value.code == "parameter-invalid"


# --- the stream


def follow(browser, *topics):
    stream = EventStream(browser, topics=topics)
    until(lambda: stream.events, lambda: f"no answer: {stream.error}")
    return stream


def test_an_experiment_is_told_live_to_those_who_follow_it(begin, browser):
    toy, other = begin("random", max_trials=2), begin("random", max_trials=1)
    stream = follow(browser, f"experiments/{toy.experiment}")
    assert stream.events[0].data["topics"] == [f"experiments/{toy.experiment}"]
    other.train(1)
    toy.train(1)
    told = stream.wait("experiment", lambda data: data["results"])
    assert told["experiment"] == toy.experiment and told["results"][0][:3] == [1, 64, toy.loss(1, 64)]
    assert told["trials"]["trials"] == [1] and told["trials"]["best"] == [toy.loss(1, 64)]
    toy.train(2)
    stream.wait("experiment", lambda data: data["view"]["state"] == "COMPLETED")
    assert {data["experiment"] for data in stream.of("experiment")} == {toy.experiment}
    assert not stream.of("experiments")
    toy.people.act(toy.experiment, wire.ExperimentAction(action="archive"))
    stream.wait("experiment", lambda data: data["view"]["is_archived"])
    stream.close()


def test_the_list_of_experiments_is_told_live(begin, browser):
    stream = follow(browser, "experiments/")
    toy = begin("random", max_trials=1)

    def wait(state):
        told = (toy.experiment, state)
        stream.wait(
            "experiments", lambda data: told in [(each["experiment"], each["state"]) for each in data["experiments"]]
        )

    wait("ACTIVE")
    toy.people.act(toy.experiment, wire.ExperimentAction(action="pause"))
    wait("PAUSED")
    toy.people.act(toy.experiment, wire.ExperimentAction(action="kill"))
    wait("CANCELED")
    toy.people.act(toy.experiment, wire.ExperimentAction(action="delete"))
    stream.wait("experiments", lambda data: toy.experiment in data["removed"])
    stream.close()


def test_pools_and_queues_are_told_live(begin, browser, server):
    pool = ToyPool(server.url, server.token, num_slots=1, name="live-agent", pool="live")
    pool.report()
    stream = follow(browser, "pools/live", "queues/live")
    stream.wait("pool", lambda data: any(each["agent"] == "live-agent" for each in data["agents"]))
    toy = begin("random", max_trials=3, scheduling=wire.Scheduling(pool="live"))

    def holder(data):
        return {slot["experiment"] for agent in data["agents"] for slot in agent["slots"]}

    stream.wait("pool", lambda data: toy.experiment in holder(data))
    waits = stream.wait("queue", lambda data: [each["num_waiting"] for each in data["entries"]] == [2])
    assert waits["order"] == [toy.experiment] and waits["num_waiting"] == 2
    pool.train(toy.experiment)
    stream.wait("queue", lambda data: toy.experiment in data["gone"])
    until(lambda: pool.report() and holder(stream.of("pool")[-1]) == {0})
    stream.close()
    pool.close()


def test_what_does_not_exist_is_not_followed(browser):
    stream = follow(browser, "experiments/999999", "experiments/x", "pools/none", "weather/bern", "experiments/")
    assert stream.events[0].data["topics"] == ["experiments/"]
    stream.close()


def test_another_site_changes_nothing_with_the_cookie_of_a_session(begin, server, browser):
    """Not by a form, not by a script: it cannot send the header, and the browser says where it comes from."""
    toy = begin("random", max_trials=1)
    word = choose(parse_tokens(server.token), USER).word
    assert browser.open(token=word).status_code == 200
    path = f"{server.url}/v1/experiments/{toy.experiment}/action"
    body = json.dumps({"action": "kill"})
    forged = [
        {"sec-fetch-site": "cross-site", "origin": "https://evil.example", "content-type": "text/plain"},
        {"sec-fetch-site": "same-site", "x-everstep": "page"},
        {"origin": "https://evil.example", "x-everstep": "page"},
        {"content-type": "text/plain"},
        {"sec-fetch-site": "none"},
    ]
    for headers in forged:
        answer = httpx.post(path, content=body, headers={**headers, "cookie": browser.cookie}, timeout=60)
        assert answer.status_code == 403, headers
    assert toy.view().state == "ACTIVE"
    assert browser.http.post(path, content=body).status_code == 200
    assert toy.view().state == "CANCELED"
