"""Gather facts about this machine. Judges nothing; an unknown fact is None, or a text says why.

torch is asked in a process of its own, by the interpreter that workers get."""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TypeVar

from everstep import addresses, env
from everstep.client.calls import Coordinator
from everstep.doctor.limits import memory_left, threads_left
from everstep.errors import EverstepError
from everstep.launcher.endpoint import Endpoint
from everstep.launcher.machine import count_cpus, count_gpus
from everstep.process import Child, ask

T = TypeVar("T")

NAMES_S = 3.0  # a resolver that takes longer is not to be waited for
TORCH_S = 120.0
GPUS_S = 20.0  # the driver may start first
_TORCH = """
import json, torch, torch.distributed as dist
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "num_gpus": torch.cuda.device_count(),
                  "has_gloo": dist.is_available() and dist.is_gloo_available()}))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Torch:
    version: str = ""
    cuda: str | None = None
    num_gpus: int = 0
    has_gloo: bool = False
    problem: str = ""  # why it cannot be imported


@dataclass(frozen=True, kw_only=True, slots=True)
class NameFacts:
    host: str
    addresses: tuple[str, ...] = ()  # that the host's own name resolves to
    reverse: str = ""  # the name of the first of them
    interface: str | None = None  # that gloo shall use instead
    problem: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    endpoint: str
    is_here: bool = False
    is_taken: bool = False  # a process listens there
    problem: str = ""  # why no process can listen there


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    python: str
    torch: Torch
    num_cpus: int
    num_gpus: int
    driver: str | None  # NVIDIA's
    names: NameFacts
    port_range: tuple[int, int] | None  # for outgoing connections and free ports
    listen_problem: str  # why no port can be listened on
    shm_bytes: int | None
    log_dir: str
    disk_bytes: int | None  # free
    max_files: int
    max_files_hard: int
    threads_left: int | None = None  # how many more may be started; None: no limit
    memory_bytes: int | None = None  # free; None: unknown
    port: Port | None = None  # if an endpoint was named
    clock_s: float | None = None  # how far the coordinator's clock is ahead of this machine's
    coordinator_problem: str = ""
    coordinator_hint: str = ""  # the way out, if the problem has one of its own
    gpu_problem: str = ""  # that the driver reports


def gather(
    log_dir: Path,
    *,
    torch: Torch | None = None,
    endpoint: Endpoint | None = None,
    coordinator: Coordinator | None = None,
) -> Facts:
    """`torch`: if it is known already."""
    clock_s, problem = None, None
    try:
        clock_s = measure_clock(coordinator) if coordinator is not None else None
    except EverstepError as error:
        problem = error
    return replace(
        _at_hand(log_dir),
        torch=torch or ask_torch(env.value("PYTHON_EXEC") or sys.executable),
        names=_names(),
        port_range=_known(_port_range),
        port=None if endpoint is None else _port(endpoint),
        clock_s=clock_s,
        coordinator_problem=problem.message if problem else "",
        coordinator_hint=(problem.hint or "") if problem else "",
    )


def gather_quickly(folder: Path, coordinator: Coordinator) -> Facts:
    """What is known in a moment: without torch, and without names, which may take seconds to resolve. An unreachable
    coordinator says nothing about this machine."""
    try:
        clock_s = measure_clock(coordinator)
    except EverstepError:
        clock_s = None
    facts = _at_hand(folder)
    return replace(facts, clock_s=clock_s, gpu_problem=_gpu_problem(facts.num_gpus))


def _at_hand(log_dir: Path) -> Facts:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Facts(
        python=platform.python_version(),
        torch=Torch(),
        num_cpus=count_cpus(),
        num_gpus=count_gpus(),
        driver=nvidia_driver(),
        names=NameFacts(host=socket.gethostname()),
        port_range=None,
        listen_problem=_listen_problem("", 0),
        shm_bytes=_known(lambda: _size(Path("/dev/shm"))),
        log_dir=str(log_dir),
        disk_bytes=_free(log_dir),
        max_files=soft,
        max_files_hard=hard,
        threads_left=threads_left(),
        memory_bytes=memory_left(),
    )


def _gpu_problem(num_gpus: int) -> str:
    """What nvidia-smi reports of them; "" if all is well, or if it cannot be asked."""
    if num_gpus == 0:
        return ""
    query = ["nvidia-smi", "--query-gpu=index,ecc.errors.uncorrected.volatile.total", "--format=csv,noheader,nounits"]
    try:
        answer = ask(query, timeout_s=GPUS_S)
    except TimeoutError as error:
        return str(error)
    except OSError:
        return ""
    return judge_gpus(answer.text if answer.exit.is_good else answer.text + answer.errors, is_good=answer.exit.is_good)


def judge_gpus(printed: str, *, is_good: bool) -> str:
    """`printed`: by nvidia-smi, a line for each GPU, with its number and its uncorrected memory errors."""
    if not is_good:
        return f"nvidia-smi failed: {printed.strip().splitlines()[-1] if printed.strip() else 'it printed nothing'}"
    rows = [[part.strip() for part in line.split(",")] for line in printed.splitlines() if line.strip()]
    broken = [f"GPU {row[0]} has {row[1]} uncorrected memory errors" for row in rows if row[1:] and _is_bad(row[1])]
    return ", ".join(broken)


def _is_bad(errors: str) -> bool:
    return errors.isdigit() and int(errors) > 0


def ask_torch(python: str) -> Torch:
    with (
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
        Child.start([python, "-c", _TORCH], output=output, errors=errors) as child,
    ):
        ended = child.wait(TORCH_S)
        told, problems = (lines_of(file) for file in (output, errors))
    if ended is None:
        return Torch(problem=f"{python} did not import it within {TORCH_S:.0f} s")
    if not ended.is_good or not told:
        return Torch(problem=problems[-1] if problems else f"{python}: {ended}")
    return Torch(**json.loads(told[-1]))


def lines_of(file: IO[bytes]) -> list[str]:
    file.seek(0)
    return file.read().decode(errors="replace").strip().splitlines()


def measure_clock(coordinator: Coordinator, num_asks: int = 5) -> float:
    """How far its clock is ahead of this machine's, by the fastest of some answers; at most half that answer's time
    wrong."""
    best_s, ahead_s = float("inf"), 0.0
    for _ in range(num_asks):
        began = time.time()
        now = coordinator.check().now
        took_s = time.time() - began
        if took_s < best_s:
            best_s, ahead_s = took_s, now - began - took_s / 2
    return ahead_s


def _known(read: Callable[[], T]) -> T | None:
    """None: it cannot be read here."""
    try:
        return read()
    except (OSError, IndexError, ValueError):
        return None


def nvidia_driver() -> str | None:
    def read() -> str:
        first = Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
        return next((word for word in first.split() if word[:1].isdigit()), first)

    return _known(read)


def _names() -> NameFacts:
    host = socket.gethostname()
    try:
        found = _within(NAMES_S, lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
        addresses = tuple(dict.fromkeys(str(address[0]) for *_, address in found))
    except OSError as error:
        return NameFacts(host=host, problem=error.strerror or str(error), interface=env.value("GLOO_SOCKET_IFNAME"))
    try:
        reverse = _within(NAMES_S, lambda: socket.gethostbyaddr(addresses[0])[0])
    except OSError:
        reverse = ""
    return NameFacts(host=host, addresses=addresses, reverse=reverse, interface=env.value("GLOO_SOCKET_IFNAME"))


def _within(limit_s: float, call: Callable[[], T]) -> T:
    """A resolver cannot be given a time-out: a late one is left behind in a thread."""
    answers: list[T] = []
    errors: list[OSError] = []

    def ask() -> None:
        try:
            answers.append(call())
        except OSError as error:
            errors.append(error)

    asking = threading.Thread(target=ask, name="resolver", daemon=True)
    asking.start()
    asking.join(limit_s)
    if answers:
        return answers[0]
    raise errors[0] if errors else TimeoutError(f"no answer within {limit_s:.0f} s")


def _port_range() -> tuple[int, int]:
    low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    return int(low), int(high)


def _listen_problem(host: str, port: int) -> str:
    try:
        addresses.listen(host, port).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _port(endpoint: Endpoint) -> Port:
    try:
        is_here = addresses.is_here(endpoint.host)
    except EverstepError as error:
        return Port(endpoint=str(endpoint), problem=error.message)
    if endpoint.is_taken():
        return Port(endpoint=str(endpoint), is_here=is_here, is_taken=True)
    problem = _listen_problem(endpoint.host, endpoint.port) if is_here else ""
    return Port(endpoint=str(endpoint), is_here=is_here, problem=problem)


def _size(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize


def _free(folder: Path) -> int | None:
    """Where the folder is, or would be made; None if nothing can be written there."""
    there = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.exists())
    return shutil.disk_usage(there).free if os.access(there, os.W_OK | os.X_OK) else None
