"""The stage of the stories: a cluster that trains, gates to hold it at a step, and the weights of an undisturbed run.

A gate stands in the micro-batches of a step: workers wait there until the test opens it. So a test can prepare what is
to happen, such as a newcomer that takes seconds to start, and the job is still short.

A story is not about time unless it says so: no worker is given up because a busy machine did not run it for a while.
Every death is noticed as a death."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from everstep.process import Child
from everstep.testing import Cluster, ClusterError, Result
from everstep.testing.tape import Event
from everstep.wire import Policy
from lab import nest
from lab.command import DEADLINE_S, Command, environment
from lab.ports import reserved_port

SCRIPTS = Path(__file__).parents[1] / "cluster" / "scripts"
TRAIN = "train.py"
CALM = Policy(lease_s=60.0, arrive_s=60.0, stall_s=60.0)


class Stage(Cluster):
    """A cluster that runs one of our scripts."""

    def __init__(self, *args: object, script: str = TRAIN, gates: Sequence[int | str] = (), **settings: Any) -> None:
        self._given = (script, *(str(arg) for arg in args))
        self.harmed: set[str] = set()  # for stories with random victims
        env = {"GATES": ",".join(str(step) for step in gates), **settings.pop("env", {})}
        if kept := os.environ.get("STAGE_KEEP"):  # to inspect the files of a story
            settings["directory"] = Path(tempfile.mkdtemp(dir=kept))
        super().__init__(SCRIPTS / script, self._given[1:], env=env, **{"policy": CALM, **settings})
        self._held = ExitStack()

    def __enter__(self) -> Stage:
        if self._network is None:  # a coordinator that is started again finds its port free
            self._port = self._held.enter_context(reserved_port())
        super().__enter__()
        return self

    def close(self) -> None:
        super().close()
        self._held.close()

    def _agent_command(self, name: str, num_workers: int) -> list[str]:
        command = super()._agent_command(name, num_workers)
        after = command.index("join") + 1
        shared = nest.AGENT_OPTIONS if self._network is None else ()
        return [*command[:after], *shared, *command[after:]]

    def _environment(self) -> dict[str, str]:
        shared = environment(**nest.shared()) if self._network is None else {}
        return super()._environment() | shared | self._given_env

    def _start_service(
        self, command: Sequence[str], *, env: Mapping[str, str], output: IO[bytes] | int | None
    ) -> Child:
        start = nest.start_service if self._network is None else super()._start_service
        return start(command, env=env, output=output)

    # --- gates ----------------------------------------------------------------------------------------

    def wait_at_gate(self, step: int | str, *workers: str) -> None:
        """Until any worker, or each of these workers, is there."""
        for worker in workers or (None,):
            self.wait("gate.reached", step=step, **({"worker": worker} if worker else {}))

    def open_gate(self, step: int | str) -> None:
        (self.directory / f"gate-{step}").touch()

    # --- workers --------------------------------------------------------------------------------------

    def rank(self, number: int, generation: int = 1) -> str:
        """The worker with this rank in this generation."""
        worker = self.wait("generation.formed", generation=generation, rank=number)["worker"]
        return str(worker)

    def wait_ready(self, *workers: str) -> None:
        """Until these newcomers are ready, and the training workers know it: they are admitted after this step."""
        self.until(lambda: all(self.is_ready(worker) for worker in workers), f"{workers} ready")

    def is_ready(self, worker: str) -> bool:
        (found,) = (each for each in self.view().workers if each.worker == worker)
        if found.status != "waiting":
            return found.status == "member"  # admitted already, when another one ended
        return "a spare waits" in found.reason or self._are_newcomers_known()

    def _are_newcomers_known(self) -> bool:
        latest = max((event["generation"] for event in self.events("generation.formed")), default=0)
        known = {event["worker"]: event["number"] for event in self.events("newcomers.known", generation=latest)}
        return any(known.values())

    def status(self, worker: str) -> str:
        return next((each.status for each in self.view().workers if each.worker == worker), "")

    def until(self, condition: Callable[[], bool], wanted: str) -> None:
        self._until(condition, DEADLINE_S, wanted)

    # --- the end --------------------------------------------------------------------------------------

    def finish(self, timeout_s: float = DEADLINE_S, *, check: bool = True) -> Result:
        return super().finish(timeout_s, check=check)

    def finish_undisturbed(self, *, check: bool = True) -> Result:
        """Run to the end; after each step, every worker's weights must equal those of an undisturbed run."""
        result = self.finish(check=check)
        check_order(result)
        undisturbed = undisturbed_events(*self._given)
        expected = {event["step"]: event["digest"] for event in undisturbed if event["event"] == "weights"}
        for event in result.events("weights"):
            if event["digest"] != expected.get(event["step"], event["digest"]):
                raise ClusterError(f"other weights than undisturbed: {event}\n{self._story()}")
        (end,) = (event for event in undisturbed if event["event"] == "result")
        if result.weights_digest != end["weights_digest"]:
            raise ClusterError(f"other weights than undisturbed at the end\n{self._story()}")
        return result


def check_order(result: Result) -> None:
    """No worker commits a step twice, or goes back, or misses a step inside a generation."""
    for worker in {event["worker"] for event in result.events("step.committed")}:
        steps = [(event["generation"], event["step"]) for event in result.events("step.committed", worker=worker)]
        for (earlier, before), (later, after) in pairwise(steps):
            if after <= before or (earlier == later and after != before + 1):
                raise ClusterError(f"{worker} committed step {after} (generation {later}) after {before} ({earlier})")


@cache
def undisturbed_events(script: str, *args: str) -> list[Event]:
    """The events of one process that trains alone."""
    with tempfile.TemporaryDirectory(prefix="everstep-") as directory:
        folder = Path(directory)
        told = {"EVERSTEP_EVENTS": str(folder / "events.jsonl")}
        with Command(sys.executable, SCRIPTS / script, *args, folder=folder, start=nest.start_script, **told) as alone:
            alone.finish()
        return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def pass_time(seconds: float) -> None:
    """For stories about time itself; all others wait for an event."""
    time.sleep(seconds)
