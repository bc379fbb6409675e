"""The one door to the environment: a table of our variables, and every read and write of any variable.

Reads at the call, never at import. docs/configuration.md shows the table."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Variable:
    """One of our environment variables, as docs/configuration.md shows it."""

    name: str
    default: str  # what holds without it, or who sets it
    meaning: str


VARIABLES: dict[str, Variable] = {}


def _variable(name: str, default: str, meaning: str) -> str:
    name = f"EVERSTEP_{name}"
    VARIABLES[name] = Variable(name=name, default=default, meaning=meaning)
    return name


_BY_AGENT, _BY_PLATFORM = "set by the agent", "set by the platform"

COORDINATOR = _variable(
    "COORDINATOR",
    "none: train alone",
    "URL of the coordinator. Passed to workers; `run`, `join`, and `status` read it too",
)
TOKEN = _variable(
    "TOKEN",
    "none",
    "The bearer token, or [one per role](security.md#tokens-and-roles) separated by spaces. "
    "Not passed to workers; they get a file",
)
TOKEN_FILE = _variable("TOKEN_FILE", "none", "File with the tokens, one per line; rejected if others can read it")
STORE = _variable(
    "STORE",
    "none",
    "Store URL for `everstep serve`, like `--store`. Use it for a URL with a password, because all users of the "
    "machine can read command lines",
)
WEBHOOK_HOSTS = _variable(
    "WEBHOOK_HOSTS",
    "none",
    "Hosts that [webhooks](webhooks.md) may call, for `everstep serve` and the coordinator of experiments on this "
    "machine, like `--webhook-hosts`",
)
CA = _variable(
    "CA",
    "the system's certificates",
    "PEM file with the certificate that signed the coordinator's certificate, for `https://` URLs. Passed to workers",
)
JOB = _variable("JOB", "`job`", "ID of the job. Passed to workers; `join` and `status` read it too")
WORKER = _variable("WORKER", _BY_AGENT, "ID of this worker")
REPORT_AS = _variable(
    "REPORT_AS",
    "set by torchrun's plug-in",
    "For `everstep.report` in workers that torchrun starts with `--rdzv-backend=everstep`: the coordinator's URL, the "
    "job, the worker, and the token file, separated by spaces",
)
ADDRESS = _variable(
    "ADDRESS",
    "the address that leads to the coordinator",
    "Address where peers reach this worker. Passed to workers if you set `--address`",
)
EVENTS = _variable(
    "EVENTS",
    "`JOB/events.jsonl` in the log folder",
    "File to append events to. Without it and without an agent, no events are written",
)
TENSORBOARD = _variable(
    "TENSORBOARD",
    "the working folder",
    "Folder in which the agent looks for TensorBoard files of its workers, to keep their scalars as "
    "[metrics](metrics.md); `off`: nowhere",
)
CHECK_EVENTS = _variable("CHECK_EVENTS", "none", "`1`: emitting an undeclared event fails (for tests)")
MAX_WORKERS = _variable(
    "MAX_WORKERS", _BY_AGENT, "Maximum number of workers in the job; the default for `micro_batches`"
)
BOARD = _variable("BOARD", _BY_AGENT, "File with the worker's progress page, shared with its agent")
SAVER = _variable(
    "SAVER",
    _BY_AGENT,
    "Socket of the node's saver, which keeps states in memory and writes them ([checkpoints](checkpoints.md)). "
    "Without it, workers write the states themselves",
)
NODE_SAVER = _variable(
    "NODE_SAVER",
    "set by a pool's node",
    "Socket of the saver that all trials of a node share. With `EVERSTEP_SAVER`, it only writes to folders, because it "
    "lacks the variables of the trial, which may hold the keys of a bucket",
)
SAVER_OWNER = _variable(
    "SAVER_OWNER", "set by a pool's node", "The trial that the states in the memory of its node's saver belong to"
)
NODE_DATA = _variable(
    "NODE_DATA",
    _BY_AGENT,
    "Socket for data that is [loaded once per node](experiments.md#data-once-per-node). Without it, each worker loads "
    "its own",
)
DATA_SCOPE = _variable("DATA_SCOPE", "set by a pool's node", "Workers with the same text here share such data")
NURSERY = _variable(
    "NURSERY",
    "none",
    "`off`: start every worker as a new process. Otherwise, workers are forked from a process that has imported torch "
    "([nursery](concepts/nursery.md))",
)
COORDINATOR_DEADLINE = _variable(
    "COORDINATOR_DEADLINE_S",
    "`600`",
    "Number of seconds that workers and agents wait for a missing coordinator before they stop. For workers, at most "
    "`fence_s`",
)
EXPERIMENT = _variable(
    "EXPERIMENT",
    "none",
    "JSON file with the content of the job file: `hyperparameters`, `searcher`, `name`, … Passed to workers; "
    "`everstep.get_cluster_info()` reads it",
)
TRIAL = _variable(
    "TRIAL",
    "set by a pool's node",
    "The [trial](experiments.md) that a worker trains, as JSON: `experiment`, `trial`, `trial_id`, `seed`, `metric`, "
    "`unit`, `smaller_is_better`, `warm_start`, … With it, lengths come from the search",
)
SLOT_MEMORY = _variable(
    "SLOT_MEMORY",
    "set by a pool's node",
    "Number of bytes of memory that are a trial's share on its slot. Nothing enforces it",
)
SLOT_CPUS = _variable(
    "SLOT_CPUS", "set by a pool's node", "Number of cores that are a trial's share on its slot, for example for loaders"
)
IMAGE = _variable(
    "IMAGE",
    "none",
    "Name of the container image that a pool's node runs in. Experiments that name another image are refused",
)
LOCAL_SLOTS = _variable(
    "LOCAL_SLOTS",
    "`auto`: one per GPU, otherwise one per CPU",
    "Number of trials that the local service runs at once; read when it is started",
)
LOCAL_IDLE = _variable(
    "LOCAL_IDLE_S",
    "`60`",
    "Number of seconds after which the local service ends if no experiment is active and no command uses it",
)
HOME = _variable(
    "HOME",
    "`~/.local/share/everstep`",
    "Folder for this user's submitted jobs, run tokens, and Trainer checkpoints by UUID; `get_checkpoint` "
    "puts the checkpoints' code there",
)
ORDER = _variable(
    "ORDER",
    _BY_PLATFORM,
    "The order for the processes of a [submitted job](jobs.md), as JSON without secrets, or the path of a file with it",
)
SECRETS_FILE = _variable(
    "SECRETS_FILE",
    _BY_PLATFORM,
    "File (mode 0600) with the job's secrets as JSON, to be set as worker variables; or the file's URI in a bucket",
)
OCI_SECRETS = _variable(
    "OCI_SECRETS",
    _BY_PLATFORM,
    "Secrets in an [OCI](guides/oci.md) vault, as `NAME=OCID,NAME=OCID`; each node reads them",
)
OCI_ENDPOINT = _variable(
    "OCI_ENDPOINT", "the region's endpoint", "URL of the OCI services, for nodes; `platform.oci.endpoint`"
)
NETWORK = _variable(
    "NETWORK", "the network of the default route", "CIDR of the nodes' network, for a first node with several networks"
)
DEADLINE = _variable(
    "DEADLINE",
    _BY_PLATFORM,
    "Unix time when the platform ends the node; the node leaves `checkpoint.grace` earlier",
)
BACKEND = _variable(
    "BACKEND",
    "`auto`: NCCL if each worker has its own GPU, otherwise gloo",
    "How gradients travel between workers: `auto`, `gloo`, or `nccl` ([GPUs](concepts/gpus.md)). `stand-in` runs the "
    "code for GPUs on CPU tensors (for tests)",
)
LEVELS = _variable(
    "LEVELS",
    "`1`",
    "`0`: no [levels](scale.md#sums-in-levels); each worker sends its sums to all workers on other nodes. If "
    "levels are off for one worker, they are off for all (for comparisons)",
)
SET_UP = _variable("SET_UP", _BY_AGENT, "`1`: the job's setup lines have already run")
DET_MASTER = "DET_MASTER"  # Determined's name for the coordinator's URL, which `everstep experiment` reads too


# --- the environment as a whole -------------------------------------------------------------------


def everything() -> dict[str, str]:
    """A copy of the environment, for a child or for a pure reader."""
    return dict(os.environ)


def value(name: str) -> str | None:
    """A variable that users name themselves, or another program's."""
    return os.environ.get(name) or None


def path(name: str) -> Path | None:
    found = value(name)
    return Path(found) if found else None


def update(values: Mapping[str, str]) -> None:
    """For this process and all that it starts."""
    os.environ.update(values)


def replace(values: Mapping[str, str]) -> None:
    """Make these the whole environment. Change only variables that differ: each change is a call of C."""
    for name in os.environ.keys() - values.keys():
        del os.environ[name]
    os.environ.update(values.items() - os.environ.items())


def set_default(name: str, value: str) -> None:
    """Unless it is set."""
    os.environ.setdefault(name, value)


# --- our variables --------------------------------------------------------------------------------


def coordinator_url() -> str | None:
    return value(COORDINATOR)


def trust(path: Path | None) -> Path | None:
    """Trust this certificate, in this process and all that it starts, in any folder."""
    if path is not None:
        os.environ[CA] = str(path.resolve())
    return path


def job() -> str:
    return os.environ.get(JOB, "job")


def worker() -> str:
    return os.environ.get(WORKER, "")


def share_events(path: Path) -> Path:
    """The file for the events of this process and all that it starts; `path`, unless it is set already."""
    return Path(os.environ.setdefault(EVENTS, str(path)))


def oci_secrets() -> dict[str, str]:
    pairs = [pair.partition("=") for pair in os.environ.get(OCI_SECRETS, "").split(",") if pair]
    return {name: ocid for name, _, ocid in pairs}


def backend() -> str:
    return os.environ.get(BACKEND) or "auto"


def has_levels() -> bool:
    return os.environ.get(LEVELS) != "0"


def take_set_up() -> bool:
    """Whether the job's setup lines started this process. Removes the variable: its children were not."""
    return os.environ.pop(SET_UP, "") == "1"


def home() -> Path:
    """The folder of all that we keep for this user between runs; it may not exist yet."""
    folder = os.environ.get(HOME) or "~/.local/share/everstep"
    try:
        return Path(folder).expanduser().absolute()
    except RuntimeError:  # containers run as users without one
        from everstep.errors import UsageError

        hint = f"set {HOME} to a folder that you may write to"
        raise UsageError(f"{folder}: there is no such home folder", hint=hint, code="home-missing") from None


def token_path(job: str) -> Path:
    """The file with the token of a run, for its other nodes, which share the user's home."""
    return home() / "tokens" / job


def saver(*, is_for_bucket: bool) -> Path | None:
    """The socket of the saver that writes to a bucket, or to a folder."""
    own, of_node = path(SAVER), path(NODE_SAVER)
    return own or of_node if is_for_bucket else of_node or own


def place_on_node() -> str:
    """Which of its node's workers this is, from torchrun's variables."""
    return os.environ.get("LOCAL_RANK", "0")


def node_size() -> int | None:
    """The number of workers of this node, from torchrun's variables; None without them."""
    size = os.environ.get("LOCAL_WORLD_SIZE")
    return int(size) if size else None


def node_rank() -> int:
    """Which node of the job this is, from torchrun's variables."""
    return int(os.environ.get("GROUP_RANK", "0"))


def is_one_node() -> bool:
    """Whether all workers were started on this node, from torchrun's variables."""
    return os.environ.get("WORLD_SIZE", "1") == os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1"))


def coordinator_deadline_s() -> float:
    return float(os.environ.get(COORDINATOR_DEADLINE, "600"))


def local_idle_s() -> float:
    return float(os.environ.get(LOCAL_IDLE) or "60")


VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"


def visible_gpus() -> str | None:
    return os.environ.get(VISIBLE_GPUS)


def runtime_folder() -> Path:
    """The folder for sockets of this user's processes; it may not exist yet."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "everstep" if runtime else Path(tempfile.gettempdir()) / f"everstep-{os.geteuid()}"


def pbs_job() -> str:
    """The id of the PBS job whose script, or interactive shell, this process is in; "" if none."""
    return os.environ.get("PBS_JOBID", "") if os.environ.get("PBS_NODEFILE") else ""


def torchrun_size() -> int:
    """The number of workers, from torchrun's variables; 1 without them."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def max_workers() -> int:
    """The largest number of workers that this job may have; under plain torchrun, its world's size."""
    return int(os.environ.get(MAX_WORKERS) or torchrun_size())


def torchrun_rank() -> int:
    return int(os.environ.get("RANK", "0"))


def num_restarts() -> int:
    """The number of restarts of all workers before this start."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def torchrun_master() -> tuple[str, int]:
    """The address and port of rank 0's store."""
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def token() -> str | None:
    """The bearer token: the variable, else the file. Refuses a file that others can read."""
    if value := os.environ.get(TOKEN):
        return value
    if path := os.environ.get(TOKEN_FILE):
        return read_token(Path(path))
    return None


def read_token(path: Path) -> str:
    from everstep.errors import UsageError

    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        problem = f"token file {path} has mode {mode:04o}: others can read it"
        raise UsageError(problem, hint=f"chmod 600 {path}", code="token-file-readable-by-others")
    return path.read_text().strip()
