"""What people see of an experiment: from facts to lines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep import wire
from everstep.cli.experiment_table import (
    ExperimentFacts,
    changes,
    choose,
    counted,
    ending,
    guess_left_s,
    render,
    shown_hparams,
)

UUID = "0b7cb6f2-9d2e-5b8a-8d1e-111111111111"


def view(**changed: object) -> wire.ExperimentView:
    known = wire.ExperimentView(
        experiment=12,
        name="digits",
        state="ACTIVE",
        reason="created",
        searcher="adaptive_asha",
        metric="loss",
        smaller_is_better=True,
        unit="batches",
        progress=0.43,
        num_trials={"RUNNING": 2, "COMPLETED": 7, "QUEUED": 1},
        num_slots=2,
        best=wire.BestResult(trial=7, metric=0.25, length=256, checkpoint=UUID),
        created_at=1.0,
        started_at=10.0,
        ended_at=None,
    )
    return replace(known, **changed)  # type: ignore[arg-type]


def trial(number: int, **changed: object) -> wire.TrialView:
    known = wire.TrialView(
        experiment=12,
        trial=number,
        trial_id=100 + number,
        job=f"e12-t{number}",
        state="QUEUED",
        reason="",
        hparams={"lr": 0.1 / number, "net": {"width": 64}},
        seed=1,
        bracket=0,
        target=256,
        length=0,
        latest=None,
        best=None,
        best_length=0,
        num_restarts=0,
        num_slots=0,
    )
    return replace(known, **changed)  # type: ignore[arg-type]


def over(number: int, best: float) -> wire.TrialView:
    return trial(number, state="COMPLETED", latest=best, best=best, best_length=64, length=64, started_at=1.0)


RUNS = trial(3, state="RUNNING", length=64, latest=0.5, best=0.4, best_length=32, num_slots=1, started_at=1.0)
BEST = trial(7, state="COMPLETED", length=256, latest=0.25, best=0.25, best_length=256, started_at=1.0, batches=256)


def lines(facts: ExperimentFacts, width: int = 120, height: int = 24) -> list[str]:
    return [each.text for each in render(facts, width=width, height=height)]


def test_all_is_told_in_a_wide_terminal() -> None:
    facts = ExperimentFacts(view=view(), trials=(RUNS, BEST), num_slots=2, passed_s=72.0, left_s=100.0)
    told = lines(facts)
    assert told[0] == 'experiment 12 "digits": adaptive_asha, minimizing loss'
    assert told[1].startswith("ACTIVE ") and told[1].endswith("43% after 1:12, about 1:40 left")
    assert told[2] == "slots in use: 2 of 2 · 10 trials: 2 running, 1 queued, 7 completed"
    assert told[3].split() == ["trial", "state", "batches", "latest", "best", "at", "hyperparameters"]
    assert told[4].split() == ["3", "RUNNING", "64/256", "0.5", "0.4", "32", "lr=0.03333"]
    assert told[5].split()[:2] == ["*", "7"]


def test_of_a_search_by_rungs_it_says_how_many_trials_have_reached_each() -> None:
    cut = tuple(replace(over(number, best=1.0), target=64) for number in range(10, 14))
    facts = ExperimentFacts(view=view(), trials=(*cut, RUNS, BEST))
    assert lines(facts)[3] == "rungs reached: 6 trials at 64 batches, 1 at 256"
    assert not any("rungs" in line for line in lines(replace(facts, trials=cut)))


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 200])
@pytest.mark.parametrize("height", [5, 12, 24, 60])
def test_nothing_is_wider_or_higher_than_the_terminal(width: int, height: int) -> None:
    trials = tuple(over(number, best=1.0 + number) for number in range(1, 60))
    facts = ExperimentFacts(view=view(name="x" * 90), trials=(*trials, RUNS, BEST), num_slots=2)
    told = lines(facts, width, height)
    assert max(map(len, told)) <= width
    assert len(told) <= max(height, 8)


def test_a_long_name_leaves_room_for_what_is_searched() -> None:
    told = lines(ExperimentFacts(view=view(name="x" * 90), trials=(RUNS, BEST)), width=80)
    assert told[0].startswith('experiment 12 "xxx') and told[0].endswith('x…": adaptive_asha, minimizing loss')
    assert len(told[0]) == 80


def test_a_narrow_terminal_shows_states_and_results_first() -> None:
    told = lines(ExperimentFacts(view=view(), trials=(RUNS, BEST)), width=50)
    assert told[3].split() == ["trial", "state", "batches", "latest", "best"]
    assert not any(line.endswith("…") for line in told[3:])


def test_of_many_trials_those_that_run_and_the_best_are_shown_and_the_rest_counted() -> None:
    others = [over(number, best=1.0 + number) for number in range(10, 400)]
    queued = [trial(number) for number in range(400, 410)]
    waits = trial(8, state="WAITING", length=64, latest=2.0, best=2.0, best_length=64, started_at=1.0)
    facts = ExperimentFacts(view=view(), trials=(*others, *queued, waits, RUNS, BEST))
    shown, rest = choose(facts, 6)
    assert [each.trial for each in shown] == [3, 7, 8, 10, 11]
    assert len(shown) + len(rest) == len(facts.trials)
    assert lines(facts, height=12)[-1] == "  and 398 more: 10 queued, 388 completed"


def test_text_of_scripts_cannot_move_the_cursor() -> None:
    facts = ExperimentFacts(view=view(name="\x1b[2J"), trials=(trial(1, hparams={"a": "\x1b]0;x\x07"}),))
    assert not any("\x1b" in line for line in lines(facts))


@pytest.mark.parametrize(
    ("progress", "before", "passed_s", "left_s"),
    [(0.5, 0.0, 10.0, 10.0), (0.75, 0.5, 10.0, 10.0), (0.5, 0.495, 10.0, None), (0.5, 0.0, 1.0, None)],
)
def test_the_time_left_is_guessed_from_what_this_command_has_seen(
    progress: float, before: float, passed_s: float, left_s: float | None
) -> None:
    assert guess_left_s(progress, before=before, passed_s=passed_s) == left_s


def test_without_a_terminal_each_change_is_one_line() -> None:
    first = ExperimentFacts(view=view(best=None), trials=(trial(1),))
    begun = replace(first, trials=(trial(1, state="RUNNING", started_at=1.0),))
    trained = replace(
        begun,
        view=view(best=wire.BestResult(trial=1, metric=0.5, length=64)),
        trials=(trial(1, state="RUNNING", started_at=1.0, length=64, latest=0.5, best=0.5, best_length=64),),
    )
    ended = replace(trained, trials=(replace(trained.trials[0], state="ERROR", reason="exit code 1"),))

    assert changes(None, first) == ["experiment 12 ACTIVE: created"]
    assert changes(first, begun) == ["[43%] trial 1 began: lr=0.1 net.width=64"]
    assert changes(begun, trained) == [
        "[43%] trial 1 has loss 0.5 after 64 batches",
        "best so far: trial 1, loss 0.5",
    ]
    assert changes(trained, ended) == ["[43%] trial 1 ERROR: exit code 1"]
    assert changes(ended, ended) == []


def test_the_end_names_the_winner_and_how_to_load_it() -> None:
    facts = ExperimentFacts(view=view(state="COMPLETED", reason="", ended_at=75.0), trials=(RUNS, BEST))
    told = ending(facts, None)
    assert told[0] == "experiment 12 COMPLETED"
    assert told[1] == "10 trials, 256 batches in 1:05"
    assert told[2] == "best: trial 7, loss 0.25 after 256 batches"
    assert "  net.width: 64" in told
    assert f"checkpoint: {UUID}" in told
    assert f'path = client.get_checkpoint("{UUID}").download()' in told


def test_a_trial_that_failed_for_good_is_not_called_restarted() -> None:
    before = ExperimentFacts(view=view(), trials=(trial(3, state="RUNNING", started_at=1.0),))
    again = trial(3, state="QUEUED", num_restarts=1, reason="exit code 1", started_at=1.0)
    over = trial(3, state="ERROR", num_restarts=2, reason="exit code 1", started_at=1.0)
    assert "restarted (1): exit code 1" in " ".join(changes(before, replace(before, trials=(again,))))
    told = " ".join(changes(before, replace(before, trials=(over,))))
    assert "ERROR: exit code 1" in told and "restarted" not in told


def test_one_batch_is_not_batches() -> None:
    assert (counted(1, "batches"), counted(2, "batches"), counted(1, "seconds")) == (
        "1 batch",
        "2 batches",
        "1 second",
    )


def test_the_end_without_a_result() -> None:
    facts = ExperimentFacts(view=view(state="ERROR", reason="all trials failed", best=None), trials=(trial(1),))
    assert ending(facts, None)[0] == "experiment 12 ERROR: all trials failed"


def test_an_experiment_that_completed_without_a_result_says_how_to_report_one() -> None:
    told = ending(ExperimentFacts(view=view(state="COMPLETED", best=None), trials=(trial(1),)), None)
    assert "there is no best trial: no trial reported loss, the searcher's metric" in told
    assert any('everstep.report({"loss": ...}' in line and "metric_line" in line for line in told)


def test_the_lines_that_load_the_winner_run_as_they_are() -> None:
    told = ending(ExperimentFacts(view=view(state="COMPLETED"), trials=(BEST,)), None)
    code = told[told.index("to load it in Python:") + 1 :]
    compile("\n".join(code), "told", "exec")
    assert code[:2] == ["import everstep", "from everstep.experimental import client"]
    assert all(len(line) < 80 for line in code)


def test_nested_hyperparameters_have_dotted_names() -> None:
    assert shown_hparams({"a": {"b": {"c": 1}}, "d": 0.123456}) == "a.b.c=1 d=0.1235"
