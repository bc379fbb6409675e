"""Reads an experiment's file, Determined's or ours: what the coordinator needs in order to run its trials.

The caller adds what the file does not say: the request, and the code. Changes (`--config`) are made to the file as it
is, before it is read; the text that is kept has them, so that it can be read again. Secrets do not leave this machine:
neither their values nor the lines that hold them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from everstep import wire
from everstep.errors import UsageError
from everstep.job_file import overrides
from everstep.job_file.load import NATIVE, Loaded, load_trial, parse_mapping, read_text
from everstep.job_file.order import NodeOrder, experiment_of, order_of
from everstep.job_file.schema import TEXT_PATHS, Job, Nodes
from everstep.job_file.search_sections import SearchSections, sections_of
from everstep.job_file.secret import parse_secret
from everstep.job_file.tree import Tree, dump, planted

MAX_RESTARTS = 5  # of a trial, unless the file says otherwise: Determined's default
_PLACE = "a trial runs on a slot of the pool, in its agent's Python and environment"
# Of a job, and not of a trial: the machines of the pool are there already.
_OF_JOBS = (
    *("nodes", "workers_per_node", "image", "build", "volumes", "platform", "coordinator", "time_limit"),
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
    path: Path | None, changes: Sequence[str] = (), *, content: Mapping[str, Any] | None = None
) -> LoadedExperiment:
    name, written = _source(path, content)
    tree = planted(content) if path is None else parse_mapping(written, name=name)
    tree = overrides.apply(tree, changes)
    search = sections_of(tree, name=name)
    loaded = _with_storage(load_trial(tree, name=name))
    _check_slots(loaded.job, name)
    safe = _without_secrets(tree)
    has_secrets = safe != tree
    notes = (*loaded.notes, *_unused(loaded.job), *_secret_notes(loaded.job))
    if has_secrets:
        notes = (*notes, "the file holds secrets: the coordinator gets its text without them")
    is_changed = has_secrets or bool(changes)
    spec = _spec(loaded, search, safe, dump(safe.plain(TEXT_PATHS)) if is_changed else written)
    for problem in spec.problems():
        raise UsageError(f"{name}: {problem}", hint="see docs/experiments.md", code="experiment-file-invalid")
    return LoadedExperiment(spec=spec, job=loaded.job, system=loaded.system, notes=notes)


def _source(path: Path | None, content: Mapping[str, Any] | None) -> tuple[str, str]:
    """A name for messages, and the text."""
    if path is not None:
        return str(path), read_text(path)
    if content is None:
        message = "neither a file nor its content"
        raise UsageError(message, hint="the path of an experiment's file", code="experiment-file-missing")
    return "config", dump(dict(content))


def _with_storage(loaded: Loaded) -> Loaded:
    """A relative path means a folder beside the code, as in a job; trials run elsewhere."""
    job, uri = loaded.job, loaded.job.checkpoint.uri
    if not uri or "://" in uri or uri.startswith("/"):
        return loaded
    full = str(Path(job.workdir).expanduser().resolve() / uri)
    checkpoint = job.checkpoint.model_copy(update={"uri": full})
    note = f"checkpoint: {uri} is {full}, on each machine of the pool"
    return replace(loaded, job=job.model_copy(update={"checkpoint": checkpoint}), notes=(*loaded.notes, note))


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
        max_slots=search.num_micro_batches,
        max_restarts=_max_restarts(job),
        kept=_kept(job),
        order=_order(job),
        config=_config(loaded, search, tree),
        written=written,
        source_trial_id=config.source_trial_id or 0,
        source_checkpoint_uuid=config.source_checkpoint_uuid or "",
    )


def _max_restarts(job: Job) -> int:
    return job.restarts if "restarts" in job.model_fields_set else MAX_RESTARTS


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
    order.update(policy=_policy(job), experiment={}, wants_check=False, record_to="")
    short = {name: value for name, value in order.items() if value != _EMPTY.get(name)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in short.items() if name != "job"}


_EMPTY = asdict(NodeOrder(job="", name="", script=""))


def _policy(job: Job) -> dict[str, Any]:
    """The settings that the file gives. Restarts are counted by the experiment, not by the job."""
    sections = (job.elastic, job.health, job.shards, job.logs, job.metrics)
    given = {name: value for each in sections for name, value in each.model_dump(exclude_none=True).items()}
    given.pop("check", None)  # not of the policy
    most = max(1, job.resources.slots_per_trial or 1)
    return {**given, "min_workers": 1, "max_workers": most, "start_workers": 1, "max_restarts": 0}


def _config(loaded: Loaded, search: SearchSections, tree: Tree) -> dict[str, Any]:
    """In Determined's shape, as scripts expect it; of another file, with all that it says."""
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


def _check_slots(job: Job, name: str) -> None:
    least = job.resources.min_slots or 1
    if least > 1:
        raise UsageError(
            f"{name}: resources.min_slots: {least}: so far, a trial trains on one slot",
            hint="leave it out: the result is the same on any number of slots",
            code="min-slots-unsupported",
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
    for name in job.secrets:
        yield f"secrets.{name} is not sent: the pool's agents need it in their environment"


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
