"""A node is emptied while its trials train, with real processes: they continue elsewhere, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

from lab.command import EVERSTEP, run, until
from lab.pool_stage import PoolStage

PLAIN = {"EVERSTEP_NURSERY": "off"}


def agent(stage: PoolStage, verb: str, *words: str) -> str:
    where = ("--coordinator", stage.url, "--token-file", str(stage.token_file))
    done = run(*EVERSTEP, "agent", verb, *words, *where, folder=stage.folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def trials_on(stage: PoolStage, name: str) -> list[int]:
    (found,) = [each for each in stage.trials.pool().agents if each.agent == name]
    return sorted(slot.trial for slot in found.slots if slot.assignment)


def test_trials_leave_a_drained_node_and_continue_on_another(tmp_path: Path) -> None:
    with PoolStage(tmp_path, **PLAIN) as stage:
        stage.join("a", slots=2)
        experiment = stage.trials.create(2, "--hold")
        stage.trials.wait_starts(2)
        stage.join("b", slots=2)
        agent(stage, "drain", "a", "--reason", "new disk")
        starts = stage.trials.wait_starts(4)
        assert (trials_on(stage, "a"), trials_on(stage, "b")) == ([], [1, 2])
        assert sorted(each["trial"] for each in starts) == [1, 1, 2, 2]
        assert all((tmp_path / f"saved-{trial}").exists() for trial in (1, 2)), "they had time to save"
        assert "new disk" in agent(stage, "list")

        agent(stage, "enable", "a")
        second = stage.trials.create(1, "--hold")
        until(lambda: trials_on(stage, "a") == [1], lambda: f"{stage.trials.pool()}")
        stage.trials.let_go()
        for number in (experiment, second):
            assert stage.trials.wait_state(number, "COMPLETED", "ERROR").state == "COMPLETED"
            assert {each.num_restarts for each in stage.trials.trials(number)} == {0}
