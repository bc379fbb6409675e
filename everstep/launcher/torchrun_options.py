"""torchrun's options as values: strings in, frozen values out; a senseless value is a UsageError with a way out.

Pure: no environment, no files. What an option does is decided elsewhere; one that changes nothing gets a note."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace

from everstep.errors import UsageError
from everstep.launcher.endpoint import Endpoint
from everstep.launcher.shown_streams import BOTH, ShownStreams

C10D_PORT, STATIC_PORT = 29400, 29500
_STATIC = "static"
_MEETINGS = ("c10d", _STATIC, "everstep")
_START_METHODS = ("spawn", "fork", "forkserver")
_NUMA_BINDINGS = ("node", "socket", "exclusive", "core-complex")


# --- nodes ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class NodesRange:
    """The job starts with `min` nodes and takes up to `max`."""

    min: int = 1
    max: int = 1
    is_limit: bool = True  # False: the option was not given, and any number may come


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendezvous:
    """Where and how the nodes of a job meet."""

    endpoint: Endpoint | None = None  # None: this node alone, or with the coordinator that was given
    rdzv_id: str | None = None  # nodes that give the same one are one job
    node_rank: int | None = None
    is_host: bool | None = None  # whether the endpoint is on this node; None: find out
    join_s: float | None = None  # how long to wait for the minimum number of nodes
    last_call_s: float | None = None  # and how long for more of them
    notes: tuple[str, ...] = ()


def parse_nodes(text: str) -> NodesRange:
    """`--nnodes`: "2", or "1:4"; "" if nothing was said."""
    if not text:
        return NodesRange(is_limit=False)
    if not (found := re.fullmatch(r"(\d+)(?::(\d+))?", text.strip())):
        raise UsageError(f"--nnodes={text} is not a range", hint="such as 2, or 1:4", code="nnodes-not-a-range")
    nodes = NodesRange(min=int(found[1]), max=int(found[2] or found[1]))
    if not 0 < nodes.min <= nodes.max:
        raise UsageError(f"--nnodes={text} is empty", hint="MIN:MAX, 0 < MIN <= MAX", code="nnodes-range-empty")
    return nodes


def parse_endpoint(text: str, *, option: str = "--rdzv-endpoint", default_port: int = C10D_PORT) -> Endpoint:
    """host, host:port, [IPv6] or [IPv6]:port; https:// before it for a running coordinator with TLS."""
    pattern = r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\[\]:/\s]+))(?::(\d{1,5}))?"
    scheme, _, address = text.strip().rpartition("://")
    if scheme not in ("", "https") or not (found := re.fullmatch(pattern, address.rstrip("/"))):
        hint = "HOST:PORT, such as 10.0.0.5:29400"
        raise UsageError(f"{option}={text} is not an address", hint=hint, code="endpoint-not-an-address")
    port = default_port if found[3] is None else int(found[3])
    if port > 65535:
        raise UsageError(f"{option}={text}: no such port", hint="from 0 to 65535", code="endpoint-port-too-large")
    return Endpoint(host=found[1] or found[2], port=port, is_tls=scheme == "https")


def parse_rendezvous(
    *,
    backend: str | None = None,
    endpoint: str = "",
    rdzv_id: str | None = None,
    conf: str = "",
    is_standalone: bool = False,
    node_rank: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
) -> Rendezvous:
    """All of torchrun's options for it. `--standalone` ignores the rest, as torchrun does."""
    backend = backend or _STATIC
    if backend not in _MEETINGS:
        problem = f"--rdzv-backend={backend}: nodes meet at Everstep's coordinator, no other service is needed"
        hint = "leave it out, and give --rdzv-endpoint HOST:PORT or --coordinator URL"
        raise UsageError(problem, hint=hint, code="rdzv-backend-unknown")
    if node_rank is not None and node_rank < 0:
        raise UsageError(f"--node-rank={node_rank} is negative", hint="ranks count from 0", code="node-rank-negative")
    settings = _meeting_settings(_pairs(conf))
    if is_standalone:
        return replace(settings, is_host=None)
    notes = settings.notes
    if backend != _STATIC and (master_addr or master_port is not None):
        notes = (*notes, f"--master-addr and --master-port change nothing with --rdzv-backend={backend}")
        master_addr, master_port = None, None
    where = _endpoint(backend, endpoint, master_addr, master_port)
    is_host = settings.is_host
    if is_host is None and backend == _STATIC and where is not None and node_rank is not None:
        is_host = node_rank == 0
    return replace(
        settings,
        endpoint=where,
        rdzv_id=None if rdzv_id in (None, "", "none") else rdzv_id,
        node_rank=node_rank,
        is_host=is_host,
        notes=notes,
    )


def _endpoint(backend: str, endpoint: str, master_addr: str | None, master_port: int | None) -> Endpoint | None:
    if endpoint:
        return parse_endpoint(endpoint, default_port=STATIC_PORT if backend == _STATIC else C10D_PORT)
    if not master_addr and master_port is None:
        return None
    master = parse_endpoint(master_addr or "127.0.0.1", option="--master-addr", default_port=STATIC_PORT)
    return replace(master, port=master.port if master_port is None else master_port)


def _meeting_settings(conf: Mapping[str, str]) -> Rendezvous:
    """`--rdzv-conf`: the keys that mean something here; the others are named in a note."""
    ignored = [key for key in conf if key not in ("join_timeout", "timeout", "last_call_timeout", "is_host")]
    join = conf.get("join_timeout", conf.get("timeout"))
    return Rendezvous(
        join_s=_seconds(join, "join_timeout"),
        last_call_s=_seconds(conf.get("last_call_timeout"), "last_call_timeout"),
        is_host=_truth(conf.get("is_host")),
        notes=(f"--rdzv-conf: {', '.join(ignored)} changes nothing here",) if ignored else (),
    )


def _pairs(conf: str) -> dict[str, str]:
    """ "a=1,b=2" """
    pairs = {}
    for part in filter(str.strip, conf.split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            raise UsageError(f"--rdzv-conf: {part!r} is not KEY=VALUE", hint="KEY=VALUE,…", code="pairs-malformed")
        pairs[key] = value
    return pairs


def _seconds(text: str | None, key: str) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if seconds < 0:
        problem = f"--rdzv-conf: {key}={text} is not a number of seconds"
        raise UsageError(problem, hint=f"such as {key}=60", code="rdzv-conf-not-seconds")
    return seconds


def _truth(text: str | None) -> bool | None:
    if text is None or (lower := text.lower()) in ("0", "false", "f", "no", "n"):
        return None if text is None else False
    if lower in ("1", "true", "t", "yes", "y"):
        return True
    problem = f"--rdzv-conf: is_host={text} is neither true nor false"
    raise UsageError(problem, hint="is_host=true", code="rdzv-conf-not-boolean")


# --- workers --------------------------------------------------------------------------------------


def parse_num_workers(text: str, *, num_gpus: int, num_cpus: int) -> int:
    """`--nproc-per-node`: a number, or what the machine has."""
    counts = {"gpu": num_gpus, "cpu": num_cpus, "auto": num_gpus or num_cpus}
    number = counts[text] if text in counts else int(text) if re.fullmatch("[0-9]+", text) else 0
    if text == "gpu" and num_gpus == 0:
        problem = "--nproc-per-node=gpu: there is no GPU here, or none is visible"
        raise UsageError(problem, hint="a number, auto or cpu", code="nproc-without-gpu")
    if number < 1:
        hint = "a number from 1, or auto, gpu, cpu"
        raise UsageError(f"--nproc-per-node={text} is not a number of workers", hint=hint, code="nproc-not-positive")
    return number


def parse_signals(text: str) -> tuple[int, ...]:
    """`--signals-to-handle`: names, with or without SIG."""
    numbers = []
    for name in filter(None, map(str.strip, text.split(","))):
        number = getattr(signal, name if name.startswith("SIG") else f"SIG{name}", None)
        if not isinstance(number, signal.Signals) or number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
            problem = f"--signals-to-handle: {name} is not a signal that can be handled"
            raise UsageError(problem, hint="SIGTERM,SIGUSR1", code="signal-unknown")
        numbers.append(int(number))
    return tuple(dict.fromkeys(numbers))


# --- logs -----------------------------------------------------------------------------------------


def parse_streams(text: str, *, option: str) -> ShownStreams:
    """`--redirects`, `--tee`: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank: "0:3,1:2"."""
    if re.fullmatch("[0-3]", text):
        return ShownStreams(of_all=int(text))
    if re.fullmatch(r"\d+:[0-3](,\d+:[0-3])*", text):
        pairs = (part.split(":") for part in text.split(","))
        return ShownStreams(by_rank={int(rank): int(streams) for rank, streams in pairs})
    hint = f"1 stdout, 2 stderr, {BOTH} both, 0 none, or RANK:N,RANK:N"
    raise UsageError(f"{option}={text} is not a choice of streams", hint=hint, code="streams-unknown")


def parse_ranks(text: str) -> frozenset[int] | None:
    """`--local-ranks-filter`: "0,2"; empty: all."""
    if not text.strip():
        return None
    if not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", text):
        problem = f"--local-ranks-filter={text} is not a list of ranks"
        raise UsageError(problem, hint="such as 0,1", code="local-ranks-not-a-list")
    return frozenset(int(rank) for rank in text.split(","))


def parse_texts(text: str) -> tuple[str, ...]:
    """`--duplicate-stdout-filters`: separated by commas; two commas are one of the text's own."""
    parts = text.replace(",,", "\0").split(",")
    return tuple(part.replace("\0", ",") for part in parts if part)


# --- those that change nothing --------------------------------------------------------------------


def notes_on(
    *,
    monitor_interval: float | None = None,
    start_method: str | None = None,
    event_log_handler: str | None = None,
    is_run_path: bool = False,
    logs_specs: str | None = None,
    numa_binding: str | None = None,
) -> tuple[str, ...]:
    """A line for each option that was given and changes nothing; values that torchrun would not take are refused."""
    for option, value, choices in (
        ("--start-method", start_method, _START_METHODS),
        ("--numa-binding", numa_binding, _NUMA_BINDINGS),
    ):
        if value is not None and value not in choices:
            raise UsageError(f"{option}={value} is not known", hint=", ".join(choices), code="option-value-unknown")
    if logs_specs is not None:
        problem = f"--logs-specs={logs_specs}: torchrun's plug-ins are not loaded here"
        hint = "--log-dir, --redirects and --tee say where output goes"
        raise UsageError(problem, hint=hint, code="logs-specs-unsupported")
    notes = {
        "--monitor-interval changes nothing: ends are seen at once": monitor_interval is not None,
        "--start-method has no effect: each worker has its own interpreter": bool(start_method),
        "--event-log-handler changes nothing: all events are in events.jsonl": event_log_handler not in (None, "null"),
        "--run-path has no effect: Python runs the script in its own process": is_run_path,
        "--numa-binding changes nothing: workers are not bound; numactl can be, by --no-python": bool(numa_binding),
    }
    return tuple(note for note, is_told in notes.items() if is_told)
