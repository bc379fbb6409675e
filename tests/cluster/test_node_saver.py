"""One saver for all trials of a node: it outlives them, keeps their states apart, and gives back what they left."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import everstep
from everstep.process import wait_for_end
from everstep.testing.tape import Tape
from lab.command import until
from lab.pool_stage import PoolStage

SCRIPT = (Path(__file__).parent / "scripts/saving_trial.py").read_text()
END_S = 60.0


class Savers:
    """A pool of real agents, and the events of all its processes."""

    def __init__(self, folder: Path) -> None:
        self._tape = Tape(folder / "events.jsonl")  # complete lines only: others are still being written
        self.pool = PoolStage(folder, EVERSTEP_EVENTS=str(folder / "events.jsonl"))

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self._tape.read() if event["event"] == name]

    def wait(self, name: str, number: int) -> list[dict[str, Any]]:
        until(
            lambda: len(self.events(name)) >= number, lambda: f"{name}: {self.events(name)}; {self.pool.trials.pool()}"
        )
        return self.events(name)

    def last_kept(self) -> list[int]:
        """In memory, by process."""
        kept = {event["pid"]: event["step"] for event in self.events("checkpoint.kept")}
        return sorted(kept.values())

    def create(self, num_trials: int, *args: str) -> int:
        return self.pool.trials.create(num_trials, *args, script=SCRIPT)

    def pause(self, experiment: int) -> None:
        self.pool.trials.act(experiment, "pause")
        until(lambda: not self.pool.trials.held(), lambda: f"{self.pool.trials.trials(experiment)}")

    def finish(self, experiment: int, folder: Path) -> None:
        for trial in self.pool.trials.trials(experiment):
            (folder / f"go-{trial.trial}").touch()
        view = self.pool.trials.wait_state(experiment, "COMPLETED", "ERROR")
        trials = self.pool.trials.trials(experiment)
        assert view.state == "COMPLETED" and not any(each.num_restarts for each in trials), trials


def steps(folder: Path, number: int) -> list[int]:
    """Of the newest checkpoints on storage."""
    return [newest(folder / f"states-{trial}") for trial in range(1, number + 1)]


def newest(folder: Path) -> int:
    with everstep.Checkpointer(folder) as checkpointer:
        state = checkpointer.load()
    return -1 if state is None else int(state["step"])


def test_trials_share_a_saver_which_writes_what_each_left_and_gives_it_back_from_memory(tmp_path: Path) -> None:
    savers = Savers(tmp_path)
    with savers.pool as pool:
        pool.join(slots=3)
        experiment = savers.create(3, "--in-memory")
        savers.wait("saved", 3)
        assert steps(tmp_path, 3) == [-1, -1, -1]
        savers.pause(experiment)
        assert steps(tmp_path, 3) == [3, 3, 3], "the end of each trial waits for its state"
        pool.trials.act(experiment, "activate")
        loaded = savers.wait("checkpoint.loaded", 3)
        assert [(each["step"], each["is_from_memory"]) for each in loaded] == [(3, True)] * 3
        savers.wait("saved", 6)
        savers.finish(experiment, tmp_path)
        assert len(savers.events("saver.opened")) == 1
        until(lambda: len(savers.events("saver.dropped")) == 3, lambda: f"{savers.events('saver.dropped')}")


def test_a_killed_saver_is_started_again_and_its_trials_write_for_themselves(tmp_path: Path) -> None:
    savers = Savers(tmp_path)
    with savers.pool as pool:
        pool.join(slots=2)
        first = savers.create(1)
        savers.wait("saved", 1)
        (opened,) = savers.wait("saver.opened", 1)
        os.kill(opened["saver"], signal.SIGKILL)
        savers.finish(first, tmp_path)
        for path in tmp_path.glob("go-*"):
            path.unlink()
        second = savers.create(2, "--in-memory")
        savers.wait("saved", 3)
        savers.pause(second)
        assert len(savers.events("saver.opened")) == 2
        pool.trials.act(second, "activate")
        savers.finish(second, tmp_path)


def test_the_states_of_parked_trials_take_no_more_memory_than_they_may(tmp_path: Path) -> None:
    savers = Savers(tmp_path)
    with savers.pool as pool:
        pool.join(slots=2, parked_memory=0)
        experiment = savers.create(2)
        savers.wait("saved", 2)
        savers.pause(experiment)
        until(lambda: len(savers.events("saver.dropped")) == 2)
        pool.trials.act(experiment, "activate")
        loaded = savers.wait("checkpoint.loaded", 2)
        assert [(each["step"], each["is_from_memory"]) for each in loaded] == [(3, False)] * 2
        savers.finish(experiment, tmp_path)


def test_a_trial_that_comes_back_to_a_node_does_not_load_the_older_state_there(tmp_path: Path) -> None:
    savers = Savers(tmp_path)
    with savers.pool as pool:
        pool.join("a")
        experiment = savers.create(1)
        savers.wait("saved", 1)
        savers.pause(experiment)
        other = pool.trials.create(1, "--hold")
        pool.trials.wait_starts(1)
        there = pool.join("b")
        pool.trials.act(experiment, "activate")
        assert savers.wait("checkpoint.loaded", 1)[0]["is_from_memory"] is False, "another node"
        savers.wait("saved", 2)
        pool.trials.let_go()
        pool.trials.wait_state(other, "COMPLETED")
        there.process.signal(signal.SIGTERM, is_for_group=False)
        loaded = savers.wait("checkpoint.loaded", 2)[1]
        assert (loaded["step"], loaded["is_from_memory"]) == (6, False)
        savers.finish(experiment, tmp_path)


def test_the_memory_of_a_parked_trial_is_freed_when_its_experiment_is_over(tmp_path: Path) -> None:
    savers = Savers(tmp_path)
    with savers.pool as pool:
        pool.join()
        experiment = savers.create(1)
        savers.wait("saved", 1)
        savers.pause(experiment)
        assert not savers.events("saver.dropped")
        pool.trials.act(experiment, "cancel")
        pool.trials.wait_state(experiment, "CANCELED")
        savers.wait("saver.dropped", 1)


def test_what_is_only_in_memory_is_written_when_the_node_and_all_its_trials_are_killed(tmp_path: Path) -> None:
    savers = Savers(tmp_path)
    with savers.pool as pool:
        pool.join(slots=2)
        savers.create(2, "--in-memory")
        until(lambda: savers.last_kept() == [3, 3])  # copied beside training, so perhaps after "saved"
        (opened,) = savers.wait("saver.opened", 1)
        pool.kill_agent("a")
        assert wait_for_end(opened["saver"], END_S)
        assert steps(tmp_path, 2) == [3, 3]
