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


Raw = Annotated[Json, Field(description="Merged into the submitted objects: mappings by key, lists appended.")]
RawLines = Annotated[tuple[Line, ...], Field(description="More options of the batch script, one per line, unchanged.")]


class Local(Section):
    log_dir: Text = key("runs", "Logs, events and progress pages.")
    keep_warm: Duration | None = key(None, "Keep a process with torch for the next run.")


class Compose(Section):
    project: Text = key("", "Name of the Compose project; default: the job's id.")
    raw: Raw = Field(default_factory=dict)


class Kubernetes(Section):
    namespace: Text = key("", "Default: the context's.")
    context: Text = key("", "Of the kubeconfig; default: the current one.")
    mode: Literal["elastic", "indexed"] = key(
        "elastic", "elastic: the coordinator makes worker pods. indexed: an Indexed Job of fixed size."
    )
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = key(None, "Of images.")
    pull_secrets: Texts = key((), "Names of secrets for private registries.")
    service_account: Text = key("", "Of the coordinator; default: a new one.")
    node_selector: Names = key({}, "Labels that a worker's node must have.")
    tolerations: tuple[Json, ...] = key((), "As in a pod.")
    priority_class: Text = key("", "Of worker pods.")
    queue: Text = key("", "Kueue's local queue.")
    security: Literal["restricted", "baseline"] = key("restricted", "Pod security that worker pods comply with.")
    store: Text = key(
        "1Gi",
        "The coordinator's storage: pvc:NAME, the size of a new claim, or node (lost with its pod).",
        pattern=r"^(pvc:.+|node|\d+[KMGT]i?)$",
    )
    raw: Json = key({}, "Merged into each worker's pod: metadata, spec; lists appended, or merged by name.")
    coordinator_raw: Json = key({}, "Merged into the coordinator's pod.")


class Slurm(Section):
    partition: Word = key("", "Default: the cluster's.")
    account: Word = key("", "Account to charge.")
    qos: Word = key("", "Quality of service.")
    constraint: Line = key("", "Required features of nodes.")
    reservation: Word = key("", "Name of a reservation.")
    mode: Literal["single", "array", "allocation"] = key(
        "single",
        "single: one job for all nodes. array: one for each node, so that it grows and shrinks. "
        "allocation: inside your current one (salloc).",
    )
    coordinator_partition: Word = key("", "Of the coordinator's own job, in mode array.")
    requeue: bool = key(True, "Requeue after a preemption or the time limit.")
    time_requeues: int = key(3, "Requeue at most this often after the time limit; preemptions do not count.", ge=0)
    signal: Word = key("USR2", "Sent before the time limit; not USR1, which NCCL uses.", pattern="^[A-Za-z0-9]+$")
    signal_lead: Duration = key(120.0, "How long before the time limit the signal is sent.")
    memory: bool = key(True, "Request memory; turn it off if the cluster does not manage memory.")
    raw: RawLines = ()


class Pbs(Section):
    queue: Word = key("", "Default: the cluster's.")
    project: Word = key("", "Account to charge.")
    gpu_model: Word = key("", "In the select statement.")
    select: Word = key("", "More of the select statement, such as phase=18b.")
    place: Word = key("scatter", "How chunks are spread over nodes.")
    mode: Literal["single", "allocation"] = key(
        "single", "single: one job for all nodes. allocation: inside your current one (qsub -I)."
    )
    launcher: Literal["pbsdsh", "ssh"] = key("pbsdsh", "How agents are started on the nodes.")
    raw: RawLines = ()


class Oci(Section):
    compartment: Text = key("", "OCID.")
    project: Text = key("", "OCID.")
    subnet: Text = key("", "OCID.")
    log_group: Text = key("", "OCID.")
    log: Text = key("", "OCID.")
    shape: Text = key("", "Of each node, such as VM.GPU2.1.")
    ocpus: float | None = key(None, "Of a flexible shape.", gt=0)
    memory_gb: float | None = key(None, "Of a flexible shape.", gt=0)
    block_storage_gb: int | None = key(None, "Of each node.", ge=50)
    work_dir: Text = key("", "Folder that all nodes reach: oci://bucket@namespace/path.")
    mode: Literal["runs", "multinode"] = key(
        "runs", "runs: one job run for each node. multinode: one for all, by the service itself."
    )
    main_name: Text = key("", "Of the first node's run.")
    worker_name: Text = key("", "Of the others' runs, before their number.")
    start_options: Texts = key((), "OCI__START_ARGS.")
    auth: Literal["api_key", "resource_principal", "security_token"] = key("api_key", "How requests are signed.")
    profile: Text = key("DEFAULT", "Of ~/.oci/config.")
    endpoint: Text = key("", "URL for requests; default: the region's.")
    freeform_tags: Names = key({}, "On the job and its runs.")
    defined_tags: Json = key({}, "On the job and its runs, by namespace.")
    raw: Raw = Field(default_factory=dict)


class Platforms(Section):
    """Options of any number of platforms; `name` selects one."""

    name: PlatformName | None = key(None, "Where to run; default: the only platform below, or local.")
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
