"""What runs a trial on a slot: an ordinary agent with one worker, in a process of its own.

Fetches the code once per node, fills the arguments, sets the worker's environment. The exit code tells how it ended:
0 well, 128 + signal if it was asked to end, anything else: failed. The sentence is in the folder's run.json, or in
end.txt if it failed before its agent began."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from everstep import env, wire
from everstep.addresses import address_towards
from everstep.client.calls import Coordinator
from everstep.errors import EverstepError, UsageError
from everstep.job_file.order import NodeOrder
from everstep.jobs.node import hidden_values, read_secret_values, run_setup
from everstep.jobs.run import run_agent
from everstep.launcher import run_record
from everstep.launcher.node import NodeSpec, worker_command
from everstep.launcher.printed_results import PrintedResults
from everstep.launcher.shown_streams import Shown
from everstep.launcher.spare_saver import SpareSaver
from everstep.launcher.starter import Starter
from everstep.nursery.client import TRIALS
from everstep.pool import code_folder as folders
from everstep.pool.arg_templates import fill
from everstep.pool.code_folder import code_folder, remove_unused, working_folder
from everstep.retry import patiently
from everstep.search.config import read_searcher
from everstep.storage import private_file

ORDER, END = "order.json", "end.txt"
KEEP_WARM_S = 60.0  # the process that workers are forks of stays this long after the last trial
FAILED = 2
LOST = 75  # the worker died with the process that it was a fork of: not its own failure
_FETCH_S = 300.0
_REST_S = 10.0  # for results that the script printed last


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialOrder:
    """What the pool's agent leaves in the folder of an assignment."""

    assignment: dict[str, Any]  # a wire.AssignmentOrder
    url: str
    token_file: str
    agent: str  # the pool's
    pool_folder: str  # of the pool's agent: code, and working folders
    gpu: str = ""  # the only one that the worker sees

    def write(self, folder: Path) -> None:
        private_file.write(folder / ORDER, wire.to_json(self))

    @classmethod
    def read(cls, folder: Path) -> TrialOrder:
        return cls(**json.loads((folder / ORDER).read_bytes()))


def run_trial(folder: Path) -> int:
    """The whole life of an assignment."""
    told = TrialOrder.read(folder)
    given = wire.from_json(wire.AssignmentOrder, told.assignment)
    try:
        return _run(told, given, folder)
    except EverstepError as error:
        private_file.write(folder / END, str(error).encode())
        return FAILED


def last_words(folder: Path) -> str:
    """Why it ended, if it said so."""
    try:
        return (folder / END).read_text()
    except OSError:
        pass
    record = run_record.read(folder)
    return (record.error or record.reason) if record is not None else ""


def _run(told: TrialOrder, given: wire.AssignmentOrder, folder: Path) -> int:
    order = NodeOrder.from_json(json.dumps({**given.order, "job": given.job}))
    args = fill(order.args, given.hparams)
    is_set_up = env.take_set_up()
    if not is_set_up:
        env.update({**order.env, **read_secret_values()})
    env.set_default("OMP_NUM_THREADS", "1")  # sums, and so bits, depend on it: the same for every number of slots
    if told.gpu:
        env.update({env.VISIBLE_GPUS: told.gpu})
    env.update(trial_environment(given, folder))
    working = _enter(told, given, order)
    if order.setup and not is_set_up:
        run_setup(order.setup)
    command = tuple(worker_command(order.script, list(args), is_module=order.is_module, is_program=order.is_program))
    outer = env.everything()
    with (
        SpareSaver() as spare,  # first: it must hold nothing of what comes after
        Starter.open(
            command, num_workers=1, outer=outer, keep_warm_s=KEEP_WARM_S, keeps_control=False, kind=TRIALS
        ) as starter,
    ):
        starter.spare_saver = spare
        token = Path(told.token_file)
        node = NodeSpec(
            job=given.job,
            coordinator_url=told.url,
            token_file=token,
            command=command,
            num_workers=1,
            directory=folder,
            agent=wire.trial_node(told.agent, given.number),
            address=address_towards(urlsplit(told.url).hostname or ""),
            shutdown_s=order.grace_s,
            heartbeat_s=float(given.policy.get("heartbeat_s", 1.0)),
            hidden=hidden_values(order, lambda line: None),
        )
        with _printed_results(told, given, folder) as printed:
            code = run_agent(node, starter, token, shown=Shown(is_quiet=True))
            if printed is not None:
                printed.close(_REST_S)
        if code != 0 and starter.is_bereft:
            code = LOST
    if working is not None:
        remove_unused(working)
    return 0 if printed is not None and printed.is_stopped else code


@contextmanager
def _printed_results(told: TrialOrder, given: wire.AssignmentOrder, folder: Path) -> Iterator[PrintedResults | None]:
    """For a script that knows nothing of its trial. The search's word to stop is a SIGTERM to this process: its agent
    then ends the script. One that comes when the agent has ended already has nothing to end."""
    pattern = given.config.get("metric_line")
    if not pattern:
        yield None
        return
    coordinator = Coordinator(told.url, env.read_token(Path(told.token_file)), given.job)
    with PrintedResults(coordinator, str(pattern), folder, lambda _reason: _end_myself()) as printed:

        def end(number: int, _frame: object) -> None:
            if not printed.is_stopped:
                sys.exit(128 + number)

        before = signal.signal(signal.SIGTERM, end)
        try:
            yield printed
        finally:
            signal.signal(signal.SIGTERM, before)


def _end_myself() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def trial_environment(given: wire.AssignmentOrder, folder: Path) -> dict[str, str]:
    """What makes a worker a trial's."""
    private_file.write_json(folder / "experiment.json", {**given.config, "hyperparameters": given.hparams})
    facts = {
        "experiment": given.experiment,
        "trial": given.trial,
        "trial_id": given.trial_id,
        "seed": given.seed,
        "key": given.key,
        **_searcher(given.config),
        "warm_start": given.warm_start,
        "warm_start_uri": given.warm_start_uri,
        "warm_start_step": given.warm_start_step,
        "resume_from": given.resume_from,
        "resume_from_uri": given.resume_from_uri,
        "resume_from_step": given.resume_from_step,
    }
    return {env.EXPERIMENT: str(folder / "experiment.json"), env.TRIAL: json.dumps(facts)}


def _searcher(config: Mapping[str, Any]) -> dict[str, Any]:
    section = config.get("searcher")
    section = {"name": section} if isinstance(section, str) else section
    try:
        found = read_searcher(section)
        return {"metric": found.metric, "unit": found.unit, "smaller_is_better": found.smaller_is_better}
    except UsageError:  # of another kind than the coordinator's own, such as a program's
        section = section if isinstance(section, Mapping) else {}
        told = {"metric": str(section.get("metric", "")), "unit": str(section.get("unit", "batches"))}
        return {**told, "smaller_is_better": bool(section.get("smaller_is_better", True))}


def _enter(told: TrialOrder, given: wire.AssignmentOrder, order: NodeOrder) -> Path | None:
    """Change to the folder that the worker starts in; return it if it is the trial's own."""
    if not order.code:
        _change_to(Path(order.workdir or "."))
        return None

    def fetch() -> bytes:
        with Coordinator(told.url, env.read_token(Path(told.token_file)), given.job, answer_s=_FETCH_S) as coordinator:
            return patiently(lambda: coordinator.code(order.code), env.coordinator_deadline_s())

    code = code_folder(order.code, Path(told.pool_folder) / folders.CODE, fetch)
    working = working_folder(code, Path(told.pool_folder) / folders.TRIALS / (given.key or given.job))
    _change_to(working)
    return working


def _change_to(folder: Path) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        raise UsageError(
            f"cannot work in {folder}: {error.strerror}", hint="see workdir in the job file", code="workdir-unusable"
        ) from None
