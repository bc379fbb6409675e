"""Start a probe on each node through the machinery that starts workers, and read what all of them found.

For `everstep doctor` over several nodes, and for `everstep run --check` before the workers are started."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from everstep.client.calls import Coordinator
from everstep.doctor.nodes import PEER_LOST, NodeReport, fitness_of, read_reports
from everstep.jobs.node_spec import AgentRequest, find_token, node_spec
from everstep.launcher.agent import Agent
from everstep.launcher.decisions import Verdict
from everstep.launcher.local_coordinator import private_directory
from everstep.launcher.local_worker import LocalWorker
from everstep.launcher.logs import tail
from everstep.launcher.node import worker_command
from everstep.launcher.starter import Starter
from everstep.wire import Fitness, JobSpec, Policy

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Probed:
    """How the probes went."""

    verdict: Verdict
    rank: int = -1  # this node's
    reports: tuple[NodeReport, ...] = ()  # of all nodes; none if any probe failed
    last_words: tuple[str, ...] = ()  # of this node's probe

    @property
    def own_failure(self) -> str:
        """Why this node's own probe failed; "" if it did not, or was ended because another did."""
        first = self.verdict.first_failure
        if first is None or first.exit.code in (-signal.SIGTERM, PEER_LOST):
            return ""
        return f"its probe failed: {first.exit}" + (f", {self.last_words[-1]}" if self.last_words else "")


def probe_nodes(request: AgentRequest, directory: Path, say: Say, *, log_dir: Path | None = None) -> Probed:
    """This node's part in the job of the request, with the probe for a script. `log_dir`: look at the machine too."""
    started: list[LocalWorker] = []
    args = [] if log_dir is None else [str(log_dir.resolve())]
    command = tuple(worker_command("everstep.doctor.measuring_worker", args, is_module=True))
    probe = replace(request, command=command, num_workers=1, is_local_rank_virtual=False)
    plainly = Starter({}, None)
    verdict = Agent(node_spec(probe, directory), plainly, say=say, on_worker=started.append).run()
    if not started:
        return Probed(verdict=verdict)
    files = started[-1].files
    if not verdict.is_good:
        return Probed(verdict=verdict, last_words=tuple(tail(files.stderr)))
    rank, reports = read_reports(tail(files.stdout)[-1])
    return Probed(verdict=verdict, rank=rank, reports=tuple(reports))


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    fitness: Fitness
    exit_code: int | None = None  # the run is to end with it: a signal came


def check_node(request: AgentRequest, policy: Policy, directory: Path, say: Say) -> Checked:
    """Measure this node together with all others that start with it, or alone if they have begun without it."""
    together = replace(request, job=f"{request.job}-check")
    if _is_over(together, policy, directory):
        together = replace(request, job=f"{request.job}-check-{secrets.token_hex(3)}")
        _is_over(together, replace(policy, start_nodes=1, min_nodes=1, max_nodes=1), directory)
    folder = private_directory(directory / "check")
    probed = probe_nodes(together, folder, lambda line: say(f"check: {line}"))
    code = probed.verdict.exit_code
    if code > 128:
        return Checked(fitness=Fitness(), exit_code=code)
    fitness = Fitness(failure=probed.own_failure)
    if probed.reports:
        fitness = fitness_of(probed.rank, probed.reports)
    say(f"check: {_told(fitness) or probed.verdict.reason}")
    return Checked(fitness=fitness)


def _told(fitness: Fitness) -> str:
    if fitness.failure:
        return fitness.failure
    parts = [] if fitness.gflops is None else [f"{fitness.gflops:.0f} GFLOP/s"]
    parts += [] if fitness.mb_per_s is None else [f"{fitness.mb_per_s:.0f} MB/s to the best neighbour"]
    return ", ".join(parts)


def _is_over(request: AgentRequest, policy: Policy, directory: Path) -> bool:
    """Create the job, or find it as it is."""
    with closing(Coordinator(request.coordinator_url, find_token(request.token_file), request.job)) as coordinator:
        checking = replace(policy, max_restarts=0, silence_s=None, start_workers=1, min_workers=1, max_workers=None)
        view = coordinator.create_job(JobSpec(name="check", policy=checking))
    return view.is_finished or view.is_stopped
