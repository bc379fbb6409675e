"""What runs a trial on a slot: an ordinary agent with one worker, in a process of its own.

Fetches the code once per node, fills in the arguments, and sets the worker's environment. The trial's own token is in a
private file; secrets are only in the environment, never in a file. Exit codes: 0 if the trial ended well, 128 + signal
if it was asked to end, LOST or UNFIT if it is repeated without counting as a failure, anything else if it failed. The
reason is in the folder's run.json, or in end.txt if its agent does not know it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from everstep import env, wire
from everstep.addresses import address_towards
from everstep.client.calls import Coordinator
from everstep.errors import EverstepError, UsageError
from everstep.job_file.arg_templates import fill
from everstep.job_file.order import NodeOrder
from everstep.jobs.node import change_to, hidden_values, read_secret_values, run_setup
from everstep.jobs.run import run_agent
from everstep.jobs.tokens import write_token
from everstep.launcher.node import NodeSpec, worker_command
from everstep.launcher.node_saver import NodeSaver
from everstep.launcher.printed_results import PrintedResults
from everstep.launcher.shown_streams import Shown
from everstep.launcher.starter import Starter
from everstep.nursery.client import TRIALS
from everstep.pool import code_folder as folders
from everstep.pool.code_folder import WorkingFolder, code_folder, remove_unused, working_folder
from everstep.pool.trial_order import DATA, END, KEEP_WARM_S, LOST, SAVER, UNFIT, TrialOrder
from everstep.retry import patiently
from everstep.search.config import is_smaller_better, read_searcher
from everstep.storage import private_file

log = logging.getLogger("everstep")

_NOT_IN_DATA = {"name", "description", "notes", "labels", "searcher", "hyperparameters", "resources", "restarts"}
TOKEN = "token"
FAILED = 2
_FETCH_S = 300.0
_REST_S = 10.0  # for the last results of a script that will be started again


def run_trial(folder: Path) -> int:
    """The whole life of an assignment."""
    told = TrialOrder.read(folder)
    given = wire.from_json(wire.AssignmentOrder, told.assignment)
    try:
        return _run(told, given, folder)
    except UsageError as error:  # the experiment's file is wrong
        return _end(folder, FAILED, str(error))
    except (EverstepError, OSError) as error:
        return _end(folder, UNFIT, str(error))


def _end(folder: Path, code: int, reason: str) -> int:
    try:
        private_file.write(folder / END, reason.encode())
    except OSError as error:  # the disk may be full
        log.warning("%s; %s: %s", reason, folder / END, error)
    return code


def _run(told: TrialOrder, given: wire.AssignmentOrder, folder: Path) -> int:
    order = NodeOrder.from_json(json.dumps({**given.order, "job": given.job}))
    args = fill(order.args, given.hparams)
    token = write_token(folder / TOKEN, given.token)
    is_set_up = env.take_set_up()
    if not is_set_up:
        env.update({**order.env, **read_secret_values()})
    env.update({env.TOKEN_FILE: str(token)})
    env.set_default("OMP_NUM_THREADS", "1")  # sums, and so bits, depend on it: the same for every number of slots
    if told.gpu:
        env.update({env.VISIBLE_GPUS: told.gpu})
    env.update({env.SLOT_MEMORY: str(told.slot_memory_bytes), env.SLOT_CPUS: str(told.slot_cpus)})
    env.update(trial_environment(given, folder))
    working = _enter(told, given, order, token)
    if order.setup and not is_set_up:
        run_setup(order.setup)
    command = tuple(worker_command(order.script, list(args), is_module=order.is_module, is_program=order.is_program))
    # The process that forks workers may stay, and fork another experiment's.
    outer = {name: value for name, value in env.everything().items() if name not in order.secrets}
    with Starter.open(
        command, num_workers=1, outer=outer, keep_warm_s=KEEP_WARM_S, keeps_control=False, kind=TRIALS
    ) as starter:
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
            node_saver=_node_saver(told, given, order),
            node_data=Path(told.pool_folder) / DATA,
        )
        with _printed_results(told, given, folder, token) as printed:
            code = run_agent(node, starter, token, shown=Shown(is_quiet=True))
            patience_s = env.coordinator_deadline_s() if code == 0 else _REST_S
            is_told = printed is None or printed.close(patience_s) or printed.is_stopped
        if code != 0 and starter.problem:
            return _end(folder, UNFIT, starter.problem)
        if code != 0 and starter.is_bereft:
            return _end(folder, LOST, "its process ended together with the process that forked it")
    if not is_told:
        return _end(folder, LOST, f"the coordinator was away for {patience_s:g} s and missed results of the script")
    if working is not None:
        remove_unused(working)
    return 0 if printed is not None and printed.is_stopped else code


def _node_saver(told: TrialOrder, given: wire.AssignmentOrder, order: NodeOrder) -> NodeSaver | None:
    """The saver of all trials of this node, unless this trial's own setup lines decide what its files are like."""
    if order.setup:
        return None
    path = Path(told.pool_folder) / SAVER
    return NodeSaver(path=path, owner=given.key or given.job, is_for_buckets=not (order.env or order.secrets))


@contextmanager
def _printed_results(
    told: TrialOrder, given: wire.AssignmentOrder, folder: Path, token: Path
) -> Iterator[PrintedResults | None]:
    """For a script that does not know its trial. When the search stops the trial, this process gets SIGTERM, and its
    agent ends the script. After the agent has ended, the signal has no effect."""
    pattern = given.config.get("metric_line")
    if not pattern:
        yield None
        return
    coordinator = Coordinator(told.url, env.read_token(token), given.job)
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
    """The environment variables of a trial's worker."""
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
    return {
        env.EXPERIMENT: str(folder / "experiment.json"),
        env.TRIAL: json.dumps(facts),
        env.DATA_SCOPE: _data_scope(given),
    }


def _data_scope(given: wire.AssignmentOrder) -> str:
    """A key that is equal for trials whose same call loads the same data: same code, variables and file."""
    order = {name: given.order.get(name) for name in ("code", "workdir", "env", "secrets", "setup")}
    file = {name: value for name, value in given.config.items() if name not in _NOT_IN_DATA}
    return hashlib.sha256(json.dumps([order, file], sort_keys=True, default=str).encode()).hexdigest()


def _searcher(config: Mapping[str, Any]) -> dict[str, Any]:
    section = config.get("searcher")
    section = {"name": section} if isinstance(section, str) else section
    try:
        found = read_searcher(section)
        return {"metric": found.metric, "unit": found.unit, "smaller_is_better": found.smaller_is_better}
    except UsageError:  # of another kind than the coordinator's own, such as a program's
        section = section if isinstance(section, Mapping) else {}
        told = {"metric": str(section.get("metric", "")), "unit": str(section.get("unit", "batches"))}
        return {**told, "smaller_is_better": is_smaller_better(section)}


def _enter(told: TrialOrder, given: wire.AssignmentOrder, order: NodeOrder, token: Path) -> WorkingFolder | None:
    """Change to the folder that the worker starts in; return it if it is the trial's own."""
    if not order.code:
        change_to(Path(order.workdir or "."))
        return None

    def fetch() -> bytes:
        with Coordinator(told.url, env.read_token(token), given.job, answer_s=_FETCH_S) as coordinator:
            return patiently(lambda: coordinator.code(order.code), env.coordinator_deadline_s())

    code = code_folder(order.code, Path(told.pool_folder) / folders.CODE, fetch)
    working = working_folder(code, Path(told.pool_folder) / folders.TRIALS / (given.key or given.job))
    os.chdir(working.path)
    return working
