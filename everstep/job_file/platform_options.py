"""What a job may say to one platform alone: typed options, and `raw` for all that they do not have."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field

from everstep.errors import UsageError
from everstep.job_file.fields import Duration, Json, Line, Names, Section, Text, Texts, Word

PlatformName = Literal["local", "compose", "kubernetes", "slurm", "pbs", "oci"]
PLATFORMS: tuple[PlatformName, ...] = get_args(PlatformName)


def check_platform(name: str) -> None:
    if name not in PLATFORMS:
        raise UsageError(f"platform {name!r} is not known", hint=f"one of {', '.join(PLATFORMS)}")


Raw = Annotated[Json, Field(description="Merged into what is submitted: mappings key by key, lists at their end.")]
RawLines = Annotated[
    tuple[Line, ...], Field(description="More options of the batch script, one in a line, as they are.")
]


class Local(Section):
    log_dir: Annotated[Text, Field(description="Logs, events and progress boards.")] = "runs"
    keep_warm: Annotated[Duration | None, Field(description="Keep a process with torch for the next run.")] = None


class Compose(Section):
    project: Annotated[Text, Field(description="Name of the Compose project; else the job's id.")] = ""
    raw: Raw = Field(default_factory=dict)


class Kubernetes(Section):
    namespace: Annotated[Text, Field(description="Else the context's.")] = ""
    context: Annotated[Text, Field(description="Of the kubeconfig; else the current one.")] = ""
    mode: Annotated[
        Literal["elastic", "indexed"],
        Field(description="elastic: the coordinator makes worker pods. indexed: an Indexed Job of fixed size."),
    ] = "elastic"
    pull_policy: Annotated[Literal["Always", "IfNotPresent", "Never"] | None, Field(description="Of images.")] = None
    pull_secrets: Annotated[Texts, Field(description="Names of secrets for private registries.")] = ()
    service_account: Annotated[Text, Field(description="Of the coordinator; else one is made.")] = ""
    node_selector: Annotated[Names, Field(description="Labels that a worker's node must have.")] = Field(
        default_factory=dict
    )
    tolerations: Annotated[tuple[Json, ...], Field(description="As in a pod.")] = ()
    priority_class: Annotated[Text, Field(description="Of worker pods.")] = ""
    queue: Annotated[Text, Field(description="Kueue's local queue.")] = ""
    security: Annotated[
        Literal["restricted", "baseline"], Field(description="Pod security that worker pods comply with.")
    ] = "restricted"
    store: Annotated[
        Text,
        Field(
            pattern=r"^(pvc:.+|node|\d+[KMGT]i?)$",
            description="What the coordinator keeps: pvc:NAME, a claim's size, or node (lost with its pod).",
        ),
    ] = "1Gi"
    raw: Annotated[
        Json, Field(description="Merged into each worker's pod: metadata, spec; lists at their end, or by name.")
    ] = Field(default_factory=dict)
    coordinator_raw: Annotated[Json, Field(description="Merged into the coordinator's pod.")] = Field(
        default_factory=dict
    )


class Slurm(Section):
    partition: Annotated[Word, Field(description="Else the cluster's default.")] = ""
    account: Annotated[Word, Field(description="Who pays.")] = ""
    qos: Annotated[Word, Field(description="Quality of service.")] = ""
    constraint: Annotated[Line, Field(description="Features that nodes must have.")] = ""
    reservation: Annotated[Word, Field(description="Name of a reservation.")] = ""
    mode: Annotated[
        Literal["single", "array", "allocation"],
        Field(
            description="single: one job for all nodes. array: one for each node, so that it grows and shrinks. "
            "allocation: inside the one that you have (salloc)."
        ),
    ] = "single"
    coordinator_partition: Annotated[Word, Field(description="Of the coordinator's own job, in mode array.")] = ""
    requeue: Annotated[bool, Field(description="Come back after a preemption, or when the time was up.")] = True
    time_requeues: Annotated[int, Field(ge=0, description="So often when the time was up; preemptions are free.")] = 3
    signal: Annotated[
        Word, Field(pattern="^[A-Za-z0-9]+$", description="Sent before the time is up; not USR1, which NCCL uses.")
    ] = "USR2"
    signal_lead: Annotated[Duration, Field(description="So long before.")] = 120.0
    memory: Annotated[bool, Field(description="Ask for memory; off where the cluster does not count it.")] = True
    raw: RawLines = ()


class Pbs(Section):
    queue: Annotated[Word, Field(description="Else the cluster's default.")] = ""
    project: Annotated[Word, Field(description="Who pays.")] = ""
    gpu_model: Annotated[Word, Field(description="In the select statement.")] = ""
    select: Annotated[Word, Field(description="More of the select statement, such as phase=18b.")] = ""
    place: Annotated[Word, Field(description="How chunks are spread over nodes.")] = "scatter"
    mode: Annotated[
        Literal["single", "allocation"],
        Field(description="single: one job for all nodes. allocation: inside the one that you have (qsub -I)."),
    ] = "single"
    launcher: Annotated[Literal["pbsdsh", "ssh"], Field(description="How agents are started on the nodes.")] = "pbsdsh"
    raw: RawLines = ()


class Oci(Section):
    compartment: Annotated[Text, Field(description="OCID.")] = ""
    project: Annotated[Text, Field(description="OCID.")] = ""
    subnet: Annotated[Text, Field(description="OCID.")] = ""
    log_group: Annotated[Text, Field(description="OCID.")] = ""
    log: Annotated[Text, Field(description="OCID.")] = ""
    shape: Annotated[Text, Field(description="Of each node, such as VM.GPU2.1.")] = ""
    ocpus: Annotated[float | None, Field(gt=0, description="Of a flexible shape.")] = None
    memory_gb: Annotated[float | None, Field(gt=0, description="Of a flexible shape.")] = None
    block_storage_gb: Annotated[int | None, Field(ge=50, description="Of each node.")] = None
    work_dir: Annotated[Text, Field(description="Folder that all nodes reach: oci://bucket@namespace/path.")] = ""
    mode: Annotated[
        Literal["runs", "multinode"],
        Field(description="runs: one job run for each node. multinode: one for all, by the service itself."),
    ] = "runs"
    main_name: Annotated[Text, Field(description="Of the first node's run.")] = ""
    worker_name: Annotated[Text, Field(description="Of the others' runs, before their number.")] = ""
    start_options: Annotated[Texts, Field(description="OCI__START_ARGS.")] = ()
    auth: Annotated[
        Literal["api_key", "resource_principal", "security_token"], Field(description="How requests are signed.")
    ] = "api_key"
    profile: Annotated[Text, Field(description="Of ~/.oci/config.")] = "DEFAULT"
    endpoint: Annotated[Text, Field(description="URL that requests go to; else the region's.")] = ""
    freeform_tags: Annotated[Names, Field(description="On the job and its runs.")] = Field(default_factory=dict)
    defined_tags: Annotated[Json, Field(description="On the job and its runs, by namespace.")] = Field(
        default_factory=dict
    )
    raw: Raw = Field(default_factory=dict)


class Platforms(Section):
    """Options of as many platforms as there are; `name` says which one is meant."""

    name: Annotated[PlatformName | None, Field(description="Where to run; else the only one below, else local.")] = None
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
