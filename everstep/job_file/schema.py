"""The job file's keys, their types and defaults. Only the entrypoint is required; unknown keys are errors.

A `Job` is a frozen value. `dump` gives the shortest file that reads back as it, with secrets masked."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, create_model, model_validator

from everstep.env import BACKEND
from everstep.errors import UsageError
from everstep.job_file.entrypoint import HARNESS, Entrypoint, class_words, entry_of, is_class, split, without_launcher
from everstep.job_file.experiment_keys import (
    Count,
    Labels,
    Length,
    LogPolicySection,
    MetricLine,
    Searcher,
    WebhooksSection,
)
from everstep.job_file.fields import (
    AS_WRITTEN,
    Cpus,
    Duration,
    EnvName,
    Json,
    Line,
    Section,
    Size,
    Text,
    Texts,
    Word,
    checked,
    key,
    refusal,
    shorthand,
)
from everstep.job_file.fields import text_paths as _text_paths
from everstep.job_file.platform_options import Platforms
from everstep.job_file.secret import SecretField
from everstep.settings import settings_of, types_of
from everstep.wire.policy import Policy
from everstep.wire.pool import DEFAULT_PRIORITY, LEAST_WEIGHT, MOST_PRIORITY, MOST_WEIGHT

_DNS_LENGTH = 50  # of a job's name: pods add theirs, and a label has 63 at most
_MAX_NODES = 100_000

# --- short forms ----------------------------------------------------------------------------------


def _parse_nodes(given: Any) -> Any:
    found = re.fullmatch(r"(\d+)(?::(\d+))?", str(given).strip())
    if isinstance(given, bool) or not found:
        raise UsageError(f"{given!r} is neither a number nor a range", hint="such as 2, or 1:4", code="nodes-invalid")
    return {"min": int(found[1]), "max": int(found[2] or found[1])}


def parse_volume(given: Any) -> Any:
    if not isinstance(given, str):
        raise UsageError(
            f"{given!r} is not a volume", hint="SOURCE:TARGET, or {source: …, target: …}", code="volume-invalid"
        )
    text, mode = (given[:-3], "ro") if given.endswith(":ro") else (given.removesuffix(":rw"), "rw")
    source, colon, target = text.rpartition(":")
    if not colon or not source or not target:
        raise UsageError(
            f"{given!r}: target missing", hint="SOURCE:TARGET, such as ./data:/data:ro", code="volume-without-target"
        )
    return {"source": source, "target": target, "readonly": mode == "ro"}


def _parse_words(given: Any) -> Any:
    words = split(given) if isinstance(given, str) else given
    if isinstance(words, list | tuple) and len(words) == 1 and is_class(str(words[0])):
        words = class_words(str(words[0]))
    if not isinstance(words, list | tuple):
        raise UsageError("neither a text nor a list", hint="entrypoint: train.py", code="entrypoint-type")
    if not words or words[0] == "":
        raise UsageError("nothing to run", hint="entrypoint: train.py", code="entrypoint-empty")
    return words


def _no_launcher(words: tuple[str, ...]) -> tuple[str, ...]:
    """Everstep starts the workers: a launcher in each of them would start them again."""
    if (launch := without_launcher(words)).launcher is not None:
        hint = f"give what it starts: `entrypoint: {shlex.join(launch.words)}`"
        if workers := launch.options.get("--nproc-per-node"):
            hint += f", and `workers_per_node: {workers}`"
        raise UsageError(
            f"{launch.launcher} would start more workers in each worker", hint=hint, code="entrypoint-has-launcher"
        )
    return words


def _show_words(words: tuple[str, ...]) -> str | list[str]:
    """In one line, if that reads back as the same words."""
    line = shlex.join(words)
    try:
        return line if split(line) == words and "\n" not in line else list(words)
    except UsageError:
        return list(words)


# --- blocks ---------------------------------------------------------------------------------------


class Nodes(Section):
    """The job starts with `min` nodes and takes up to `max`."""

    min: int = key(
        1,
        "Number of nodes that the job needs to start. With a range, it pauses below this number.",
        ge=1,
        le=_MAX_NODES,
    )
    max: int = key(1, "Number of nodes that the job uses at most; more are spares.", ge=1, le=_MAX_NODES)

    @model_validator(mode="before")
    @classmethod
    def _one_is_both(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("max") is None and given.get("min") is not None:
            return {**given, "max": given["min"]}
        return given

    @model_validator(mode="after")
    def _in_order(self) -> Nodes:
        if self.min > self.max:
            message = f"from {self.min} to {self.max} nodes"
            raise refusal(message, f"MIN:MAX, such as {self.max}:{self.min}", code="nodes-min-above-max")
        return self

    def __str__(self) -> str:
        return str(self.min) if self.min == self.max else f"{self.min}:{self.max}"


class Limits(Section):
    """Upper limits, if higher than the reservation."""

    cpu: Cpus | None = key(None, "Maximum number of CPUs.")
    memory: Size | None = key(None, "Maximum amount of memory.")


class NodeResources(Section):
    """Resources to reserve."""

    cpu: Cpus | None = key(None, "Number of CPUs: 4, 0.5, 500m.")
    memory: Size | None = key(None, "Amount of memory: 16Gi.")
    limits: Limits = key(Limits(), "Upper limits, where the platform distinguishes them from reservations.")

    @model_validator(mode="after")
    def _limits_are_not_less(self) -> NodeResources:
        for name, given, limit in (("cpu", self.cpu, self.limits.cpu), ("memory", self.memory, self.limits.memory)):
            if given is not None and limit is not None and limit < given:
                shown = self.model_dump(mode="json")
                raise refusal(
                    f"limits.{name}: {shown['limits'][name]} is less than {name}: {shown[name]}",
                    f"limits.{name} is {shown[name]} or more, or left out",
                    code="limit-below-request",
                )
        return self


class Resources(NodeResources):
    """Resources of each node."""

    gpu: int = key(0, "Number of GPUs.", ge=0)
    gpu_type: Word = key("", "GPU type, as the platform names it.")
    shm: Size | None = key(None, "Size of the shared memory (/dev/shm), for data loaders.")
    slots_per_trial: int | None = key(
        None, "Number of micro-batches in a batch, and the most slots that a trial uses.", ge=0
    )
    min_slots: int | None = key(
        None, "Number of slots that a trial needs [1]: it starts with them, and never continues with fewer.", ge=1
    )
    max_slots: int | None = key(
        None, "Most slots of the pool that all trials of the experiment use together. Default: as many as help.", ge=1
    )
    pool: Word = key("", "Pool whose slots trials use. Default: default.")
    priority: int | None = key(
        None,
        f"Priority in the pool, from 1 to {MOST_PRIORITY} [{DEFAULT_PRIORITY}]; smaller numbers go first.",
        ge=1,
        le=MOST_PRIORITY,
    )
    weight: float | None = key(
        None,
        "Share of the pool among experiments of equal priority [1]; 2 gets twice as many slots as 1.",
        ge=LEAST_WEIGHT,
        le=MOST_WEIGHT,
        allow_inf_nan=False,
    )
    preemption_timeout: Duration | None = key(
        None, "Time that a trial has to save and leave for others [checkpoint.grace]; then it is killed."
    )

    @model_validator(mode="after")
    def _shm_fits(self) -> Resources:
        memory = self.limits.memory or self.memory
        if self.shm is not None and memory is not None and self.shm > memory:
            shown = self.model_dump(mode="json")
            raise refusal(
                f"shm: {shown['shm']} of {shown['limits']['memory'] or shown['memory']} memory",
                "shared memory is part of memory: ask for more of it, or less of shm",
                code="shm-above-memory",
            )
        return self


class CoordinatorSection(Section):
    """The coordinator, where the platform runs it separately."""

    image: Line = key("", "Image with Everstep. Default: the job's image.")
    resources: NodeResources = key(NodeResources(), "Resources of the coordinator.")


class Build(Section):
    """Settings of `everstep build` for the image."""

    dockerfile: Text = key("Dockerfile", "Path of the Dockerfile.")
    context: Text = key(".", "Folder to copy to /code.")
    args: dict[str, Text] = key({}, "Build arguments. Proxy settings are always passed.")
    push: bool = key(False, "Push the image after building it.")


class Volume(Section):
    """Files mounted into the job. `SOURCE:TARGET[:ro]` is the short form."""

    source: Annotated[Text, Field(min_length=1)] = key(
        ..., "Path on the node, pvc:NAME, nfs:SERVER:/PATH, emptydir, or a URI."
    )
    target: Text = key(..., "Mount point in the job: an absolute path.")
    readonly: bool = key(False, "Mount the volume read-only.")

    @model_validator(mode="after")
    def _is_absolute(self) -> Volume:
        if not PurePosixPath(self.target).is_absolute() or self.target.strip("/") == "":
            message = f"target: {self.target!r} is not an absolute path below /"
            raise refusal(message, "such as /data", code="volume-target-not-absolute")
        return self

    @property
    def kind(self) -> Literal["path", "pvc", "nfs", "emptydir", "uri"]:
        if "://" in self.source:
            return "uri"
        if self.source == "emptydir":
            return "emptydir"
        prefix = self.source.partition(":")[0]
        return "pvc" if prefix == "pvc" else "nfs" if prefix == "nfs" else "path"


class Checkpoint(Section):
    """Where checkpoints go. The URI alone is the short form."""

    uri: Text = key("", "Folder that all nodes can reach, or a URL such as s3://bucket/prefix.")
    keep_latest: int | None = key(None, "Number of newest checkpoints to keep.", ge=0)
    keep_best: int | None = key(None, "Number of best checkpoints to keep.", ge=0)
    keep_experiment_best: int | None = key(None, "Number of best checkpoints of a whole experiment to keep.", ge=0)
    grace: Duration = key(60.0, "Time that a leaving node has to save and leave.")


def _declared(section: str) -> type[Section]:
    """A section with the keys that Policy declares for it. Missing keys stay unset."""
    keys: dict[str, Any] = {}
    for name, each in settings_of(Policy).items():
        kind, _ = types_of(Policy)[name]
        finite = False if kind is float else None
        bounds = Field(ge=each.least, gt=each.above, le=each.most, allow_inf_nan=finite, description=f"{each.text}.")
        if each.section == section:
            keys[name] = (Annotated[kind | None, bounds], None)
    return create_model(section, __base__=Section, **keys)


class Elastic(_declared("elastic")):  # type: ignore[misc]
    """How membership changes. The same names and defaults as in docs/configuration.md."""


class HealthSection(_declared("health")):  # type: ignore[misc]
    """When a worker is lost or hung. The same names and defaults as in docs/configuration.md."""

    check: bool = key(False, "Measure all nodes first, and leave out nodes that fail or are slow.")


class ShardsSection(_declared("shards")):  # type: ignore[misc]
    """Leased data. The same names and defaults as in docs/configuration.md."""


class LogsSection(_declared("logs")):  # type: ignore[misc]
    """How much output is kept. The same names and defaults as in docs/configuration.md."""


class MetricsSection(_declared("metrics")):  # type: ignore[misc]
    """What is measured. The same names and defaults as in docs/configuration.md."""


# --- the job --------------------------------------------------------------------------------------


def _named_webhooks(given: Any) -> Any:
    return {"names": given}


class Job(Section):
    """One submitted training run."""

    name: Annotated[Line, Field(max_length=200)] = key("", "Name of the job. Default: the entrypoint's name.")
    entrypoint: Annotated[
        tuple[Text, ...],
        BeforeValidator(checked(_parse_words), json_schema_input_type=str | list[str | int | float]),
        AfterValidator(checked(_no_launcher)),
        PlainSerializer(_show_words),
    ] = key(
        ...,
        "Command that each worker runs: train.py, -m package.train, a program, or a class: model_def:MyTrial. "
        "A text or a list.",
    )
    args: Texts = key((), "Arguments of the entrypoint, passed as written.")
    env: dict[EnvName, Text] = key({}, "Environment variables of the workers.")
    secrets: dict[EnvName, SecretField] = key(
        {}, "Environment variables that are never printed: env:NAME, file:PATH, kubernetes:SECRET/KEY."
    )
    nodes: Annotated[
        Nodes,
        shorthand(_parse_nodes, int | str | Nodes),
        PlainSerializer(lambda nodes: int(str(nodes)) if nodes.min == nodes.max else str(nodes)),
        AS_WRITTEN,
    ] = key(Nodes(), "Number of nodes: 2, or MIN:MAX.")
    workers_per_node: Count | Literal["auto", "gpu", "cpu"] | None = key(
        None,
        "Number of workers on each node, or auto, gpu, cpu to count there. Default: one per resources.gpu, or one.",
    )
    resources: Resources = key(Resources(), "Resources of each node.")
    coordinator: CoordinatorSection = key(
        CoordinatorSection(), "Settings of the coordinator, where it runs separately."
    )
    image: Line = key("", "Container image. Without one, each node uses its own Python.")
    build: Build | None = key(None, "Settings of `everstep build` for the image.")
    setup: Texts = key((), "Shell lines that each node runs before its agent: module load, …")
    workdir: Text = key(".", "Folder with the code. It is sent to the nodes, and workers start in it.")
    ignore: Text = key(".everstepignore", "File that lists paths not to send, like a .gitignore.")
    volumes: tuple[Annotated[Volume, shorthand(parse_volume, str | Volume)], ...] = key(
        (), "Files mounted into the job: SOURCE:TARGET[:ro]."
    )
    checkpoint: Annotated[Checkpoint, shorthand(lambda uri: {"uri": uri}, str | Checkpoint)] = key(
        Checkpoint(), "Checkpoint settings: the URI alone, or a block."
    )
    restarts: int = key(3, "Replace at most this many workers in the whole job. Lost nodes do not count.", ge=0)
    backend: Literal["auto", "gloo", "nccl"] | None = key(
        None,
        "How gradients travel between workers, unless the script sets it: gloo, nccl, or auto (NCCL if each worker "
        "has its own GPU, otherwise gloo). Default: EVERSTEP_BACKEND of each node, or auto.",
    )
    time_limit: Duration | None = key(None, "Time limit of the whole job or experiment: 1h30m, 1:30:00.")
    elastic: Elastic = key(Elastic(), "Settings for membership changes.")
    health: HealthSection = key(HealthSection(), "Detection of lost and hanging workers.")
    shards: ShardsSection = key(ShardsSection(), "Settings for leased data.")
    logs: LogsSection = key(LogsSection(), "Bounds for the job's output.")
    metrics: MetricsSection = key(MetricsSection(), "Settings for metrics of nodes and workers.")
    seed: int = key(0, "Seed of random streams, for scripts that read it from the job.", ge=0)
    hyperparameters: Json = key({}, "Hyperparameters, for scripts that read them from the job.")
    data: Json = key({}, "Other data, for scripts that read it from the job.")
    description: Text = key("", "Description of the experiment.")
    notes: Text = key("", "Notes on the experiment, for people.")
    metric_line: MetricLine | None = key(
        None, "Regular expression of the printed lines that hold a trial's metric, for scripts that do not report it."
    )
    records_per_epoch: Count | None = key(None, "Number of records in an epoch, if the Trainer cannot count them.")
    min_validation_period: Length | None = key(None, "Validate at least this often, unless the script says so itself.")
    min_checkpoint_period: Length | None = key(None, "Save at least this often, unless the script says so itself.")
    reuse: bool = key(False, "Do not train again what was trained before. Needs data.version.")
    searcher: Annotated[Searcher | None, shorthand(lambda name: {"name": name}, str | Searcher)] = key(
        None, "Hyperparameter search: a method's name, or a block."
    )
    log_policies: tuple[LogPolicySection, ...] = key((), "What follows if a line of a trial's log matches a pattern.")
    webhooks: Annotated[WebhooksSection, shorthand(_named_webhooks, list[str] | WebhooksSection)] = key(
        WebhooksSection(), "Webhooks that hear of the experiment: a list of names, or a block."
    )
    labels: Labels = key({}, "Labels, of the experiment, or on the submitted objects: a mapping, or a list of names.")
    platform: Annotated[Platforms, shorthand(lambda name: {"name": name}, str | Platforms)] = key(
        Platforms(), "Platform to run on: a name, or options of one or more platforms."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Job:
        if self.reuse and self.data.get("version") in (None, ""):
            hint = "data: {version: …}: a text that changes when the data does"
            raise refusal("reuse without data.version", hint, code="reuse-without-data-version")
        if both := sorted(self.env.keys() & self.secrets.keys()):
            raise refusal(
                f"{both[0]} is in env and in secrets", "remove one of them", code="variable-in-env-and-secrets"
            )
        if self.backend and BACKEND in self.env:
            raise refusal(f"backend and env.{BACKEND} are both set", "remove one of them", code="backend-in-env-too")
        targets = [volume.target.rstrip("/") for volume in self.volumes]
        if twice := next((target for target in targets if targets.count(target) > 1), None):
            raise refusal(f"two volumes at {twice}", "each needs a target of its own", code="volume-target-twice")
        if (
            self.elastic.min_workers
            and self.elastic.max_workers
            and self.elastic.min_workers > self.elastic.max_workers
        ):
            message = f"elastic: from {self.elastic.min_workers} to {self.elastic.max_workers} workers"
            raise refusal(message, "min_workers is max_workers or less", code="workers-min-above-max")
        return self

    @property
    def entry(self) -> Entrypoint:
        """As `everstep run` takes it."""
        return entry_of(self.entrypoint, self.args)

    @property
    def title(self) -> str:
        """The job's name, or one made of what it runs."""
        entry = self.entry
        if self.name or entry.script != HARNESS or not entry.args:
            return self.name or PurePosixPath(entry.script).stem or "job"
        return entry.args[0].rpartition(":")[2]

    @property
    def slug(self) -> str:
        """The title as clusters want it: lower-case letters, digits and dashes; cut names stay different ones."""
        cut = re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")
        if cut and cut[0].isalpha() and len(cut) <= _DNS_LENGTH:
            return cut
        digest = hashlib.sha256(self.title.encode()).hexdigest()[:6]
        return f"{('job-' + cut if not cut[:1].isalpha() else cut)[: _DNS_LENGTH - 7].strip('-')}-{digest}"

    def dump(self) -> dict[str, Any]:
        """The keys that are not as they would be anyway. Literal secrets are masked."""
        return self.model_dump(mode="json", exclude_defaults=True)


TEXT_PATHS = frozenset(_text_paths(Job))
