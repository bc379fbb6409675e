"""`everstep node`: one node of a submitted job, from its order to the end of its agent."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from everstep import env
from everstep.errors import CoordinatorUnreachable, EverstepError, PermanentError, Refused, UsageError
from everstep.job_file.order import NodeOrder, policy_of
from everstep.launcher.local_coordinator import private_directory
from everstep.launcher.machine import count_cpus, count_gpus
from everstep.launcher.node import ENDING_SIGNALS, worker_command
from everstep.launcher.starter import Starter
from everstep.launcher.torchrun_options import parse_num_workers
from everstep.retry import patiently
from everstep.storage import private_file
from everstep.storage.shared_folder import SharedFolder

if TYPE_CHECKING:
    from everstep.client.calls import Coordinator

_TOO_LONG = 86_400.0 * 365  # a timer of the C library takes no more
_UNKNOWN = 404


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRequest:
    order: str  # JSON, or the path of a file with it
    coordinator_url: str | None  # or the path of a file that will hold it
    token_file: Path | None
    name: str | None
    node_rank: int | None
    log_dir: Path
    address: str | None
    deadline: float | None  # unix time


def read_order(given: str) -> NodeOrder:
    if given.lstrip().startswith("{"):
        return NodeOrder.from_json(given)
    try:
        return NodeOrder.from_json(Path(given).read_text())
    except OSError as error:
        raise UsageError(f"{given}: {error.strerror}", hint=f"--order, or {env.ORDER}: the order or its file") from None


def run_node(request: NodeRequest) -> int:
    _hear_signals()
    order = read_order(request.order)
    directory = private_directory(request.log_dir)
    is_set_up = env.take_set_up()
    if not is_set_up:  # else the setup lines saw them, and may have changed them
        os.environ.update({**order.env, **_secrets()})
    _enter(order, request, directory)
    if order.setup and not is_set_up:
        _set_up(order.setup)
    if order.experiment:
        private_file.write_json(directory / "experiment.json", dict(order.experiment))
        os.environ[env.EXPERIMENT] = str(directory / "experiment.json")
    _leave_in_time(order, request.deadline)
    command = tuple(
        worker_command(order.script, list(order.args), is_module=order.is_module, is_program=order.is_program)
    )
    num_workers = parse_num_workers(str(order.workers), num_gpus=count_gpus(), num_cpus=count_cpus())
    # First of all: torch is imported there while the rest is got ready.
    with Starter.open(command, num_workers=num_workers, outer=os.environ) as starter:
        from everstep.jobs.node_spec import AgentRequest
        from everstep.jobs.run import run_agent

        agent = AgentRequest(
            command=command,
            coordinator_url=_await_job(order, request),
            job=order.job,
            num_workers=num_workers,
            log_dir=directory,
            name=request.name,
            token_file=request.token_file,
            node_rank=-1 if request.node_rank is None else request.node_rank,
            address=request.address,
            # Slurm sends a signal to all processes of a node: this one means nothing to the others.
            signals=(*ENDING_SIGNALS, signal.SIGURG),
            shutdown_s=order.grace_s,
            heartbeat_s=float(order.policy.get("heartbeat_s", 1.0)),
        )
        return run_agent(agent, starter, check_by=policy_of(order) if order.wants_check else None)


def _hear_signals() -> None:
    """The first process of a container is deaf to what it has no handler for; later the agent has its own."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


def _coordinator(request: NodeRequest) -> str:
    if request.coordinator_url is None:
        raise UsageError("where is the coordinator?", hint=f"--coordinator URL, or {env.COORDINATOR}")
    if "://" in request.coordinator_url:
        return request.coordinator_url
    try:
        return Path(request.coordinator_url).read_text().strip()
    except FileNotFoundError:
        raise CoordinatorUnreachable(f"there is no {request.coordinator_url} yet") from None


def _secrets() -> Mapping[str, str]:
    """From where the platform keeps them: a file, a bucket, a vault."""
    told: dict[str, str] = {}
    if (place := env.secrets_file()) is not None:
        told = json.loads(_read_bucket(place) if "://" in place else _read_private(Path(place)))
    if in_vault := env.oci_secrets():
        from everstep.platforms.oci.vault_secrets import read_secrets

        told.update(read_secrets(in_vault, env.oci_endpoint()))
    return told


def forget_secrets(say: Callable[[str], None]) -> None:
    """The job is over: what lies in a bucket for its nodes is needed no more."""
    place = env.secrets_file()
    if place is None or "://" not in place:
        return
    folder, _, name = place.rpartition("/")
    try:
        SharedFolder(uri=folder).remove([name])
    except EverstepError as error:
        say(f"the job's secrets are still there: {error.message}")


def _read_private(path: Path) -> str:
    try:
        return env.read_token(path)
    except FileNotFoundError:
        raise PermanentError(
            f"the job's secrets are not at {path}", hint="they are removed when the job is over"
        ) from None


def _read_bucket(uri: str) -> bytes:
    folder, _, name = uri.rpartition("/")
    if (found := SharedFolder(uri=folder).read(name)) is None:
        raise PermanentError(f"the job's secrets are not at {uri}", hint="they are removed when the job is over")
    return found


def _enter(order: NodeOrder, request: NodeRequest, directory: Path) -> None:
    """The folder that workers start in."""
    folder = _fetch(order, request, directory) if order.code else Path(order.workdir or ".")
    try:
        os.chdir(folder)
    except OSError as error:
        raise UsageError(f"cannot work in {folder}: {error.strerror}", hint="see workdir in the job file") from None


def _fetch(order: NodeOrder, request: NodeRequest, directory: Path) -> Path:
    from everstep.storage import code_archive

    if order.code_from and "://" not in order.code_from:
        directory = Path(order.code_from)  # all nodes see it: once is enough
    if (there := code_archive.unpacked(order.code, directory)) is not None:
        return there
    if order.code_from:
        data = code_archive.read_from(order.code_from, order.code)
    else:
        url = patiently(lambda: _coordinator(request), env.coordinator_deadline_s())
        with _connect(order, request, url) as coordinator:
            data = patiently(lambda: coordinator.code(order.code), env.coordinator_deadline_s())
    return code_archive.unpack(data, order.code, directory)


def _connect(order: NodeOrder, request: NodeRequest, url: str) -> Coordinator:
    from everstep.client.calls import Coordinator
    from everstep.jobs.node_spec import find_token

    return Coordinator(url, find_token(request.token_file), order.job, answer_s=300.0)


def _await_job(order: NodeOrder, request: NodeRequest) -> str:
    """The coordinator's URL. Nodes may be up before it has a name, an address, or the job."""

    def ask() -> str:
        try:
            url = _coordinator(request)
            with _connect(order, request, url) as coordinator:
                coordinator.view(is_brief=True)
        except (Refused, CoordinatorUnreachable) as error:
            if isinstance(error, Refused) and error.status != _UNKNOWN:
                raise
            raise CoordinatorUnreachable(f"waiting for the coordinator: {error.message}") from None
        return url

    def say(line: str) -> None:
        print(f"everstep: {line}", file=sys.stderr, flush=True)

    return patiently(ask, env.coordinator_deadline_s(), say=say)


def _set_up(lines: tuple[str, ...]) -> None:
    """Run the lines in a shell that then becomes this command again, with all that they have set: also another Python,
    if they have chosen one (`source activate`)."""
    again = shlex.join(["-m", "everstep", *sys.argv[1:]])
    script = "\n".join(
        [
            "set -e",
            "everstep_python=$(command -v python || :)",
            *lines,
            f"export {env.SET_UP}=1",
            f'[ "$(command -v python || :)" != "$everstep_python" ] || exec {shlex.quote(sys.executable)} {again}',
            f"exec python {again}",
        ]
    )
    try:
        os.execvp("bash", ["bash", "-c", script])
    except OSError as error:
        raise PermanentError(f"bash, for the job's setup lines: {error.strerror}") from None


def _leave_in_time(order: NodeOrder, deadline: float | None) -> None:
    """Go as if we were told to, early enough to save: nobody else warns us."""
    if deadline is None:
        return

    def leave() -> None:
        print("everstep: the time is nearly up: leaving", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

    if deadline - time.time() < _TOO_LONG:
        timer = threading.Timer(max(0.0, deadline - order.grace_s - time.time()), leave)
        timer.daemon = True
        timer.start()
