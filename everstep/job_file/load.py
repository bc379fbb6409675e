"""Any job file, or a command line of ElasticDL, to a `Job`; with notes on what was not carried over.

Keys that only one system has identify its files. Any other file is native, and every key is checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from everstep.errors import UsageError
from everstep.job_file import ads, determined, elasticdl, elasticjob, overrides
from everstep.job_file.draft import Draft
from everstep.job_file.problems import problems_of, usage_error
from everstep.job_file.schema import TEXT_PATHS, Job
from everstep.job_file.tree import Tree, dump, parse_mapping, planted, read_text

NATIVE = "Everstep"


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    job: Job
    system: str  # whose file it was
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _System:
    name: str
    is_theirs: Callable[[Tree], bool]
    read: Callable[[Draft], None]
    read_trial: Callable[[Draft], None] | None = None  # None: its files never describe an experiment


_SYSTEMS = (
    _System(name="ADS", is_theirs=ads.is_ads, read=ads.read),
    _System(name="DLRover", is_theirs=elasticjob.is_elasticjob, read=elasticjob.read),
    _System(
        name="Determined",
        is_theirs=determined.is_determined,
        read=determined.read,
        read_trial=determined.read_trial,
    ),
)


def load_file(path: Path, changes: Sequence[str] = ()) -> Loaded:
    """`changes` are those of `--set`, of the native form."""
    return load(read_text(path), changes, name=str(path))


def load(text: str, changes: Sequence[str] = (), *, name: str = "job file") -> Loaded:
    tree = parse_mapping(text, name=name)
    if (system := _system_of(tree)) is not None:
        draft = Draft(tree, name=name)
        system.read(draft)
        return _converted(draft, system, changes)
    return _native(tree, changes, name)


def load_trial(tree: Tree, *, name: str) -> Loaded:
    """A trial of the experiment that the file describes, as a job."""
    system = _system_of(tree)
    if system is None:
        return _native(tree, (), name)
    if system.read_trial is None:
        message = f"{name}: a file of {system.name} is not an experiment"
        raise UsageError(message, hint="`everstep run -f` runs it as a job", code="not-an-experiment")
    draft = Draft(tree, name=name)
    system.read_trial(draft)
    return _converted(draft, system, ())


def _system_of(tree: Tree) -> _System | None:
    return next((each for each in _SYSTEMS if each.is_theirs(tree)), None)


def _native(tree: Tree, changes: Sequence[str], name: str) -> Loaded:
    if (kind := tree.at("kind")) is not None:
        raise UsageError(
            f"{name}:{kind.line}: kind: {kind.text} is not supported",
            hint="ADS's `kind: distributed` and DLRover's ElasticJob are; a job file of Everstep has no kind",
            code="job-file-kind-unknown",
        )
    job = _validated(overrides.apply(tree, changes), name)
    return Loaded(job=job, system=NATIVE, notes=tuple(_remarks(job)))


def load_command(words: Sequence[str], changes: Sequence[str] = ()) -> Loaded:
    """A command line of another system: `elasticdl train …`."""
    if not elasticdl.is_elasticdl(words):
        message = f"{words[0] if words else 'nothing'}: not a supported command"
        raise UsageError(message, hint="elasticdl train …", code="command-unknown")
    system = _System(name="ElasticDL", is_theirs=lambda _: True, read=elasticdl.read)
    draft = Draft(elasticdl.tree_of(words), name="elasticdl train")
    system.read(draft)
    return _converted(draft, system, changes)


def to_yaml(job: Job) -> str:
    """The native form. Reads back as the same job, but for literal secrets, which are masked."""
    return dump(job.dump())


def json_schema() -> dict[str, Any]:
    schema = Job.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Job file of Everstep"}


def _converted(draft: Draft, system: _System, changes: Sequence[str]) -> Loaded:
    job = _validated(overrides.apply(planted(draft.data), changes), f"{draft.name}, as converted")
    return Loaded(job=job, system=system.name, notes=(*draft.notes(), *_remarks(job)))


def _validated(tree: Tree, name: str) -> Job:
    try:
        return Job.model_validate(tree.plain(TEXT_PATHS))
    except ValidationError as error:
        # Not pydantic's own text: it shows the input, which may be a secret.
        raise usage_error(problems_of(error, tree, Job), name=name) from None


def _remarks(job: Job) -> list[str]:
    return [
        f"secrets.{name} is in the file itself; env:NAME or file:PATH keeps it out"
        for name, secret in job.secrets.items()
        if secret.is_value
    ]
