"""What follows for a trial when lines of its log match."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep import wire
from everstep.coordinator.experiments.facts import Trial
from everstep.coordinator.experiments.log_policies import (
    BUILT_IN,
    MatchedLine,
    excluded_nodes,
    given_up,
    matches_text,
    noted,
    policies_of,
    wanted_patterns,
)
from everstep.coordinator.experiments.seam import AssignmentEnd
from everstep.coordinator.experiments.trials import decide_vacated
from everstep.search.events import ERRORED

TRIAL = Trial(experiment=1, number=2, trial_id=7, bracket=0, hparams={}, seed=0, created_at=0.0, reason="runs")
EXCLUDE = wire.LogPolicy(name="bad GPU", pattern="Xid 79", action="exclude_node")
CANCEL = wire.LogPolicy(pattern="no such file", action="cancel_retries")
NOTE = wire.LogPolicy(name="OOM", pattern="out of memory")
POLICIES = [EXCLUDE, CANCEL, NOTE]


def line(pattern, node="n1", text="a line"):
    return MatchedLine(pattern=pattern, node=node, line=text)


def spec(*policies):
    return wire.ExperimentSpec(request="r", searcher={"name": "single"}, log_policies=list(policies))


def test_the_built_in_policies_only_note_what_happened():
    assert policies_of(spec()) == list(BUILT_IN)
    assert {each.action for each in BUILT_IN} == {""}
    assert [each.name for each in BUILT_IN] == ["CUDA OOM", "ECC Error"]


def test_a_policy_of_the_same_name_replaces_a_built_in_one_and_turns_it_off_without_a_pattern():
    own = wire.LogPolicy(name="ECC Error", pattern="ECC", action="exclude_node")
    assert policies_of(spec(own, CANCEL)) == [BUILT_IN[0], own, CANCEL]
    assert policies_of(spec(wire.LogPolicy(name="CUDA OOM"), wire.LogPolicy(name="ECC Error"))) == []


def test_a_match_is_noted_once_and_for_nodes_to_exclude_once_for_each():
    once = noted(TRIAL, POLICIES, [line("Xid 79"), line("out of memory")])
    assert excluded_nodes(once) == {"n1"}
    again = noted(once, POLICIES, [line("Xid 79"), line("out of memory", "n2")])
    assert again is once
    both = noted(once, POLICIES, [line("Xid 79", "n2")])
    assert excluded_nodes(both) == {"n1", "n2"}
    assert wanted_patterns(both, POLICIES) == ["Xid 79", "no such file"]


def test_the_reason_of_a_trial_names_what_matched():
    found = noted(TRIAL, POLICIES, [line("Xid 79", text="GPU 3: Xid 79"), line("no such file"), line("out of memory")])
    assert matches_text(found) == (
        "log policy bad GPU: not on n1 again (GPU 3: Xid 79); log policy no such file: no more restarts (a line); "
        "OOM on n1"
    )
    assert matches_text(TRIAL) == ""


def failed(trial, *, exit_code=1, was_asked=False, is_lost=False):
    end = AssignmentEnd(exit_code=exit_code, was_asked=was_asked, is_lost=is_lost, reason="exit code 1")
    return decide_vacated(trial, 1, end, state=wire.ACTIVE, is_finished=False, max_restarts=5)


def test_the_next_failure_ends_a_trial_whose_retries_are_canceled():
    canceled = noted(TRIAL, POLICIES, [line("no such file", text="x.npz: no such file")])
    decided = failed(canceled)
    assert (decided.is_over, decided.why) == (True, ERRORED)
    assert decided.reason == "exit code 1; log policy no such file allows no more restarts (x.npz: no such file)"
    assert failed(TRIAL).counts and not failed(TRIAL).is_over


@pytest.mark.parametrize("how", [{"exit_code": 0}, {"was_asked": True}, {"is_lost": True}])
def test_what_is_no_failure_does_not_end_it(how):
    assert not failed(noted(TRIAL, POLICIES, [line("no such file")]), **how).is_over


def test_a_pattern_that_takes_too_long_is_given_up_and_the_trial_says_so():
    slow = given_up(TRIAL, POLICIES, "Xid 79", "it took longer than 2 s; it is no longer matched")
    assert given_up(slow, POLICIES, "Xid 79", "again") is slow
    assert wanted_patterns(slow, POLICIES) == ["no such file", "out of memory"]
    assert excluded_nodes(slow) == frozenset()
    assert matches_text(slow) == "log policy bad GPU: it took longer than 2 s; it is no longer matched"


def test_a_long_line_is_cut():
    (match,) = noted(TRIAL, POLICIES, [line("out of memory", text="x" * 10_000)]).log_matches
    assert len(match["line"]) == 300
    assert replace(TRIAL, log_matches=[match]).log_matches == [match]
