"""Reads an experiment's file, Determined's or ours: what the coordinator needs in order to run its trials.

The caller adds what the file does not contain: the request and the code. Changes (`--config`) are applied to the file
before it is read, and are part of the stored text, so that it can be read again. Neither the specification nor that
text has the values of secrets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from everstep import wire
from everstep.errors import UsageError
from everstep.job_file import arg_templates, overrides
from everstep.job_file.load import NATIVE, Loaded, load_trial
from everstep.job_file.order import NodeOrder, experiment_of, given_settings, order_of
from everstep.job_file.schema import TEXT_PATHS, Job, Nodes
from everstep.job_file.search_sections import SearchSections, sections_of
from everstep.job_file.secret import parse_secret
from everstep.job_file.tree import Tree, dump, parse_mapping, planted, read_text, replaced

MAX_RESTARTS = 5  # of a trial, unless the file says otherwise: Determined's default
_PLACE = "a trial runs on a slot of the pool, with the Python and environment of the pool's agent"
# For jobs, not for trials: the machines of the pool are already running.
_OF_JOBS = (
    *("nodes", "workers_per_node", "image", "build", "volumes", "platform", "coordinator", "elastic"),
    "health.check",  # the pool has checked its nodes
    *("resources.cpu", "resources.memory", "resources.limits", "resources.gpu", "resources.gpu_type", "resources.shm"),
)
_SECRET_WORDS = ("secret", "password", "token", "access_key", "connection_string", "credential")


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedExperiment:
    spec: wire.ExperimentSpec
    job: Job  # of a trial: its workdir, and what is not packed with the code
    system: str  # whose file it was
    notes: tuple[str, ...]  # what its author should know


def read_experiment(
    path: Path | None, changes: Sequence[str] = (), *, content: Mapping[str, Any] | None = None
) -> wire.ExperimentSpec:
    """Without `request`, `order["code"]` and `order["workdir"]`. `content`: instead of a file."""
    return load_experiment(path, changes, content=content).spec


def load_experiment(
    path: Path | None,
    changes: Sequence[str] = (),
    *,
    content: Mapping[str, Any] | None = None,
    has_own_pool: bool = False,
) -> LoadedExperiment:
    """`has_own_pool`: its pool is made for it, by what the file says of machines."""
    name, written = _source(path, content)
    tree = planted(content) if path is None else parse_mapping(written, name=name)
    tree = overrides.apply(tree, changes, option=overrides.CONFIG)
    search = sections_of(tree, name=name)
    loaded = load_trial(tree, name=name)
    is_relative = _is_relative(loaded.job.checkpoint.uri)
    if is_relative:
        loaded, tree = _with_storage(loaded), _with_whole_path(tree, _base(loaded.job))
    _check_slots(loaded.job, search, name)
    safe = _without_secrets(tree)
    has_secrets = safe != tree
    notes = (
        *loaded.notes,
        *search.space.notes,
        *(() if has_own_pool else _unused(loaded.job)),
        *_secret_notes(loaded.job),
    )
    if has_secrets:
        notes = (*notes, "the file contains secrets; the coordinator gets its text without them")
    is_changed = has_secrets or is_relative or bool(changes)
    spec = _spec(loaded, search, safe, dump(safe.plain(TEXT_PATHS)) if is_changed else written)
    if spec.searcher.get("name") != "custom":  # its program chooses the hyperparameters
        arg_templates.check(spec.order.get("args", ()), spec.hyperparameters)
    for problem in spec.problems():
        raise UsageError(f"{name}: {problem}", hint="see docs/experiments.md", code="experiment-file-invalid")
    return LoadedExperiment(spec=spec, job=loaded.job, system=loaded.system, notes=notes)


def _source(path: Path | None, content: Mapping[str, Any] | None) -> tuple[str, str]:
    """A name for messages, and the text."""
    if path is not None:
        return str(path), read_text(path)
    if content is None:
        message = "neither an experiment file nor its content was given"
        raise UsageError(message, hint="pass the path of the file", code="experiment-file-missing")
    return "config", dump(dict(content))


def _with_storage(loaded: Loaded) -> Loaded:
    """A relative path means a folder beside the code, as in a job; trials run elsewhere."""
    job, uri = loaded.job, loaded.job.checkpoint.uri
    full = str(_base(job) / uri)
    checkpoint = job.checkpoint.model_copy(update={"uri": full})
    note = f"checkpoint: {uri} means {full} on each machine of the pool"
    return replace(loaded, job=job.model_copy(update={"checkpoint": checkpoint}), notes=(*loaded.notes, note))


def _is_relative(uri: str) -> bool:
    return bool(uri) and "://" not in uri and not uri.startswith("/")


def _base(job: Job) -> Path:
    return Path(job.workdir).expanduser().resolve()


def _with_whole_path(tree: Tree, base: Path) -> Tree:
    """The text is read again, in another folder, when the experiment is forked."""
    parts = (("checkpoint_storage", key) for key in ("host_path", "container_path", "storage_path"))
    first = next((path for path in parts if tree.at(*path) is not None), ())  # the others are below it
    for path in (("checkpoint",), ("checkpoint", "uri"), ("checkpoint_storage",), first):
        found = tree.at(*path)
        if found is not None and found.is_scalar and _is_relative(found.text):
            tree = replaced(tree, path, planted(str(base / found.text)))
    return tree


def _spec(loaded: Loaded, search: SearchSections, tree: Tree, written: str) -> wire.ExperimentSpec:
    job, config = loaded.job, search.config
    return wire.ExperimentSpec(
        request="",
        name=job.title,
        description=job.description,
        labels=[f"{name}={value}" if value else name for name, value in job.labels.items()],
        notes=job.notes,
        searcher=search.searcher,
        hyperparameters=search.hyperparameters,
        seed=job.seed,
        num_micro_batches=search.num_micro_batches,
        min_slots=job.resources.min_slots or 1,
        max_slots=search.num_micro_batches,
        scheduling=_scheduling(job),
        max_restarts=_max_restarts(job),
        policy=_policy(job),
        kept=_kept(job),
        order=_order(job),
        config=_config(loaded, search, tree),
        written=written,
        source_trial_id=config.source_trial_id or 0,
        source_checkpoint_uuid=config.source_checkpoint_uuid or "",
    )


def _max_restarts(job: Job) -> int:
    return job.restarts if "restarts" in job.model_fields_set else MAX_RESTARTS


def _scheduling(job: Job) -> wire.Scheduling:
    """How the experiment shares its pool; what the file leaves out has its default."""
    asked = job.resources
    given = {
        "pool": asked.pool or None,
        "priority": asked.priority,
        "weight": asked.weight,
        "max_slots": asked.max_slots,
        "preemption_timeout_s": asked.preemption_timeout,
        "time_limit_s": job.time_limit,
    }
    return wire.Scheduling(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


def _kept(job: Job) -> wire.CheckpointsKept:
    asked = {
        "experiment_best": job.checkpoint.keep_experiment_best,
        "trial_best": job.checkpoint.keep_best,
        "trial_latest": job.checkpoint.keep_latest,
    }
    return wire.CheckpointsKept(**{name: number for name, number in asked.items() if number is not None})


def _order(job: Job) -> dict[str, Any]:
    """One worker on one node, whatever the file asks for as a job."""
    alone = job.model_copy(
        update={
            "nodes": Nodes(),
            "workers_per_node": 1,
            "resources": job.resources.model_copy(update={"gpu": 0}),
            "time_limit": None,
        }
    )
    order = asdict(order_of(alone, ""))
    grace_s = max(order["grace_s"], job.resources.preemption_timeout or 0.0)  # else its node would kill it before
    order.update(grace_s=grace_s, policy={}, experiment={}, wants_check=False, record_to="")
    short = {name: value for name, value in order.items() if value != _EMPTY.get(name)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in short.items() if name != "job"}


_EMPTY = asdict(NodeOrder(job="", name="", script=""))


def _policy(job: Job) -> wire.Policy:
    """Of each trial's job. The pool decides what belongs to `elastic`."""
    return wire.Policy(**given_settings(job.health, job.shards, job.logs, job.metrics))


def _config(loaded: Loaded, search: SearchSections, tree: Tree) -> dict[str, Any]:
    """In Determined's form, as scripts expect it; for another file, with all of its keys."""
    job = loaded.job
    told = experiment_of(job)
    whole = tree.plain() if loaded.system != NATIVE else job.dump()
    whole.pop("secrets", None)
    if "checkpoint_storage" in told:
        whole["checkpoint_storage"] = told["checkpoint_storage"]
    resources = {**(whole.get("resources") or {}), "slots_per_trial": search.num_micro_batches}
    return {
        **told,
        **{key: value for key, value in whole.items() if value is not None},
        "resources": resources,
        "searcher": search.searcher,
        "hyperparameters": search.hyperparameters,
        "labels": list(job.labels),
        "max_restarts": _max_restarts(job),
    }


# --- what is not used, and what is not sent ---------------------------------------------------------


def _check_slots(job: Job, search: SearchSections, name: str) -> None:
    least, most = job.resources.min_slots or 1, search.num_micro_batches
    if least > most:
        raise UsageError(
            f"{name}: resources.min_slots: {least} is more than slots_per_trial: {most}",
            hint="a trial uses at most slots_per_trial slots; leave min_slots out to train on any number",
            code="min-slots-above-most",
        )


def _unused(job: Job) -> Iterator[str]:
    for path in _OF_JOBS:
        section, given = job, True
        for key in path.split("."):
            given = given and key in section.model_fields_set
            section = getattr(section, key)
        if given:
            yield f"{path} is not used: {_PLACE}"


def _secret_notes(job: Job) -> Iterator[str]:
    for name, secret in job.secrets.items():
        if secret.kind not in ("value", "env", "file"):
            yield f"secrets.{name}: {secret} is not read here; set it in the environment of the pool's agents"


def _without_secrets(tree: Tree, path: tuple[str, ...] = ()) -> Tree:
    """Without the values that are secrets by their place and name."""
    if not isinstance(tree.value, dict):
        return tree
    kept = {
        key: _without_secrets(each, (*path, key))
        for key, each in tree.value.items()
        if not _is_secret((*path, key), each)
    }
    return replace(tree, value=kept)


def _is_secret(path: tuple[str, ...], tree: Tree) -> bool:
    if path[0] == "secrets":
        return len(path) == 2 and tree.is_scalar and parse_secret(tree.text or None).is_value
    is_storage = path[0] == "checkpoint_storage" and any(word in path[-1] for word in _SECRET_WORDS)
    return path == ("environment", "registry_auth") or is_storage
