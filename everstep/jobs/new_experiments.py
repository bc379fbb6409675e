"""What people do to have an experiment: create one, continue or fork another. For the command line, the Python client
and search programs.

Reads experiment files, which takes a moment to import: who only looks at experiments uses `experiments`."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from everstep import wire
from everstep.errors import UsageError
from everstep.job_file.experiment import load_experiment
from everstep.job_file.forked import as_fork, reread, with_code_of
from everstep.job_file.load import NATIVE
from everstep.job_file.secret import Secret
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.jobs.secret_values import private_files, resolve
from everstep.record.log_masks import LEAST_CHARS, too_short
from everstep.storage import code_archive
from everstep.storage.code_archive import Code
from everstep.wire.experiments import ACTIVE, ENDED, PAUSED

NO_SECRETS: Mapping[str, str] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedExperiment:
    """An experiment that is ready to be created."""

    spec: wire.ExperimentSpec
    code: Code
    notes: tuple[str, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)  # values


@dataclass(frozen=True, kw_only=True, slots=True)
class Created:
    view: wire.ExperimentView
    is_new: bool  # False: the same one, from before


# --- create -----------------------------------------------------------------------------------------


def prepare(
    file: Path | None,
    model_dir: Path | None,
    *,
    content: Mapping[str, Any] | None = None,
    below: str = "",
    changes: Sequence[str] = (),
    includes: Sequence[Path] = (),
    is_paused: bool = False,
    is_test: bool = False,
    has_own_pool: bool = False,
) -> PreparedExperiment:
    """Read the file or its content, and pack the code. The request is a new one. `below`: the text of a template.
    `has_own_pool`: what the file says of machines is used for its pool."""
    loaded = load_experiment(file, changes, content=content, below=below, has_own_pool=has_own_pool)
    spec = as_test(loaded.spec) if is_test else loaded.spec
    if model_dir is None and loaded.system == NATIVE:
        model_dir = Path(loaded.job.workdir).expanduser()
    secrets = resolve(loaded.job.secrets)
    code = pack(model_dir, includes, private_files(loaded.job.secrets, job_file=file))
    _check_script(spec, code, model_dir)
    order = {**spec.order, "code": code.sha256, "workdir": ""}
    spec = replace(spec, request=uuid.uuid4().hex, order=order, is_paused=is_paused)
    notes = (*loaded.notes, *_short_secrets(secrets))
    return PreparedExperiment(spec=spec, code=code, notes=notes, secrets=secrets)


def _short_secrets(secrets: Mapping[str, str]) -> Iterator[str]:
    if short := too_short(secrets.items()):
        yield f"secrets {', '.join(short)}: fewer than {LEAST_CHARS} characters cannot be masked in logs"


def pack(model_dir: Path | None, includes: Sequence[Path] = (), private: Sequence[Path] = ()) -> Code:
    """Without a folder: the included files alone. `private`: files that hold secrets, and stay here."""
    if model_dir is not None:
        return code_archive.pack(model_dir, includes=includes, private=private)
    with tempfile.TemporaryDirectory(prefix="everstep-") as empty:
        return code_archive.pack(Path(empty), includes=includes)


def _check_script(spec: wire.ExperimentSpec, code: Code, model_dir: Path | None) -> None:
    script = str(spec.order.get("script", ""))
    is_file = not (spec.order.get("is_module") or spec.order.get("is_program")) and not script.startswith("/")
    if is_file and script and str(Path(script)) not in code.files.taken:
        raise UsageError(
            f"the entrypoint {script} is not in {_place(model_dir, code)}",
            hint=_entrypoint_hint(script, code),
            code="entrypoint-not-in-code",
        )


def _place(model_dir: Path | None, code: Code) -> str:
    if model_dir is not None:
        return str(model_dir.resolve())
    return "the included files" if code.files.taken else "the code, which is empty"


def _entrypoint_hint(script: str, code: Code) -> str:
    if near := difflib.get_close_matches(script, code.files.taken, n=1):
        return f"did you mean {near[0]}?"
    return "add the folder that contains the entrypoint: everstep e create FILE FOLDER"


def as_test(spec: wire.ExperimentSpec) -> wire.ExperimentSpec:
    """Determined's test mode: one trial with one batch, one validation and one checkpoint."""
    kept: dict[str, Any] = {key: spec.searcher[key] for key in ("metric", "smaller_is_better") if key in spec.searcher}
    searcher: dict[str, Any] = {"name": "single", **kept, "max_length": {"batches": 1}}
    config = {**spec.config, "searcher": searcher, "test_mode": True}
    return replace(spec, searcher=searcher, config=config, max_restarts=0)


def create(link: CoordinatorLink, prepared: PreparedExperiment) -> wire.ExperimentView:
    upload(link, prepared.code)
    return begin(link, prepared.spec, prepared.secrets)


def upload(link: CoordinatorLink, code: Code) -> None:
    link(lambda coordinator: coordinator.upload_code(code.sha256, code.data))


def begin(
    link: CoordinatorLink, spec: wire.ExperimentSpec, secrets: Mapping[str, str] = NO_SECRETS
) -> wire.ExperimentView:
    """Create it; its code is there."""
    link.claim()
    told = {each.name: getattr(spec, each.name) for each in fields(wire.ExperimentSpec)}
    new = wire.NewExperiment(**told, secrets=dict(secrets))
    return link(lambda coordinator: coordinator.create_experiment(new))


def begin_or_continue(
    link: CoordinatorLink, spec: wire.ExperimentSpec, folder: Path, secrets: Mapping[str, str] = NO_SECRETS
) -> Created:
    """The experiment that the same file and code created in this folder, unless it is over or ends; else a new one."""
    digest, number = request_of(spec, folder), 0
    while True:
        began = time.time()
        view = begin(link, replace(spec, request=f"{digest}-{number}"), secrets)
        if view.state in (ACTIVE, PAUSED):
            return Created(view=view, is_new=view.created_at >= began)
        number += 1


def request_of(spec: wire.ExperimentSpec, folder: Path) -> str:
    """The same for the same file, code and folder."""
    told = {**asdict(spec), "request": "", "is_paused": False, "folder": str(folder.resolve())}
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:32]


# --- from an earlier one ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Fork:
    spec: wire.ExperimentSpec
    notes: tuple[str, ...] = ()  # about the changed file
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)  # values that this machine has


def fork_of(
    link: CoordinatorLink, experiment: int, changes: Sequence[str] = (), content: Mapping[str, Any] | None = None
) -> Fork:
    """A new experiment with the same file, except for the changes, and the same code. `content`: keys that replace
    those of the file."""
    old = link(lambda coordinator: coordinator.experiment_config(experiment))
    spec = old.spec
    notes: tuple[str, ...] = ()
    secrets: Mapping[str, Secret] = {}
    if wire.secret_names(spec.order) or changes or content is not None:
        new = reread(old.written or spec.written, experiment, changes, content)
        secrets = new.job.secrets
    if changes or content is not None:
        spec, notes = with_code_of(new.spec, spec), new.notes
    spec = as_fork(spec, experiment, uuid.uuid4().hex)
    known, missing = _known_secrets(wire.secret_names(spec.order), secrets)
    return Fork(spec=spec, notes=(*notes, *_inherited(missing, experiment)), secrets=known)


def _known_secrets(names: Sequence[str], secrets: Mapping[str, Secret]) -> tuple[dict[str, str], list[str]]:
    """The values that this machine has, and the names of the others. The values in the old file are not in its text."""
    known: dict[str, str] = {}
    for name in names:
        with contextlib.suppress(UsageError):
            known |= resolve({name: secrets[name]} if name in secrets else {})
    return known, [name for name in names if name not in known]


def _inherited(names: Sequence[str], experiment: int) -> Iterator[str]:
    for name in names:
        yield f"secrets.{name}: not set here; the value of experiment {experiment} is used if you may change that one"


def continued(
    link: CoordinatorLink, experiment: int, changes: Sequence[str] = (), content: Mapping[str, Any] | None = None
) -> tuple[Fork, wire.TrialView]:
    """A fork that starts with the weights of the best trial."""
    view = link(lambda coordinator: coordinator.experiment(experiment))
    if view.state not in ENDED:
        raise UsageError(
            f"experiment {experiment} is {view.state}, not over",
            hint=f"`everstep e activate {experiment}` continues it",
            code="experiment-not-over",
        )
    trial = best_trial(link, view)
    fork = fork_of(link, experiment, changes, content)
    spec = replace(fork.spec, source_trial_id=trial.trial_id, source_checkpoint_uuid="")
    return replace(fork, spec=spec), trial


def best_trial(link: CoordinatorLink, view: wire.ExperimentView) -> wire.TrialView:
    """The one with the best result; without any, the first."""
    number = view.best.trial if view.best is not None else 1
    return link(lambda coordinator: coordinator.trial(view.experiment, number))
