"""Options of each platform: typed ones, and `raw` for all others."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field

from everstep.errors import UsageError
from everstep.job_file.fields import Duration, Json, Line, Names, Section, Text, Texts, Word, key

PlatformName = Literal["local", "compose", "kubernetes", "slurm", "pbs", "oci"]
PLATFORMS: tuple[PlatformName, ...] = get_args(PlatformName)


def check_platform(name: str) -> None:
    if name not in PLATFORMS:
        raise UsageError(f"unknown platform {name!r}", hint=f"one of {', '.join(PLATFORMS)}", code="platform-unknown")


Raw = Annotated[
    Json, Field(description="Settings to merge into the submitted objects: mappings by key, lists appended.")
]
RawLines = Annotated[tuple[Line, ...], Field(description="More options of the batch script, one per line, unchanged.")]


class Local(Section):
    log_dir: Text = key("runs", "Folder for logs, events and progress pages.")
    keep_warm: Duration | None = key(None, "Time to keep a process with torch for the next run.")


class Compose(Section):
    project: Text = key("", "Name of the Compose project. Default: the job's ID.")
    raw: Raw = Field(default_factory=dict)


class Kubernetes(Section):
    namespace: Text = key("", "Namespace. Default: the context's namespace.")
    context: Text = key("", "Context in the kubeconfig. Default: the current one.")
    mode: Literal["elastic", "indexed"] = key(
        "elastic", "elastic: the coordinator creates the worker pods. indexed: an Indexed Job of fixed size."
    )
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = key(None, "Pull policy for images.")
    pull_secrets: Texts = key((), "Names of Secrets for private registries.")
    service_account: Text = key("", "Service account of the coordinator. Default: a new one.")
    node_selector: Names = key({}, "Labels that a worker's node must have.")
    tolerations: tuple[Json, ...] = key((), "Tolerations, as in a pod.")
    priority_class: Text = key("", "Priority class of worker pods.")
    queue: Text = key("", "Local queue of Kueue.")
    security: Literal["restricted", "baseline"] = key("restricted", "Pod security level of worker pods.")
    store: Text = key(
        "1Gi",
        "The coordinator's storage: pvc:NAME, the size of a new claim, or node (lost with its pod).",
        pattern=r"^(pvc:.+|node|\d+[KMGT]i?)$",
    )
    raw: Json = key(
        {}, "Settings to merge into each worker pod: metadata, spec. Lists are appended, or merged by name."
    )
    coordinator_raw: Json = key({}, "Settings to merge into the coordinator's pod.")


class Slurm(Section):
    partition: Word = key("", "Partition. Default: the cluster's default.")
    account: Word = key("", "Account to charge.")
    qos: Word = key("", "Quality of service.")
    constraint: Line = key("", "Required features of nodes.")
    reservation: Word = key("", "Name of a reservation.")
    mode: Literal["single", "array", "allocation"] = key(
        "single",
        "single: one job for all nodes. array: one job for each node, so the number of nodes can change. "
        "allocation: inside your current allocation (salloc).",
    )
    coordinator_partition: Word = key("", "Partition of the coordinator's own job, in mode array.")
    requeue: bool = key(True, "Requeue after a preemption or the time limit.")
    time_requeues: int = key(3, "Number of requeues after the time limit; preemptions do not count.", ge=0)
    signal: Word = key(
        "USR2", "Signal to send before the time limit; not USR1, which NCCL uses.", pattern="^[A-Za-z0-9]+$"
    )
    signal_lead: Duration = key(120.0, "Time between the signal and the time limit.")
    memory: bool = key(True, "Request memory; turn it off if the cluster does not manage memory.")
    raw: RawLines = ()


class Pbs(Section):
    queue: Word = key("", "Queue. Default: the cluster's default.")
    project: Word = key("", "Account to charge.")
    gpu_model: Word = key("", "GPU model, for the select statement.")
    select: Word = key("", "Addition to the select statement, such as phase=18b.")
    place: Word = key("scatter", "Placement of chunks on nodes.")
    mode: Literal["single", "allocation"] = key(
        "single", "single: one job for all nodes. allocation: inside your current allocation (qsub -I)."
    )
    launcher: Literal["pbsdsh", "ssh"] = key("pbsdsh", "Program that starts the agents on the nodes.")
    raw: RawLines = ()


class Oci(Section):
    compartment: Text = key("", "OCID of the compartment.")
    project: Text = key("", "OCID of the project.")
    subnet: Text = key("", "OCID of the subnet.")
    log_group: Text = key("", "OCID of the log group.")
    log: Text = key("", "OCID of the log.")
    shape: Text = key("", "Shape of each node, such as VM.GPU2.1.")
    ocpus: float | None = key(None, "OCPUs of a flexible shape.", gt=0)
    memory_gb: float | None = key(None, "Memory of a flexible shape, in GB.", gt=0)
    block_storage_gb: int | None = key(None, "Block storage of each node, in GB.", ge=50)
    work_dir: Text = key("", "Folder that all nodes can reach: oci://bucket@namespace/path.")
    mode: Literal["runs", "multinode"] = key(
        "runs", "runs: one job run for each node. multinode: one job run with all nodes."
    )
    main_name: Text = key("", "Name of the first node's run.")
    worker_name: Text = key("", "Name of the other runs, before their number.")
    start_options: Texts = key((), "Value of OCI__START_ARGS: options of torchrun.")
    auth: Literal["api_key", "resource_principal", "security_token"] = key("api_key", "Method for signing requests.")
    profile: Text = key("DEFAULT", "Profile in ~/.oci/config.")
    endpoint: Text = key("", "URL for requests. Default: the region's endpoint.")
    freeform_tags: Names = key({}, "Free-form tags on the job and its runs.")
    defined_tags: Json = key({}, "Defined tags on the job and its runs, by namespace.")
    raw: Raw = Field(default_factory=dict)


class Platforms(Section):
    """Options of any number of platforms; `name` selects one."""

    name: PlatformName | None = key(None, "Platform to run on. Default: the only platform below, or local.")
    local: Local | None = None
    compose: Compose | None = None
    kubernetes: Kubernetes | None = None
    slurm: Slurm | None = None
    pbs: Pbs | None = None
    oci: Oci | None = None

    @property
    def chosen(self) -> PlatformName:
        given = [name for name in PLATFORMS if getattr(self, name) is not None]
        return self.name or (given[0] if len(given) == 1 else "local")
