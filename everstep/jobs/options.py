"""The settings of `everstep run`, `join`, `doctor` and of the commands that platforms call, each declared once.

The command line builds these values; the rest of `jobs` takes them. Imported by every `--help`: nothing heavy here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everstep import env
from everstep.settings import setting

if TYPE_CHECKING:
    from everstep.launcher.torchrun_options import NodesRange, Rendezvous

WORKERS, NODES, LOGS, JOB_FILES = "Workers", "Nodes", "Logs", "Job files"
NO_EFFECT = "Options of torchrun that have no effect"


def torchruns(default: Any, text: str, **declared: Any) -> Any:
    """A setting that torchrun has too: PET_<NAME> sets it."""
    return setting(default, text, is_torchruns=True, **declared)


# --- what several commands share ------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CoordinatorOptions:
    """Which coordinator, and how to be let in."""

    coordinator: str | None = setting(
        None, "URL of the coordinator", panel=NODES, metavar="URL", variables=(env.COORDINATOR,)
    )
    token_file: Path | None = setting(
        None,
        "File with the coordinator's token, readable only by you",
        panel=NODES,
        metavar="FILE",
        variables=(env.TOKEN_FILE,),
        must_exist=True,
    )
    ca_file: Path | None = setting(
        None,
        "Certificate (PEM) that signed the coordinator's; default: those of the system",
        panel=NODES,
        metavar="FILE",
        variables=(env.CA,),
    )


@dataclass(frozen=True, kw_only=True)
class NodeOptions(CoordinatorOptions):
    """One node's part in a job."""

    node_rank: int | None = torchruns(None, "Rank of this node, if the nodes are numbered", panel=NODES, metavar="N")
    address: str | None = torchruns(
        None,
        "Address where other nodes reach this node; default: detected",
        option="--local-addr",
        also=("--address",),
        panel=NODES,
        metavar="HOST",
    )
    log_dir: Path = torchruns(
        Path("runs"),
        "Folder for logs, events and progress pages; each job gets a folder in it",
        panel=LOGS,
        metavar="DIR",
    )


@dataclass(frozen=True, kw_only=True)
class MultiNodeOptions(NodeOptions):
    """Where several nodes meet, by torchrun's names."""

    coordinator: str | None = setting(
        None,
        "URL of the coordinator; default: start one for this run",
        panel=NODES,
        metavar="URL",
        variables=(env.COORDINATOR,),
    )
    nnodes: str = torchruns(
        "",
        "Number of nodes, or a range; default: this node, and nodes that join later",
        panel=NODES,
        metavar="MIN[:MAX]",
    )
    rdzv_endpoint: str = torchruns("", "Address where the nodes meet", panel=NODES, metavar="HOST[:PORT]")
    rdzv_id: str | None = torchruns(
        None, "Name of the job; nodes with the same name form one job", panel=NODES, metavar="ID"
    )
    rdzv_conf: str = torchruns(
        "", "join_timeout and last_call_timeout in seconds, is_host", panel=NODES, metavar="KEY=VALUE,…"
    )
    job: str | None = setting(None, "ID of the job; default: a new one", panel=NODES, metavar="ID")

    @property
    def nodes(self) -> NodesRange:
        from everstep.launcher.torchrun_options import parse_nodes

        return parse_nodes(self.nnodes)

    @property
    def rendezvous(self) -> Rendezvous:
        from everstep.launcher.torchrun_options import parse_rendezvous

        return parse_rendezvous(
            backend="everstep",
            endpoint=self.rdzv_endpoint,
            rdzv_id=self.rdzv_id,
            conf=self.rdzv_conf,
            node_rank=self.node_rank,
        )


# --- run and join ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ScriptOptions(NodeOptions):
    """The workers of a script on this node."""

    script: str | None = setting(None, "The training script", is_argument=True, metavar="[SCRIPT]")
    args: tuple[str, ...] = setting((), "Arguments of the script", is_argument=True, metavar="[ARGS]...")
    module: bool = torchruns(False, "Run SCRIPT as a module, like python -m", also=("-m",), panel=WORKERS)
    no_python: bool = torchruns(False, "Run SCRIPT as a program, without Python", panel=WORKERS)
    shutdown_s: float = torchruns(
        30.0,
        "Time in seconds for workers to end when the run is asked to end",
        option="--shutdown-timeout",
        also=("--shutdown-s",),
        variables=("TORCH_ELASTIC_SHUTDOWN_TIMEOUT",),
        panel=WORKERS,
        metavar="S",
    )
    keep_warm: float = setting(
        0.0,
        "Keep a process with torch loaded for this many seconds so the next run starts faster",
        panel=WORKERS,
        metavar="S",
        least=0,
    )
    quiet: bool = setting(False, "Do not repeat the workers' output here", also=("-q",), panel=LOGS)


@dataclass(frozen=True, kw_only=True)
class RunOptions(MultiNodeOptions, ScriptOptions):
    file: Path | None = setting(
        None,
        "Submit this job file instead of running SCRIPT here; - for stdin",
        also=("-f",),
        panel=JOB_FILES,
        metavar="FILE",
    )
    platform: str | None = setting(
        None,
        "Platform to run on: local, compose, kubernetes, slurm, pbs or oci; default: from the file",
        also=("-b",),
        panel=JOB_FILES,
        metavar="NAME",
    )
    changes: tuple[str, ...] = setting(
        (), "Change a key, such as resources.gpu=2; repeatable", option="--set", panel=JOB_FILES, metavar="KEY=VALUE"
    )
    dry_run: bool = setting(False, "Print what would be submitted, and submit nothing", panel=JOB_FILES)
    follow: bool = setting(False, "Print the job's output until it ends", panel=JOB_FILES)

    nproc_per_node: str = torchruns(
        "1", "Number of workers to start on this node, or auto, gpu, cpu", panel=WORKERS, metavar="N"
    )
    role: str = torchruns("default", "Value of ROLE_NAME for the workers", panel=WORKERS, metavar="NAME")
    virtual_local_rank: bool = torchruns(False, "Show each worker one GPU, and set LOCAL_RANK to 0", panel=WORKERS)
    signals_to_handle: str = torchruns(
        "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "Signals that ask the run to end", panel=WORKERS, metavar="NAMES"
    )
    page: bool = setting(
        False, "Print an address that opens the page of this job in a browser; on a desktop, open it", panel=LOGS
    )
    check: bool = setting(False, "Measure all nodes first, and leave out those that fail or are slow", panel=WORKERS)

    standalone: bool = torchruns(False, "Run on this node alone; other rendezvous options are ignored", panel=NODES)
    rdzv_backend: str | None = torchruns(
        None, "c10d, static or everstep; the nodes meet at the coordinator in any case", panel=NODES, metavar="NAME"
    )
    master_addr: str | None = torchruns(
        None, "Address of node 0, if the nodes are numbered", panel=NODES, metavar="HOST"
    )
    master_port: int | None = torchruns(None, "Free port of node 0", panel=NODES, metavar="PORT", least=0, most=65535)

    redirects: str = torchruns(
        "0",
        "Write to files only: 1 stdout, 2 stderr, 3 both, or RANK:N,RANK:N by local rank",
        also=("-r",),
        panel=LOGS,
        metavar="N",
    )
    tee: str = torchruns(
        "0", "Write to files and the console, overriding --redirects", also=("-t",), panel=LOGS, metavar="N"
    )
    local_ranks_filter: str = torchruns("", "Show only these local ranks on the console", panel=LOGS, metavar="RANK,…")
    duplicate_stdout_filters: str = torchruns(
        "", "Copy lines of stdout that contain one of these texts to filtered_stdout.log", panel=LOGS, metavar="TEXT,…"
    )
    duplicate_stderr_filters: str = torchruns(
        "", "Copy lines of stderr that contain one of these texts to filtered_stderr.log", panel=LOGS, metavar="TEXT,…"
    )

    monitor_interval: float | None = torchruns(None, "Exits are noticed at once", panel=NO_EFFECT, metavar="S")
    start_method: str | None = torchruns(None, "Each worker has its own interpreter", panel=NO_EFFECT, metavar="NAME")
    event_log_handler: str | None = torchruns(None, "All events are in events.jsonl", panel=NO_EFFECT, metavar="NAME")
    run_path: bool = torchruns(False, "SCRIPT runs in its own process", panel=NO_EFFECT)
    logs_specs: str | None = torchruns(None, "Rejected: plug-ins are not supported", panel=NO_EFFECT, metavar="NAME")
    numa_binding: str | None = torchruns(None, "Workers are not bound to cores", panel=NO_EFFECT, metavar="NAME")

    policy: Mapping[str, float | int] = field(default_factory=dict)  # the fields of Policy that were given

    @property
    def nodes(self) -> NodesRange:
        from everstep.launcher.torchrun_options import parse_nodes

        return parse_nodes("1" if self.standalone else self.nnodes)

    @property
    def rendezvous(self) -> Rendezvous:
        from everstep.launcher.torchrun_options import parse_rendezvous

        return parse_rendezvous(
            backend=self.rdzv_backend,
            endpoint=self.rdzv_endpoint,
            rdzv_id=self.rdzv_id,
            conf=self.rdzv_conf,
            is_standalone=self.standalone,
            node_rank=self.node_rank,
            master_addr=self.master_addr,
            master_port=self.master_port,
        )


@dataclass(frozen=True, kw_only=True)
class JoinOptions(ScriptOptions):
    coordinator: str = setting(..., "URL of the coordinator", panel=NODES, metavar="URL", variables=(env.COORDINATOR,))
    job: str = setting(..., "ID of the job", panel=NODES, metavar="ID", variables=(env.JOB,))
    script: str = setting(..., "The training script", is_argument=True, metavar="SCRIPT")
    workers: int = setting(1, "Number of workers to start on this node", panel=WORKERS, metavar="N", least=1)
    name: str | None = setting(
        None, "Name of this node, unique in the job; default: host name and a number", panel=NODES, metavar="NAME"
    )
    heartbeat_s: float = setting(1.0, "Interval between heartbeats in seconds", panel=NODES, metavar="S")


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(MultiNodeOptions):
    nnodes: str = torchruns("1", "Number of nodes, or a range", panel=NODES, metavar="MIN[:MAX]")
    json: bool = setting(False, "Print JSON instead of a table")


# --- the commands that platforms call -------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SubmittedNodeOptions(NodeOptions):
    """`token_file` may not exist yet: nodes can start before the coordinator."""

    order: str | None = setting(
        None, "The node's order, as JSON or as the path of a file", metavar="ORDER", variables=(env.ORDER,)
    )
    token_file: Path | None = setting(
        None, "File with the coordinator's token", metavar="FILE", variables=(env.TOKEN_FILE,)
    )
    name: str | None = setting(None, "Name of this node, unique in the job", metavar="NAME")
    deadline: float | None = setting(
        None, "Unix time at which the platform takes this node away", metavar="TIME", variables=(env.DEADLINE,)
    )


@dataclass(frozen=True, kw_only=True)
class EntryOptions(SubmittedNodeOptions):
    command: tuple[str, ...] = setting((), "Run this instead", is_argument=True, metavar="[COMMAND …]")


@dataclass(frozen=True, kw_only=True)
class CoordinateOptions:
    order: str = setting(
        ..., "The job's order, as JSON or as the path of a file", metavar="ORDER", variables=(env.ORDER,)
    )
    folder: Path = setting(..., "Folder of the job's store, token and code", metavar="DIR")
    host: str = setting("127.0.0.1", "Address to listen on", metavar="HOST")
    port: int = setting(0, "Port to listen on; 0: the same as before, or any free one", metavar="PORT")
    token_file: Path | None = setting(
        None, "File with the coordinator's token", metavar="FILE", variables=(env.TOKEN_FILE,)
    )
    # requeued: all nodes may go, the coordinator too, and come back on the same folder
    fleet: str = setting("none", "Source of the nodes: none, requeued, local, kubernetes or indexed", metavar="NAME")
