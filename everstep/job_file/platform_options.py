"""Options of each platform: typed ones, and `raw` for all others."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field

from everstep.errors import UsageError
from everstep.job_file.fields import Duration, Json, Line, Names, Section, Text, Texts, Word

PlatformName = Literal["local", "compose", "kubernetes", "slurm", "pbs", "oci"]
PLATFORMS: tuple[PlatformName, ...] = get_args(PlatformName)


def check_platform(name: str) -> None:
    if name not in PLATFORMS:
        raise UsageError(f"unknown platform {name!r}", hint=f"one of {', '.join(PLATFORMS)}", code="platform-unknown")


Raw = Annotated[Json, Field(description="Merged into the submitted objects: mappings by key, lists appended.")]
RawLines = Annotated[tuple[Line, ...], Field(description="More options of the batch script, one per line, unchanged.")]


class Local(Section):
    log_dir: Annotated[Text, Field(description="Logs, events and progress pages.")] = "runs"
    keep_warm: Annotated[Duration | None, Field(description="Keep a process with torch for the next run.")] = None


class Compose(Section):
    project: Annotated[Text, Field(description="Name of the Compose project; default: the job's id.")] = ""
    raw: Raw = Field(default_factory=dict)


class Kubernetes(Section):
    namespace: Annotated[Text, Field(description="Default: the context's.")] = ""
    context: Annotated[Text, Field(description="Of the kubeconfig; default: the current one.")] = ""
    mode: Annotated[
        Literal["elastic", "indexed"],
        Field(description="elastic: the coordinator makes worker pods. indexed: an Indexed Job of fixed size."),
    ] = "elastic"
    pull_policy: Annotated[Literal["Always", "IfNotPresent", "Never"] | None, Field(description="Of images.")] = None
    pull_secrets: Annotated[Texts, Field(description="Names of secrets for private registries.")] = ()
    service_account: Annotated[Text, Field(description="Of the coordinator; default: a new one.")] = ""
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
            description="The coordinator's storage: pvc:NAME, the size of a new claim, or node (lost with its pod).",
        ),
    ] = "1Gi"
    raw: Annotated[
        Json, Field(description="Merged into each worker's pod: metadata, spec; lists appended, or merged by name.")
    ] = Field(default_factory=dict)
    coordinator_raw: Annotated[Json, Field(description="Merged into the coordinator's pod.")] = Field(
        default_factory=dict
    )


class Slurm(Section):
    partition: Annotated[Word, Field(description="Default: the cluster's.")] = ""
    account: Annotated[Word, Field(description="Account to charge.")] = ""
    qos: Annotated[Word, Field(description="Quality of service.")] = ""
    constraint: Annotated[Line, Field(description="Required features of nodes.")] = ""
    reservation: Annotated[Word, Field(description="Name of a reservation.")] = ""
    mode: Annotated[
        Literal["single", "array", "allocation"],
        Field(
            description="single: one job for all nodes. array: one for each node, so that it grows and shrinks. "
            "allocation: inside your current one (salloc)."
        ),
    ] = "single"
    coordinator_partition: Annotated[Word, Field(description="Of the coordinator's own job, in mode array.")] = ""
    requeue: Annotated[bool, Field(description="Requeue after a preemption or the time limit.")] = True
    time_requeues: Annotated[
        int, Field(ge=0, description="Requeue at most this often after the time limit; preemptions do not count.")
    ] = 3
    signal: Annotated[
        Word, Field(pattern="^[A-Za-z0-9]+$", description="Sent before the time limit; not USR1, which NCCL uses.")
    ] = "USR2"
    signal_lead: Annotated[Duration, Field(description="How long before the time limit the signal is sent.")] = 120.0
    memory: Annotated[bool, Field(description="Request memory; turn it off if the cluster does not manage memory.")] = (
        True
    )
    raw: RawLines = ()


class Pbs(Section):
    queue: Annotated[Word, Field(description="Default: the cluster's.")] = ""
    project: Annotated[Word, Field(description="Account to charge.")] = ""
    gpu_model: Annotated[Word, Field(description="In the select statement.")] = ""
    select: Annotated[Word, Field(description="More of the select statement, such as phase=18b.")] = ""
    place: Annotated[Word, Field(description="How chunks are spread over nodes.")] = "scatter"
    mode: Annotated[
        Literal["single", "allocation"],
        Field(description="single: one job for all nodes. allocation: inside your current one (qsub -I)."),
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
    endpoint: Annotated[Text, Field(description="URL for requests; default: the region's.")] = ""
    freeform_tags: Annotated[Names, Field(description="On the job and its runs.")] = Field(default_factory=dict)
    defined_tags: Annotated[Json, Field(description="On the job and its runs, by namespace.")] = Field(
        default_factory=dict
    )
    raw: Raw = Field(default_factory=dict)


class Platforms(Section):
    """Options of any number of platforms; `name` selects one."""

    name: Annotated[
        PlatformName | None, Field(description="Where to run; default: the only platform below, or local.")
    ] = None
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
