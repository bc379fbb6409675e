"""`everstep node`: one node of a submitted job, from its order to the end of its agent."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from everstep import env
from everstep.errors import EverstepError, PermanentError, UsageError
from everstep.job_file.order import NodeOrder, policy_of
from everstep.jobs.find_coordinator import FoundCoordinator, find_coordinator
from everstep.jobs.options import SubmittedNodeOptions
from everstep.launcher.local_coordinator import private_directory
from everstep.launcher.machine import count_cpus, count_gpus
from everstep.launcher.node import ENDING_SIGNALS, worker_command
from everstep.launcher.starter import Starter
from everstep.launcher.torchrun_options import parse_num_workers
from everstep.record.log_masks import LEAST_CHARS, too_short
from everstep.retry import patiently
from everstep.storage import private_file
from everstep.storage.shared_folder import SharedFolder

Say = Callable[[str], None]

_TOO_LONG = 86_400.0 * 365  # the longest that a timer of the C library takes


def read_order(given: str | None) -> NodeOrder:
    """`given`: the order as JSON, or the path of a file with it."""
    if given is None:
        raise UsageError("no order for this node", hint=f"--order, or {env.ORDER}", code="order-missing")
    if given.lstrip().startswith("{"):
        return NodeOrder.from_json(given)
    try:
        return NodeOrder.from_json(Path(given).read_text())
    except OSError as error:
        hint = f"--order, or {env.ORDER}: the order or its file"
        raise UsageError(f"{given}: {error.strerror}", hint=hint, code="order-file-unreadable") from None


def run_node(options: SubmittedNodeOptions, say: Say) -> int:
    _handle_termination()
    order = read_order(options.order)
    directory = private_directory(options.log_dir)
    is_set_up = env.take_set_up()
    if not is_set_up:  # otherwise the setup lines had them, and may have changed them
        env.update({**order.env, **read_secret_values()})
    _enter(order, options, directory, say)
    if order.setup and not is_set_up:
        run_setup(order.setup)
    if order.experiment:
        private_file.write_json(directory / "experiment.json", dict(order.experiment))
        env.update({env.EXPERIMENT: str(directory / "experiment.json")})
    _leave_in_time(order, options.deadline, say)
    command = tuple(
        worker_command(order.script, list(order.args), is_module=order.is_module, is_program=order.is_program)
    )
    num_gpus = count_gpus()
    if num_gpus < order.gpus:
        say(f"resources.gpu: {order.gpus}, but this node sees {num_gpus}: check nvidia-smi and CUDA_VISIBLE_DEVICES")
    num_workers = parse_num_workers(str(order.workers), num_gpus=num_gpus, num_cpus=count_cpus())
    # Before all else: torch is imported there while the rest gets ready.
    with Starter.open(command, num_workers=num_workers, outer=env.everything()) as starter:
        from everstep.jobs.node_spec import node_spec
        from everstep.jobs.run import run_agent
        from everstep.jobs.tokens import token_path

        url = _find(order, options, say).url
        folder = private_directory(directory / order.job)
        token = token_path(options.token_file, folder)
        node = node_spec(
            options,
            url=url,
            token=token,
            job=order.job,
            command=command,
            num_workers=num_workers,
            directory=folder,
            name=options.name,
        )
        node = replace(
            node,
            # Slurm sends a signal to all processes of a node: the others ignore this one.
            signals=(*ENDING_SIGNALS, signal.SIGURG),
            shutdown_s=order.grace_s,
            heartbeat_s=float(order.policy.get("heartbeat_s", 1.0)),
            hidden=hidden_values(order, say),
        )
        return run_agent(node, starter, token, check_by=policy_of(order) if order.wants_check else None)


def _handle_termination() -> None:
    """The first process of a container ignores signals without a handler; later the agent sets its own."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


@contextmanager
def asked_to_end() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set. To be called in the main thread."""
    asked = threading.Event()

    def handle(_number: int, _frame: FrameType | None) -> None:
        asked.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def read_secret_values() -> Mapping[str, str]:
    """From the platform's place for them: a file, a bucket, a vault."""
    found: dict[str, str] = {}
    if (place := env.value(env.SECRETS_FILE)) is not None:
        found = json.loads(_read_bucket(place) if "://" in place else _read_private(Path(place)))
    if in_vault := env.oci_secrets():
        from everstep.platforms.oci.service import read_secrets

        found.update(read_secrets(in_vault, env.value(env.OCI_ENDPOINT) or ""))
    return found


def hidden_values(order: NodeOrder, say: Say) -> tuple[str, ...]:
    """Values that no log shows. The platform has set them as variables, or we have."""
    values = {name: value for name in order.secrets if (value := env.value(name))}
    if short := too_short(values.items()):
        say(f"secrets {', '.join(short)}: fewer than {LEAST_CHARS} characters cannot be masked in logs")
    return tuple(values.values())


def forget_secrets(say: Say) -> None:
    """The job is over: no node needs the secrets in a bucket."""
    place = env.value(env.SECRETS_FILE)
    if place is None or "://" not in place:
        return
    folder, _, name = place.rpartition("/")
    try:
        SharedFolder(uri=folder).remove([name])
    except EverstepError as error:
        say(f"the job's secrets could not be removed: {error.message}")


def _read_private(path: Path) -> str:
    try:
        return env.read_token(path)
    except FileNotFoundError:
        hint = "they are removed when the job is over"
        raise PermanentError(f"the job's secrets are not at {path}", hint=hint, code="secrets-file-missing") from None


def _read_bucket(uri: str) -> bytes:
    folder, _, name = uri.rpartition("/")
    if (found := SharedFolder(uri=folder).read(name)) is None:
        message = f"the job's secrets are not at {uri}"
        raise PermanentError(message, hint="they are removed when the job is over", code="secrets-object-missing")
    return found


def _enter(order: NodeOrder, options: SubmittedNodeOptions, directory: Path, say: Say) -> None:
    """Change to the folder that workers start in."""
    change_to(_fetch(order, options, directory, say) if order.code else Path(order.workdir or "."))


def change_to(folder: Path) -> None:
    try:
        os.chdir(folder)
    except OSError as error:
        raise UsageError(
            f"cannot work in {folder}: {error.strerror}", hint="see workdir in the job file", code="workdir-unusable"
        ) from None


def _fetch(order: NodeOrder, options: SubmittedNodeOptions, directory: Path, say: Say) -> Path:
    from everstep.storage import code_archive

    if order.code_from and "://" not in order.code_from:
        directory = Path(order.code_from)  # shared by all nodes: once is enough
    if (there := code_archive.unpacked(order.code, directory)) is not None:
        return there
    if order.code_from:
        data = code_archive.read_from(order.code_from, order.code)
    else:
        from everstep.client.calls import Coordinator

        found = _find(order, options, say)
        with Coordinator(found.url, found.token, order.job, answer_s=300.0) as coordinator:
            data = patiently(lambda: coordinator.code(order.code), env.coordinator_deadline_s())
    return code_archive.unpack(data, order.code, directory)


def _find(order: NodeOrder, options: SubmittedNodeOptions, say: Say) -> FoundCoordinator:
    return find_coordinator(
        order.job,
        url=options.coordinator,
        token_file=options.token_file,
        patience_s=env.coordinator_deadline_s(),
        say=say,
    )


def run_setup(lines: tuple[str, ...]) -> None:
    """Run the lines in a shell that then becomes this command again, with everything that they have set."""
    script = setup_script((*lines, f"export {env.SET_UP}=1"), sys.argv[1:])
    try:
        os.execvp("bash", ["bash", "-c", script])
    except OSError as error:
        raise PermanentError(
            f"bash, for the job's setup lines: {error.strerror}", hint="install bash", code="bash-missing"
        ) from None


def setup_script(lines: Sequence[str], words: Sequence[str]) -> str:
    """For bash: the lines, then `everstep WORDS` in the same process; also by another Python, if they have chosen one
    (`source activate`)."""
    then = shlex.join(["-m", "everstep", *words])
    return "\n".join(
        [
            "set -e",
            "everstep_python=$(command -v python || :)",
            *lines,
            f'[ "$(command -v python || :)" != "$everstep_python" ] || exec {shlex.quote(sys.executable)} {then}',
            f"exec python {then}",
        ]
    )


def _leave_in_time(order: NodeOrder, deadline: float | None, say: Say) -> None:
    """Leave as if asked to, early enough to save: no other warning comes."""
    if deadline is None:
        return

    def leave() -> None:
        say("the time is nearly up: leaving")
        os.kill(os.getpid(), signal.SIGTERM)

    if deadline - time.time() < _TOO_LONG:
        timer = threading.Timer(max(0.0, deadline - order.grace_s - time.time()), leave)
        timer.daemon = True
        timer.start()
