"""A node that made the pool's coordinator itself dies with all workers of a trial. Its platform has seen that, so the
trial continues at once elsewhere, not when the workers must have stopped by themselves."""

from __future__ import annotations

from pathlib import Path

from lab.command import EVERSTEP, run, until
from lab.experiment_stage import StagedExperiments
from lab.pool_nodes import PoolFileStage

LOCAL = {"platform": "local", "max_nodes": 2, "slots_per_node": 1, "idle": "60s", "grace": "5s"}
HELD = 5
SINGLE = {"name": "single", "metric": "validation_loss", "max_length": {"batches": 7}}


class MadeNodes(StagedExperiments, PoolFileStage):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, LOCAL, GATES_FOLDER=str(folder / "gates"))
        self.prepare(folder)

    def create(self, name: str) -> None:
        file = self.write(name, SINGLE, resources={"slots_per_trial": 1}, restarts=0)
        reach = ("--coordinator", self.url, "--token-file", str(self.token_file))
        created = run(*EVERSTEP, "e", "create", f"code/{file}", "code", *reach, folder=self.folder)
        assert created.returncode == 0, created.stderr

    def digests(self, experiment: int) -> dict[int, str]:
        self.trials.wait_state(experiment, "COMPLETED", "ERROR")
        digests: dict[int, str] = self.story(experiment)[1]["digests"]
        assert digests and all(digests.values())
        return digests

    def node(self) -> str:
        (found,) = [each.agent for each in self.trials.pool().agents if any(slot.assignment for slot in each.slots)]
        return found


def test_a_trial_whose_only_node_was_killed_continues_at_once_with_the_same_bits(tmp_path: Path) -> None:
    with MadeNodes(tmp_path) as stage:
        stage.create("quiet")
        undisturbed = stage.digests(1)
        stage.hold(1, HELD)
        stage.create("killed")
        first = stage.wait_held(1, HELD)
        killed = stage.node()
        stage.kill_node(killed)
        stage.wait_held(1, HELD, but=first)
        until(lambda: stage.node() != killed)
        stage.let_on()
        assert stage.digests(2) == undisturbed
        assert stage.trials.trials(2)[0].num_restarts == 0
