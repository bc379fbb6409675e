"""Experiments at a coordinator: created once, searched to their end, paused, canceled, killed, archived, deleted."""

from __future__ import annotations

import uuid

import pytest

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.errors import Refused
from lab.experiments import ToyTrials, spec


@pytest.fixture
def begin(server_on_each_store):
    made = []

    def create(*given, **named):
        server = server_on_each_store
        with Coordinator(server.url, server.token, "none") as people:
            view = people.create_experiment(spec(*given, **named))
        made.append(ToyTrials(server.url, server.token, view.experiment))
        return made[-1]

    yield create
    for each in made:
        each.close()


def act(toy, action, reason=""):
    return toy.people.act(toy.experiment, wire.ExperimentAction(action=action, reason=reason))


def test_a_repeated_request_creates_one_experiment(begin):
    request = uuid.uuid4().hex
    first, second = begin(request=request), begin(request=request)
    assert first.experiment == second.experiment
    assert begin().experiment == first.experiment + 1


def test_a_random_experiment_trains_all_its_trials_and_names_the_best(begin):
    toy = begin("random", max_trials=5, name="mine", labels=["a"], description="five")
    view = toy.view()
    assert (view.state, view.num_trials, view.name, view.labels, view.unit) == (
        "ACTIVE",
        {"QUEUED": 5},
        "mine",
        ["a"],
        "batches",
    )
    view = toy.train_all()
    assert (view.state, view.num_trials, view.progress) == ("COMPLETED", {"COMPLETED": 5}, 1.0)
    best = min(toy.trials(), key=lambda each: each.best)
    assert (view.best.trial, view.best.metric, view.best.length) == (best.trial, best.best, 64)
    assert view.ended_at >= view.created_at
    assert toy.people.trials(toy.experiment, sort="metric", limit=2).trials[0].trial == best.trial
    assert toy.people.find_trial(best.trial_id) == toy.people.trial(toy.experiment, best.trial)


def test_halving_cuts_trials_promotes_others_and_waits_at_rungs(begin):
    toy = begin("async_halving", max_trials=8, num_rungs=2, divisor=4, max_concurrent_trials=8)
    assert toy.train(1) == "wait"
    [first] = [each for each in toy.trials() if each.trial == 1]
    assert (first.state, first.length, first.target) == ("WAITING", 16, 16)
    assert toy.train_all().state == "COMPLETED"
    lengths = sorted(each.length for each in toy.trials())
    assert lengths == [16] * 6 + [64] * 2


def test_events_have_their_operations_and_are_told_while_they_come(begin):
    toy = begin("random", max_trials=1)
    [began] = toy.people.search_events(toy.experiment).events
    assert (began.number, began.event) == (1, {"kind": "began"})
    assert [each["kind"] for each in began.operations] == ["create", "train_to"]
    toy.train(1)
    held = toy.people.search_events(toy.experiment, after=1, is_held=True)
    assert [each.event["kind"] for each in held.events] == ["validated", "ended"] and held.is_over
    assert toy.people.search_state(toy.experiment).last_event == 3


def test_a_repeated_result_changes_nothing(begin):
    toy = begin("random", max_trials=1)
    with toy.open(1) as job:
        for metric in (0.5, 0.1):
            job.report_result(wire.TrialResult(length=8, metric=metric))
    trial = toy.people.trial(toy.experiment, 1)
    assert (trial.best, trial.latest, trial.length) == (0.5, 0.5, 8)
    assert toy.view().last_event == 2


def test_a_metric_that_is_not_finite_is_kept_and_never_the_best(begin):
    toy = begin("random", max_trials=1)
    with toy.open(1) as job:
        job.report_result(wire.TrialResult(length=8, metric=0.5))
        job.report_result(wire.TrialResult(length=16, metric="nan"))
        job.report_result(wire.TrialResult(length=32, metric="-inf"))
    trial = toy.people.trial(toy.experiment, 1)
    assert (trial.best, trial.latest, trial.best_length) == (0.5, "-inf", 8)
    assert [each.event["metric"] for each in toy.people.search_events(toy.experiment).events[1:]] == [0.5, None, None]


def test_targets_count_up_and_a_repeated_question_gets_the_same_answer(begin):
    toy = begin("async_halving", max_trials=4, num_rungs=2, divisor=4)
    with toy.open(1) as job:
        first = job.target(wire.TargetRequest())
        assert (first.number, first.wish, first.length, first.unit) == (1, "train", 16, "batches")
        assert job.target(wire.TargetRequest()) == first
        kept = job.report_result(wire.TrialResult(length=16, metric=0.0))
        assert (kept.number, kept.wish) == (1, "wait")
        assert job.target(wire.TargetRequest(seen=1, wait_s=0.0)).wish == "wait"
        for trial in (2, 3, 4):
            toy.train(trial)
        second = job.target(wire.TargetRequest(seen=1))
        assert (second.number, second.wish, second.length) == (2, "train", 64)
        assert job.target(wire.TargetRequest(seen=1)) == second
        kept = job.report_result(wire.TrialResult(length=64, metric=0.0))
        assert kept.wish == "stop"


def test_a_target_is_held_until_the_search_has_decided(begin, play):
    toy = begin("async_halving", max_trials=4, num_rungs=2, divisor=4)
    for trial in (1, 2, 3):
        toy.train(trial)
    best = min((1, 2, 3), key=lambda each: toy.loss(each, 16))
    with toy.open(best) as job, toy.open(4) as last:
        answers = play().together(
            lambda: job.target(wire.TargetRequest(seen=1, wait_s=20.0)),
            lambda: last.report_result(wire.TrialResult(length=16, metric=9.0)),
        )
    assert answers[0].number == 2


def test_paused_trials_are_parked_and_activated_ones_go_on(begin):
    toy = begin(is_paused=True)
    assert (toy.view().state, toy.train(1)) == ("PAUSED", "park")
    assert act(toy, "activate").state == "ACTIVE"
    assert act(toy, "pause", "lunch").reason == "paused: lunch"
    assert act(toy, "pause").reason == "paused: lunch"  # a repetition changes nothing
    assert toy.train(1) == "park"
    act(toy, "activate")
    assert toy.train_all().state == "COMPLETED"


@pytest.mark.parametrize("action", ["cancel", "kill"])
def test_a_canceled_experiment_ends_its_trials(begin, action):
    toy = begin()
    toy.train(1)
    view = act(toy, action)
    assert (view.state, view.num_trials) == ("CANCELED", {"CANCELED": 3, "COMPLETED": 1})
    assert act(toy, action).state == "CANCELED"
    assert toy.train(2) == "stop"
    assert toy.people.trial(toy.experiment, 2).length == 0


def test_what_a_state_does_not_allow_is_refused_and_changes_nothing(begin):
    toy = begin()
    for action in ("archive", "unarchive", "delete"):
        with pytest.raises(Refused) as refused:
            act(toy, action)
        assert (refused.value.status, refused.value.code) == (409, "experiment-transition")
    assert toy.train_all().state == "COMPLETED"
    for action in ("pause", "activate", "cancel", "kill"):
        with pytest.raises(Refused) as refused:
            act(toy, action)
        assert refused.value.code == "experiment-transition"
    assert toy.view().state == "COMPLETED"


def test_archived_ones_are_listed_only_if_asked_for_and_deleted_ones_never(begin):
    toy = begin(name="old")
    act(toy, "cancel")
    assert act(toy, "archive").is_archived and act(toy, "archive").is_archived

    def listed(**named):
        return [each.experiment for each in toy.people.experiments(search="old", **named).experiments]

    assert toy.experiment not in listed()
    assert toy.experiment in listed(is_archived=True)
    assert toy.experiment in listed(is_archived=True, state="CANCELED")
    assert not act(toy, "unarchive").is_archived
    assert toy.experiment in listed()
    assert act(toy, "delete").state == "DELETED"
    assert act(toy, "delete").state == "DELETED"
    assert toy.experiment not in listed(is_archived=True)
    with pytest.raises(Refused) as refused:
        toy.view()
    assert (refused.value.status, refused.value.code) == (404, "experiment-unknown")


def test_people_change_what_they_wrote_on_it(begin):
    toy = begin(name="a", labels=["x"])
    kept = wire.CheckpointsKept(experiment_best=2)
    view = toy.people.change(toy.experiment, wire.ExperimentChange(name="b", notes="n", labels=["y", "z"], kept=kept))
    assert (view.name, view.notes, view.labels, view.kept, view.description) == ("b", "n", ["y", "z"], kept, "")
    assert toy.people.experiment_config(toy.experiment).spec.name == "a"


def test_an_invalid_trial_is_replaced_and_does_not_count(begin):
    toy = begin("random", max_trials=2)
    with toy.open(1) as job:
        job.end_trial(wire.TrialEnd(why="INVALID_HP", reason="lr is too large"))
        job.end_trial(wire.TrialEnd(why="INVALID_HP", reason="again"))
    trials = {each.trial: each for each in toy.trials()}
    assert sorted(trials) == [1, 2, 3]
    assert (trials[1].state, trials[1].reason) == ("COMPLETED", "lr is too large")
    view = toy.train_all()
    assert view.state == "COMPLETED" and view.best.trial in (2, 3)


def test_a_trial_that_ends_by_itself_is_over_and_a_killed_one_is_canceled(begin):
    toy = begin("random", max_trials=3)
    with toy.open(1) as job:
        job.report_result(wire.TrialResult(length=8, metric=0.5))
        job.end_trial(wire.TrialEnd())
    assert toy.people.trial(toy.experiment, 1).state == "COMPLETED"
    assert toy.people.kill_trial(toy.experiment, 2).state == "CANCELED"
    assert toy.people.kill_trial(toy.experiment, 2).state == "CANCELED"
    assert toy.view().state == "ACTIVE"  # one bad trial never ends an experiment
    assert toy.train_all().state == "COMPLETED"


def test_unknown_experiments_trials_and_searchers_are_refused(begin, server_on_each_store):
    toy = begin()
    with toy.job(1) as job:
        job.create_job(wire.JobSpec())
    for call, code in {
        lambda: toy.people.experiment(10**9): "experiment-unknown",
        lambda: toy.people.trial(toy.experiment, 99): "trial-unknown",
        lambda: toy.people.find_trial(10**9): "trial-unknown",
        lambda: toy.people.checkpoint("x"): "checkpoint-unknown",
        lambda: toy.people.trials(toy.experiment, sort="color"): "parameter-invalid",
        lambda: toy.people.create_experiment(spec("pbt")): "searcher-removed",
        lambda: toy.people.search_operations(
            toy.experiment, wire.SearchOperations(after_event=1, operations=[])
        ): "search-not-custom",
    }.items():
        with pytest.raises(Refused) as refused:
            call()
        assert refused.value.code == code
    server = server_on_each_store
    with Coordinator(server.url, server.token, f"plain-{uuid.uuid4().hex}") as plain:
        plain.create_job(wire.JobSpec())
        with pytest.raises(Refused) as refused:
            plain.target(wire.TargetRequest())
        assert refused.value.code == "not-a-trial"


@pytest.mark.parametrize("weight", [0.0, 1e-300, 1e300])
def test_a_weight_that_no_sum_can_hold_beside_others_is_refused(begin, weight):
    """With two such experiments, no decision of the pool would end."""
    toy = begin()
    for call in (
        lambda: toy.people.create_experiment(spec(scheduling=wire.Scheduling(weight=weight))),
        lambda: toy.people.change(toy.experiment, wire.ExperimentChange(weight=weight)),
    ):
        with pytest.raises(Refused) as refused:
            call()
        assert (refused.value.status, refused.value.code) == (422, "body-invalid")


def test_ten_thousand_trials_are_created_and_listed(begin):
    toy = begin("random", max_trials=10_000, max_concurrent_trials=0)
    assert toy.view().num_trials == {"QUEUED": 10_000}
    trials = toy.trials()
    assert [each.trial for each in trials] == list(range(1, 10_001))
    assert len({each.trial_id for each in trials}) == 10_000
    assert toy.train(9_999) == "stop"
    assert act(toy, "kill").num_trials == {"CANCELED": 9_999, "COMPLETED": 1}


def test_the_request_of_an_experiment_that_was_deleted_says_so(begin):
    request = uuid.uuid4().hex
    toy = begin(request=request)
    act(toy, "kill")
    act(toy, "delete")
    assert toy.people.create_experiment(spec(request=request)).state == "DELETED"
