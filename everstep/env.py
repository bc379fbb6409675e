"""The one door to the environment: every variable that we read or give, with its meaning.

Reading is done at the call, never at import. Knows nothing else."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

COORDINATOR = "EVERSTEP_COORDINATOR"  # URL of the coordinator; absent: train alone
TOKEN = "EVERSTEP_TOKEN"  # bearer token; EVERSTEP_TOKEN_FILE names a 0600 file that holds it instead
TOKEN_FILE = "EVERSTEP_TOKEN_FILE"
STORE = "EVERSTEP_STORE"  # URL of a coordinator's store: may hold a password, which others can see on a command line
CA = "EVERSTEP_CA"  # file with the certificate that signed the coordinator's; absent: the system's are trusted
JOB = "EVERSTEP_JOB"  # the job's id
WORKER = "EVERSTEP_WORKER"  # this worker's id, given by the agent
ADDRESS = "EVERSTEP_ADDRESS"  # where peers reach this node; absent: the address it reaches the coordinator from
EVENTS = "EVERSTEP_EVENTS"  # file that events are appended to
CHECK_EVENTS = "EVERSTEP_CHECK_EVENTS"  # "1": emitting an event of the package that is not declared fails, for tests
BOARD = "EVERSTEP_BOARD"  # file of this worker's progress board, shared with its agent
MAX_WORKERS = "EVERSTEP_MAX_WORKERS"  # the largest number of workers that the job may have, given by the agent
SAVER = "EVERSTEP_SAVER"  # socket of the node's saver, which keeps and writes checkpoints; absent: workers write
NURSERY = "EVERSTEP_NURSERY"  # "off": every worker is started plainly
COORDINATOR_DEADLINE = "EVERSTEP_COORDINATOR_DEADLINE_S"  # how long a worker waits for a coordinator that is away
EXPERIMENT = "EVERSTEP_EXPERIMENT"  # file with the job file's content, as JSON: hyperparameters, searcher, name, …
HOME = "EVERSTEP_HOME"  # folder where this user's jobs and checkpoints are remembered
ORDER = "EVERSTEP_ORDER"  # of a submitted job: what its processes are told, as JSON, or the path of a file with it
SECRETS_FILE = "EVERSTEP_SECRETS_FILE"  # 0600 file with more variables of the workers, as JSON; or its URI in a bucket
OCI_SECRETS = "EVERSTEP_OCI_SECRETS"  # more of them, in a saver of OCI: NAME=OCID,NAME=OCID
NETWORK = "EVERSTEP_NETWORK"  # CIDR of the network that nodes meet in; absent: the one that leads out
OCI_ENDPOINT = "EVERSTEP_OCI_ENDPOINT"  # URL of OCI's services; absent: the region's
DEADLINE = "EVERSTEP_DEADLINE"  # unix time at which this node is taken away
SET_UP = "EVERSTEP_SET_UP"  # "1": the job's setup lines were run


def coordinator_url() -> str | None:
    return os.environ.get(COORDINATOR) or None


def ca_file() -> str | None:
    return os.environ.get(CA) or None


def trust(path: Path | None) -> Path | None:
    """For this process and all that it starts, wherever they run."""
    if path is not None:
        os.environ[CA] = str(path.resolve())
    return path


def job() -> str:
    return os.environ.get(JOB, "job")


def worker() -> str:
    return os.environ.get(WORKER, "")


def address() -> str | None:
    return os.environ.get(ADDRESS) or None


def events_path() -> str | None:
    return os.environ.get(EVENTS) or None


def are_events_checked() -> bool:
    return os.environ.get(CHECK_EVENTS) == "1"


def board_path() -> str | None:
    return os.environ.get(BOARD) or None


def saver_path() -> Path | None:
    path = os.environ.get(SAVER)
    return Path(path) if path else None


def experiment_path() -> Path | None:
    path = os.environ.get(EXPERIMENT)
    return Path(path) if path else None


def secrets_file() -> str | None:
    """A path or a URI."""
    return os.environ.get(SECRETS_FILE) or None


def oci_secrets() -> dict[str, str]:
    pairs = [pair.partition("=") for pair in os.environ.get(OCI_SECRETS, "").split(",") if pair]
    return {name: ocid for name, _, ocid in pairs}


def is_job_run() -> bool:
    """Whether this is a node that OCI's Data Science service has started."""
    return "JOB_RUN_OCID" in os.environ


def network() -> str | None:
    return os.environ.get(NETWORK) or None


def oci_endpoint() -> str:
    return os.environ.get(OCI_ENDPOINT, "")


def take_set_up() -> bool:
    """Whether this process was started by the job's setup lines. Told once: what it starts was not."""
    return os.environ.pop(SET_UP, "") == "1"


def home() -> Path:
    """What this user's programs remember from one to the next; the folder may not exist yet."""
    return Path(os.environ.get(HOME) or "~/.local/share/everstep").expanduser().absolute()


def place_on_node() -> str:
    """Which of its node's workers this is, by torchrun's counting."""
    return os.environ.get("LOCAL_RANK", "0")


def node_size() -> int | None:
    """How many workers this node has, by torchrun's counting; None where nobody has counted."""
    size = os.environ.get("LOCAL_WORLD_SIZE")
    return int(size) if size else None


def node_rank() -> int:
    """Which node of the job this is, by torchrun's counting."""
    return int(os.environ.get("GROUP_RANK", "0"))


def chief_address() -> str:
    """Where rank 0 is, by torchrun's environment; without it, here."""
    return os.environ.get("MASTER_ADDR") or "127.0.0.1"


def is_one_node() -> bool:
    """Whether all workers were started on this node, by torchrun's counting."""
    return os.environ.get("WORLD_SIZE", "1") == os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1"))


def coordinator_deadline_s() -> float:
    return float(os.environ.get(COORDINATOR_DEADLINE, "600"))


def python() -> str | None:
    """The interpreter that torchrun's users have chosen for their workers."""
    return os.environ.get("PYTHON_EXEC") or None


def visible_gpus() -> str | None:
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def runtime_folder() -> Path:
    """Where sockets of this user's processes belong; the folder itself may not exist yet."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "everstep" if runtime else Path(tempfile.gettempdir()) / f"everstep-{os.geteuid()}"


def slurm_job() -> str:
    """The number of the Slurm job that this process is in; "" if none."""
    return os.environ.get("SLURM_JOB_ID", "")


def pbs_job() -> str:
    """The id of the PBS job whose script, or interactive shell, this process is in; "" if none."""
    return os.environ.get("PBS_JOBID", "") if os.environ.get("PBS_NODEFILE") else ""


def gloo_interface() -> str | None:
    """The network interface that gloo takes, instead of the one that the host's name leads to."""
    return os.environ.get("GLOO_SOCKET_IFNAME") or None


def torchrun_size() -> int:
    """The number of workers by torchrun's environment; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def max_workers() -> int:
    """The largest number of workers that this job may have; under plain torchrun, its world's size."""
    return int(os.environ.get(MAX_WORKERS) or torchrun_size())


def torchrun_rank() -> int:
    return int(os.environ.get("RANK", "0"))


def num_restarts() -> int:
    """How often all workers were started again before this start."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def torchrun_master() -> tuple[str, int]:
    """Where rank 0 opens the workers' store."""
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def token() -> str | None:
    """The bearer token: the variable, else the file; a file that others may read is refused."""
    if value := os.environ.get(TOKEN):
        return value
    if path := os.environ.get(TOKEN_FILE):
        return read_token(Path(path))
    return None


def read_token(path: Path) -> str:
    from everstep.errors import UsageError

    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise UsageError(f"token file {path} has mode {mode:04o}: others may read it", hint=f"chmod 600 {path}")
    return path.read_text().strip()
