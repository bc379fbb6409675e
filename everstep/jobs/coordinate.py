"""`everstep coordinate`: the coordinator of one submitted job, and its nodes where it makes them itself.

Started again on the same folder, it continues. Its exit code is the job's."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from everstep import env
from everstep.addresses import own_address
from everstep.client.calls import Coordinator
from everstep.errors import EverstepError, PermanentError, UsageError
from everstep.job_file.order import NodeOrder, policy_of
from everstep.jobs.leave_record import (
    configuration_of,
    copy_record,
    place_beside,
    use_storage_variables,
    write_about,
)
from everstep.jobs.node import asked_to_end, read_order
from everstep.jobs.options import CoordinateOptions
from everstep.launcher.local_coordinator import (
    CoordinatorFiles,
    LocalCoordinator,
    earlier_port,
    private_directory,
    write_token,
)
from everstep.launcher.log_sender import LogSender
from everstep.platforms import status_file
from everstep.platforms.base import OVER, State
from everstep.platforms.fleet import Fleet, ReturningNodes, keep
from everstep.record.about import ABOUT, RecordAbout, parse_about
from everstep.record.log_masks import Masks
from everstep.storage import private_file
from everstep.storage.shared_folder import SharedFolder
from everstep.waiting import wait_until
from everstep.wire import JobSpec, JobView, Stop, fitting_config, to_json

_TURN_S = 0.2
_SEND_S = 2.0  # for the last lines of the coordinator itself
_LEAVE_S = 30.0  # after the job's end, for nodes to learn of it and leave


def run_coordinate(options: CoordinateOptions, say: Callable[[str], None]) -> int:
    order = read_order(options.order)
    folder = private_directory(options.folder)
    files = CoordinatorFiles(directory=folder, serves_code=bool(order.code and not order.code_from))
    if options.token_file is not None and options.token_file.resolve() != files.token:
        private_file.write(files.token, env.read_token(options.token_file).encode() + b"\n")
    before = status_file.read(folder)
    if before is not None and before[0] in OVER:  # the platform may start it again after an error
        say(f"{before[0]}, as it was before this start")
        _leave_record(order, folder, before, None, say)
        return 0 if before[0] == "succeeded" else 1
    status_file.write(folder, "running", "the coordinator is started")
    write_token(files.token)
    fleet = _fleet(options.fleet, order, folder)
    fleet.prepare()
    host, comes_back = own_address(options.host), options.fleet == "requeued"
    port = _port(files, options.port) if not comes_back else earlier_port(files, host)
    with asked_to_end() as asked:  # until the end is on record: a signal must not come in between
        view, was_asked = _serve(order, files, fleet, asked, say, host=host, port=port, comes_back=comes_back)
        code = _record(folder, view, say, was_asked=was_asked, comes_back=comes_back)
        if _is_over(view) and (ended := status_file.read(folder)) is not None:
            _leave_record(order, folder, ended, view, say)
        return code


def _serve(
    order: NodeOrder,
    files: CoordinatorFiles,
    fleet: Fleet,
    asked: threading.Event,
    say: Callable[[str], None],
    *,
    host: str,
    port: int,
    comes_back: bool,
) -> tuple[JobView, bool]:
    """The job as it is at the end, and whether we were asked to end it."""
    with (
        LocalCoordinator(files, say=say, host=host, port=port) as local,
        closing(Coordinator(local.url, env.read_token(files.token), order.job)) as coordinator,
    ):
        config = fitting_config(configuration_of(order, _hidden(order, files.directory)))
        view = coordinator.create_job(JobSpec(name=order.name, policy=policy_of(order), config=config))
        say(f"job {order.job} at {local.url}, files in {files.directory}")
        with _recorded(say, local.url, files, order) as say, fleet:
            view, was_asked = _attend(order, coordinator, fleet, asked, say, began_at=_began_at(files.directory))
            if not _is_over(view) and comes_back:
                _await_nodes(coordinator, fleet, order.grace_s)
                view = coordinator.view(is_brief=True)
            if _is_over(view):
                _await_nodes(coordinator, fleet, _LEAVE_S)
                fleet.dissolve(is_good=view.is_finished)
                view = _look(coordinator, is_brief=False) or view
    return view, was_asked


@contextmanager
def _recorded(
    say: Callable[[str], None], url: str, files: CoordinatorFiles, order: NodeOrder
) -> Iterator[Callable[[str], None]]:
    """Lines that are said here are part of the job's log."""
    sender = LogSender(
        lambda: Coordinator(url, env.read_token(files.token), order.job),
        agent="coordinator",
        directory=files.directory,
        masks=Masks(_hidden(order, files.directory)),
        say=say,
    )

    def say_both(line: str) -> None:
        say(line)
        sender.note(line)

    with sender:
        yield say_both
        sender.close(_SEND_S)


def _about(order: NodeOrder, folder: Path, state: str, reason: str, view: JobView | None) -> RecordAbout:
    if (folder / ABOUT).exists():  # written before this start
        return parse_about((folder / ABOUT).read_bytes(), str(folder / ABOUT))
    return RecordAbout(
        job=order.job,
        name=order.name,
        state=state,
        reason=reason,
        began_at=_began_at(folder),
        ended_at=time.time(),
        configuration=configuration_of(order, _hidden(order, folder)),
        view={} if view is None else json.loads(to_json(view)),
    )


def _leave_record(
    order: NodeOrder, folder: Path, ended: tuple[State, str], view: JobView | None, say: Callable[[str], None]
) -> None:
    """After the end is on record, which must not wait for a storage. This folder may be gone with its pod."""
    to = order.record_to
    try:
        use_storage_variables(order, _secrets(folder))
        about = _about(order, folder, *ended, view)
        write_about(folder, about)
        if to:
            where = place_beside(to, order.job)
            copy_record(folder, about, SharedFolder(uri=where), checkpoints=to)
            say(f"record in {where}")
    except Exception as error:  # of any storage: the job's result does not depend on it
        say(f"could not save the record{f' in {to}' if to else ''}: {error}")
    try:
        (folder / "secrets.json").unlink(missing_ok=True)  # only now: a start after a kill copies with them
    except OSError as error:
        say(f"could not remove the job's secrets: {error}")


def _secrets(folder: Path) -> dict[str, str]:
    path = folder / "secrets.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _hidden(order: NodeOrder, folder: Path) -> list[str]:
    """The values of the job's secrets that this process knows: on some platforms, those for its storage only."""
    try:
        known = _secrets(folder)
    except (OSError, ValueError):  # the nodes, which need them, say so
        known = {}
    return [*known.values(), *(value for name in order.secrets if (value := env.value(name)))]


def _record(folder: Path, view: JobView, say: Callable[[str], None], *, was_asked: bool, comes_back: bool) -> int:
    if not _is_over(view):
        say("ended by a signal; the job continues without its coordinator until the next one comes")
        if comes_back:
            status_file.write(folder, "pending", "its nodes were asked to leave; it continues when they are back")
        return 128 + signal.SIGTERM
    state: State = "succeeded" if view.is_finished else "canceled" if was_asked else "failed"
    status_file.write(folder, state, view.reason)
    say(f"{state}: {view.reason}")
    return 0 if view.is_finished else 1


def _attend(
    order: NodeOrder,
    coordinator: Coordinator,
    fleet: Fleet,
    asked: threading.Event,
    say: Callable[[str], None],
    *,
    began_at: float,
) -> tuple[JobView, bool]:
    """Until the job is over, or we are asked to end it: then True, unless it was over already."""
    leave_at = None if order.time_limit_s is None else began_at + order.time_limit_s - order.grace_s
    said = ""
    while True:
        nodes, view = fleet.nodes(), _look(coordinator)
        if view is not None and _is_over(view):
            return view, False
        if asked.is_set():
            view = coordinator.view(is_brief=True)
            if _is_over(view):
                return view, False
            return view if fleet.lives_on else _stop(coordinator, "canceled"), True
        if leave_at is not None and time.time() > leave_at + order.grace_s:
            return _stop(coordinator, f"the time limit of {order.time_limit_s:.0f} s is reached"), False
        is_late = leave_at is not None and time.time() > leave_at
        try:
            reason = keep(fleet, nodes, now=time.time(), num_wanted=0 if is_late else None).reason
        except PermanentError as error:
            return _stop(coordinator, error.message), False
        if reason != said and fleet.makes_nodes:
            said = reason
            say(reason)
        asked.wait(_TURN_S)


def _began_at(folder: Path) -> float:
    """When the first coordinator of this folder began: the job's time limit counts from then on."""
    path = folder / "began"
    if not path.exists():
        private_file.write(path, f"{time.time()}\n".encode())
    return float(path.read_text())


def _look(coordinator: Coordinator, *, is_brief: bool = True) -> JobView | None:
    try:
        return coordinator.view(is_brief=is_brief)
    except EverstepError:  # it is being started again
        return None


def _stop(coordinator: Coordinator, reason: str) -> JobView:
    coordinator.stop(Stop(reason=reason))
    return coordinator.view(is_brief=True)


def _await_nodes(coordinator: Coordinator, fleet: Fleet, patience_s: float) -> None:
    """Until all nodes have learned of the end and have left."""

    def have_left() -> bool:
        view = _look(coordinator)
        is_any_present = view is not None and any(node.is_present for node in view.nodes)
        return not is_any_present and all(each.is_over for each in fleet.nodes())

    wait_until(have_left, patience_s, "all nodes to leave")


def _is_over(view: JobView) -> bool:
    return view.is_finished or view.is_stopped


def _port(files: CoordinatorFiles, port: int) -> int:
    """The given one, or that of an earlier coordinator of this folder: nodes know no other."""
    if port == 0 and files.ready.exists():
        return int(files.ready.read_text().strip().rsplit(":", 1)[1])
    return port


def _fleet(kind: str, order: NodeOrder, folder: Path) -> Fleet:
    if kind == "none":
        return Fleet()
    if kind in ("requeued", "indexed"):
        return ReturningNodes()
    if kind == "local":
        from everstep.launcher.machine import gpu_names
        from everstep.platforms.local_fleet import LocalFleet

        return LocalFleet(order, folder, gpu_names())
    if kind == "kubernetes":
        from everstep.platforms.kubernetes.fleet import KubernetesFleet

        return KubernetesFleet(order, folder)
    raise UsageError(
        f"unknown fleet {kind!r}", hint="none, requeued, local, kubernetes or indexed", code="fleet-unknown"
    )
