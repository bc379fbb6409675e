"""Start a probe on each node the way workers are started, and read the results of all nodes.

For `everstep doctor` over several nodes, and for `everstep run --check` before the workers start."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from everstep import env
from everstep.client.calls import Coordinator
from everstep.doctor.nodes import PEER_LOST, NodeReport, fitness_of, read_reports
from everstep.launcher.agent import Agent
from everstep.launcher.decisions import Verdict
from everstep.launcher.local_coordinator import private_directory
from everstep.launcher.local_worker import LocalWorker
from everstep.launcher.logs import tail
from everstep.launcher.node import NodeSpec, worker_command
from everstep.launcher.starter import Starter
from everstep.wire import Fitness, JobSpec, Policy

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Probed:
    """The results of the probes."""

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


def probe_nodes(node: NodeSpec, say: Say, *, log_dir: Path | None = None) -> Probed:
    """This node's part in its job, with the probe as the script. `log_dir`: examine the machine too."""
    started: list[LocalWorker] = []
    args = [] if log_dir is None else [str(log_dir.resolve())]
    command = tuple(worker_command("everstep.doctor.measuring_worker", args, is_module=True))
    probe = replace(node, command=command, num_workers=1, is_local_rank_virtual=False)
    verdict = Agent(probe, Starter({}, None), say=say, on_worker=started.append).run()
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
    exit_code: int | None = None  # the run must end with it: a signal came


def check_node(node: NodeSpec, policy: Policy, token: Path, say: Say) -> Checked:
    """Measure this node together with all others that start with it, or alone if they have started without it."""
    together = replace(node, job=f"{node.job}-check", directory=private_directory(node.directory / "check"))
    if _is_over(together, policy, token):
        together = replace(together, job=f"{node.job}-check-{secrets.token_hex(3)}")
        _is_over(together, replace(policy, start_nodes=1, min_nodes=1, max_nodes=1), token)
    probed = probe_nodes(together, lambda line: say(f"check: {line}"))
    code = probed.verdict.exit_code
    if code > 128:
        return Checked(fitness=Fitness(), exit_code=code)
    fitness = Fitness(failure=probed.own_failure)
    if probed.reports:
        fitness = fitness_of(probed.rank, probed.reports)
    say(f"check: {_in_words(fitness) or probed.verdict.reason}")
    return Checked(fitness=fitness)


def _in_words(fitness: Fitness) -> str:
    if fitness.failure:
        return fitness.failure
    parts = [] if fitness.gflops is None else [f"{fitness.gflops:.0f} GFLOP/s"]
    parts += [] if fitness.mb_per_s is None else [f"{fitness.mb_per_s:.0f} MB/s to the best neighbor"]
    return ", ".join(parts)


def _is_over(node: NodeSpec, policy: Policy, token: Path) -> bool:
    """Create the job, or find it as it is."""
    checking = replace(policy, max_restarts=0, silence_s=None, start_workers=1, min_workers=1, max_workers=None)
    with closing(Coordinator(node.coordinator_url, env.read_token(token), node.job)) as coordinator:
        view = coordinator.create_job(JobSpec(name="check", policy=checking))
    return view.is_finished or view.is_stopped
