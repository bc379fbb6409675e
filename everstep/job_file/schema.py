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

from everstep.errors import UsageError
from everstep.job_file.entrypoint import Entrypoint, entry_of, split, without_launcher
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
    refusal,
)
from everstep.job_file.fields import text_paths as _text_paths
from everstep.job_file.platform_options import Platforms
from everstep.job_file.secret import SecretField
from everstep.settings import settings_of, types_of
from everstep.wire.policy import Policy

_DNS_LENGTH = 50  # of a job's name: pods add theirs, and a label has 63 at most
_MAX_NODES = 100_000

Count = Annotated[int, Field(ge=1)]


# --- short forms ----------------------------------------------------------------------------------


def _shorthand(read: Any, form: Any) -> BeforeValidator:
    """A block that may also be given as this form; a mapping is left to the block."""

    def validate(given: Any) -> Any:
        return given if isinstance(given, Mapping | Section) else read(given)

    return BeforeValidator(checked(validate), json_schema_input_type=form)


def _parse_nodes(given: Any) -> Any:
    found = re.fullmatch(r"(\d+)(?::(\d+))?", str(given).strip())
    if isinstance(given, bool) or not found:
        raise UsageError(f"{given!r} is neither a number nor a range", hint="such as 2, or 1:4", code="nodes-invalid")
    return {"min": int(found[1]), "max": int(found[2] or found[1])}


def _parse_volume(given: Any) -> Any:
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

    min: Annotated[
        int,
        Field(
            ge=1,
            le=_MAX_NODES,
            description="The job starts with this many nodes. With a range, it pauses below this number.",
        ),
    ] = 1
    max: Annotated[
        int, Field(ge=1, le=_MAX_NODES, description="The job uses up to this many nodes; more are spares.")
    ] = 1

    @model_validator(mode="before")
    @classmethod
    def _one_is_both(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("max") is None and given.get("min") is not None:
            return {**given, "max": given["min"]}
        return given

    @model_validator(mode="after")
    def _in_order(self) -> Nodes:
        if self.min > self.max:
            raise refusal(
                f"from {self.min} to {self.max} nodes",
                f"MIN:MAX, such as {self.max}:{self.min}",
                code="nodes-min-above-max",
            )
        return self

    def __str__(self) -> str:
        return str(self.min) if self.min == self.max else f"{self.min}:{self.max}"


class Limits(Section):
    """Upper limits, if higher than the reservation."""

    cpu: Annotated[Cpus | None, Field(description="CPUs.")] = None
    memory: Annotated[Size | None, Field(description="Memory.")] = None


class NodeResources(Section):
    """Resources to reserve."""

    cpu: Annotated[Cpus | None, Field(description="CPUs: 4, 0.5, 500m.")] = None
    memory: Annotated[Size | None, Field(description="Memory: 16Gi.")] = None
    limits: Annotated[
        Limits, Field(description="Upper limits, where the platform distinguishes them from reservations.")
    ] = Limits()

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
    """Of each node."""

    gpu: Annotated[int, Field(ge=0, description="GPUs.")] = 0
    gpu_type: Annotated[Word, Field(description="As the platform names it.")] = ""
    shm: Annotated[Size | None, Field(description="Shared memory (/dev/shm), for data loaders.")] = None

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

    image: Annotated[Line, Field(description="An image with Everstep; default: the job's.")] = ""
    resources: Annotated[NodeResources, Field(description="Of the coordinator.")] = NodeResources()


class Build(Section):
    """How `everstep build` makes the image."""

    dockerfile: Annotated[Text, Field(description="Its path.")] = "Dockerfile"
    context: Annotated[Text, Field(description="The folder that is copied to /code.")] = "."
    args: Annotated[dict[str, Text], Field(description="Build arguments; the proxy settings are passed anyway.")] = (
        Field(default_factory=dict)
    )
    push: Annotated[bool, Field(description="Push the image after building it.")] = False


class Volume(Section):
    """Files mounted into the job. `SOURCE:TARGET[:ro]` is the short form."""

    source: Annotated[
        Text, Field(min_length=1, description="A path of the node, pvc:NAME, nfs:SERVER:/PATH, emptydir, or a URI.")
    ]
    target: Annotated[Text, Field(description="Mount point in the job: an absolute path.")]
    readonly: Annotated[bool, Field(description="Mount it read-only.")] = False

    @model_validator(mode="after")
    def _is_absolute(self) -> Volume:
        if not PurePosixPath(self.target).is_absolute() or self.target.strip("/") == "":
            raise refusal(
                f"target: {self.target!r} is not an absolute path below /",
                "such as /data",
                code="volume-target-not-absolute",
            )
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

    uri: Annotated[Text, Field(description="A folder that all nodes reach, or s3://bucket/prefix, …")] = ""
    keep_latest: Annotated[int | None, Field(ge=0, description="Keep this many of the newest.")] = None
    keep_best: Annotated[int | None, Field(ge=0, description="Keep this many of the best.")] = None
    grace: Annotated[Duration, Field(description="Time for a leaving node to save and leave.")] = 60.0


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

    check: Annotated[bool, Field(description="Measure all nodes first, and leave out those that fail or are slow.")] = (
        False
    )


class ShardsSection(_declared("shards")):  # type: ignore[misc]
    """Leased data. The same names and defaults as in docs/configuration.md."""


_AS_DETERMINED = Field(description="As in Determined; accepted, and not used yet.")


class Searcher(Section):
    """Which hyperparameters are tried, by Determined's names. `single` is one run with those that are given."""

    name: Annotated[
        Literal["single", "random", "grid", "async_halving", "adaptive_asha"],
        Field(description="The method; only single is run yet."),
    ] = "single"
    metric: Annotated[Text | None, Field(description="Decides which checkpoint is best.")] = None
    smaller_is_better: Annotated[bool, Field(description="Of the metric.")] = True
    max_length: Annotated[
        Count | dict[Literal["batches", "records", "epochs"], Count] | None,
        Field(description="How long a trial trains: {batches: 937}, records or epochs."),
    ] = None
    max_trials: Annotated[Count | None, _AS_DETERMINED] = None
    max_concurrent_trials: Annotated[int | None, Field(ge=0), _AS_DETERMINED] = None
    max_time: Annotated[Count | None, _AS_DETERMINED] = None
    time_metric: Annotated[Text | None, _AS_DETERMINED] = None
    mode: Annotated[Literal["standard", "aggressive", "conservative"] | None, _AS_DETERMINED] = None
    divisor: Annotated[float | None, Field(gt=1), _AS_DETERMINED] = None
    max_rungs: Annotated[Count | None, _AS_DETERMINED] = None
    num_rungs: Annotated[Count | None, _AS_DETERMINED] = None
    bracket_rungs: Annotated[tuple[int, ...], _AS_DETERMINED] = ()
    source_trial_id: Annotated[int | None, _AS_DETERMINED] = None
    source_checkpoint_uuid: Annotated[Text | None, _AS_DETERMINED] = None


# --- the job --------------------------------------------------------------------------------------


class Job(Section):
    """One submitted training run."""

    name: Annotated[Line, Field(max_length=200, description="Of the job; default: the entrypoint's.")] = ""
    entrypoint: Annotated[
        tuple[Text, ...],
        BeforeValidator(checked(_parse_words), json_schema_input_type=str | list[str | int | float]),
        AfterValidator(checked(_no_launcher)),
        PlainSerializer(_show_words),
        Field(description="What each worker runs: train.py, -m package.train, or a program; a text or a list."),
    ]
    args: Annotated[Texts, Field(description="Its arguments, passed as written.")] = ()
    env: Annotated[dict[EnvName, Text], Field(description="Environment variables.")] = Field(default_factory=dict)
    secrets: Annotated[
        dict[EnvName, SecretField],
        Field(description="Environment variables that are never printed: env:NAME, file:PATH, kubernetes:SECRET/KEY."),
    ] = Field(default_factory=dict)
    nodes: Annotated[
        Nodes,
        _shorthand(_parse_nodes, int | str | Nodes),
        PlainSerializer(lambda nodes: int(str(nodes)) if nodes.min == nodes.max else str(nodes)),
        Field(description="How many: 2, or MIN:MAX."),
        AS_WRITTEN,
    ] = Nodes()
    workers_per_node: Annotated[
        Count | Literal["auto", "gpu", "cpu"] | None,
        Field(description="A number, or auto, gpu, cpu: counted on the node. Default: one per resources.gpu, or one."),
    ] = None
    resources: Annotated[Resources, Field(description="Of each node.")] = Resources()
    coordinator: Annotated[CoordinatorSection, Field(description="Of the coordinator, where it runs separately.")] = (
        CoordinatorSection()
    )
    image: Annotated[Line, Field(description="Container image; without one, the nodes' own Python is used.")] = ""
    build: Annotated[Build | None, Field(description="How `everstep build` makes the image.")] = None
    setup: Annotated[Texts, Field(description="Shell lines that each node runs before its agent: module load, …")] = ()
    workdir: Annotated[Text, Field(description="The code: sent to the nodes, and where workers start.")] = "."
    ignore: Annotated[Text, Field(description="File that lists what not to send, like a .gitignore.")] = (
        ".everstepignore"
    )
    volumes: Annotated[
        tuple[Annotated[Volume, _shorthand(_parse_volume, str | Volume)], ...],
        Field(description="Files mounted into the job: SOURCE:TARGET[:ro]."),
    ] = ()
    checkpoint: Annotated[
        Checkpoint,
        _shorthand(lambda uri: {"uri": uri}, str | Checkpoint),
        Field(description="Where checkpoints go; the URI alone, or more."),
    ] = Checkpoint()
    restarts: Annotated[
        int, Field(ge=0, description="Replace at most this many workers in the whole job. Lost nodes do not count.")
    ] = 3
    time_limit: Annotated[Duration | None, Field(description="Of the whole job: 1h30m, 1:30:00.")] = None
    elastic: Annotated[Elastic, Field(description="How membership changes.")] = Elastic()
    health: Annotated[HealthSection, Field(description="Detection of lost and hanging workers.")] = HealthSection()
    shards: Annotated[ShardsSection, Field(description="Leased data.")] = ShardsSection()
    seed: Annotated[int, Field(ge=0, description="Of random streams, for scripts that ask the job.")] = 0
    hyperparameters: Annotated[Json, Field(description="For scripts that ask the job.")] = Field(default_factory=dict)
    data: Annotated[Json, Field(description="Anything else for scripts that ask the job.")] = Field(
        default_factory=dict
    )
    searcher: Annotated[
        Searcher | None,
        _shorthand(lambda name: {"name": name}, str | Searcher),
        Field(description="Which hyperparameters are tried; a name, or more."),
    ] = None
    labels: Annotated[dict[str, Text], Field(description="On what is submitted, where the platform has them.")] = Field(
        default_factory=dict
    )
    platform: Annotated[
        Platforms,
        _shorthand(lambda name: {"name": name}, str | Platforms),
        Field(description="Where to run: a name, or options of one platform or several."),
    ] = Platforms()

    @model_validator(mode="after")
    def _fits_together(self) -> Job:
        if both := sorted(self.env.keys() & self.secrets.keys()):
            raise refusal(
                f"{both[0]} is in env and in secrets", "remove one of them", code="variable-in-env-and-secrets"
            )
        targets = [volume.target.rstrip("/") for volume in self.volumes]
        if twice := next((target for target in targets if targets.count(target) > 1), None):
            raise refusal(f"two volumes at {twice}", "each needs a target of its own", code="volume-target-twice")
        if (
            self.elastic.min_workers
            and self.elastic.max_workers
            and self.elastic.min_workers > self.elastic.max_workers
        ):
            raise refusal(
                f"elastic: from {self.elastic.min_workers} to {self.elastic.max_workers} workers",
                "min_workers is max_workers or less",
                code="workers-min-above-max",
            )
        return self

    @property
    def entry(self) -> Entrypoint:
        """As `everstep run` takes it."""
        return entry_of(self.entrypoint, self.args)

    @property
    def title(self) -> str:
        """The job's name, or one made of what it runs."""
        return self.name or PurePosixPath(self.entry.script).stem or "job"

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
