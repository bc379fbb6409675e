"""Determined 0.38's events: what each of them creates and stops, in order of arrival."""

from __future__ import annotations

import pytest
from unit.search.determined import BY_ITSELF, LATE, ONLY_ERRORS, instead, of, searcher

from everstep.search.events import Advanced, CreateTrial, SearchOver, StopTrial, TrialEnded, Validated
from everstep.search.read_space import read_space
from everstep.search.search import Search


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


@instead(LATE, kind="search")
def test_late_results_of_a_stopped_trial_change_nothing(case):
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
