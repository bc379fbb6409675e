"""What a trial may take over from trials of the same training: the key of a training, and the decision. Pure.

Two trainings are the same if everything that their bits depend on is the same. Their results at each length are then
equal, so a search that takes them over makes the same decisions. A result that exists only because of a target of the
other search is taken over only if this trial has the same target: without reuse, it would not have that result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everstep import wire
from everstep.coordinator.experiments.facts import DELETED, CheckpointRecord, Trial
from everstep.coordinator.experiments.retention import best_first
from everstep.errors import Refused
from everstep.search.config import SearchConfig
from everstep.search.events import INVALID_HP

_ORDER = ("code", "workdir", "script", "args", "is_module", "is_program", "env", "setup")
# Keys of the file that no weight depends on, or that are in the key in another form. Everything else belongs to the
# key, since a script can read it.
_NOT_OF_THE_KEY = {
    *("name", "description", "labels", "notes", "workspace", "project", "searcher", "hyperparameters", "reuse", "seed"),
    *("resources", "reproducibility", "entrypoint", "args", "workdir", "env", "setup", "restarts", "max_restarts"),
    *("checkpoint", "checkpoint_storage", "checkpoint_policy", "min_checkpoint_period", "code", "preemption_timeout"),
    *("logs", "metrics", "profiling", "log_policies", "integrations", "webhooks", "tensorboard_storage"),
    *("retention_policy", "nodes", "workers_per_node", "grace_period", "platform", "coordinator", "time_limit"),
}


def is_wanted(spec: wire.ExperimentSpec) -> bool:
    return spec.config.get("reuse") is True and not spec.verifies


def check_reuse(spec: wire.ExperimentSpec) -> None:
    """Refuse `reuse` without a version of the data, before anything is stored."""
    data = spec.config.get("data")
    if is_wanted(spec) and (not isinstance(data, Mapping) or data.get("version") in (None, "")):
        text = "reuse without data.version: set data.version, and change it when the data changes"
        raise Refused(text, status=422, code="reuse-without-data-version")


def reuse_key(
    spec: wire.ExperimentSpec,
    config: SearchConfig,
    trial: Trial,
    *,
    begins_with: Mapping[str, Any],
    kind: str,
) -> str:
    """SHA-256 of everything that a training depends on. `begins_with`: the checkpoint of a warm start. `kind`: of
    machine and torch."""
    told = {
        "order": {name: spec.order.get(name) for name in _ORDER},
        "config": {name: value for name, value in spec.config.items() if name not in _NOT_OF_THE_KEY},
        "hparams": trial.hparams,
        "seed": trial.seed,
        "micro_batches": spec.num_micro_batches,
        "search": [config.metric, config.unit],
        "begins_with": begins_with.get("uuid", ""),
        "kind": kind,
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedBefore:
    """A trial with the same key, and what is known of it."""

    trial: Trial
    results: Mapping[int, wire.TrialResult]  # by length
    targets: Sequence[int | None] = ()
    checkpoints: Sequence[CheckpointRecord] = ()

    @property
    def longest(self) -> int:
        return max(self.results, default=0)

    @property
    def ended_by_itself(self) -> bool:
        """Its script ended well, regardless of the target."""
        trial = self.trial
        return trial.state == wire.COMPLETED and trial.wish == wire.TRAIN and trial.ending != INVALID_HP


@dataclass(frozen=True, kw_only=True, slots=True)
class Reuse:
    """What a trial takes over. With `is_over`, its script would end there. `checkpoint`: where it continues, if it must
    train; `borrowed`: checkpoints that it uses but did not save."""

    results: Sequence[wire.TrialResult] = ()
    is_over: bool = False
    checkpoint: CheckpointRecord | None = None
    borrowed: Sequence[CheckpointRecord] = ()
    source: str = ""  # the job
    length: int = 0  # up to which results are known
    unit: str = ""

    def noted(self, trial: Trial) -> Trial:
        """The trial, with the checkpoint that it takes over and a note of where it comes from."""
        if not (self.results or self.checkpoint):
            return trial
        used = [*self.borrowed, *([self.checkpoint] if self.checkpoint is not None else [])]
        told: dict[str, Any] = {
            "job": self.source,
            "length": max(self.length, trial.reused.get("length", 0)),
            "unit": self.unit,
            "checkpoints": sorted({each.uuid for each in used} | set(trial.reused.get("checkpoints", ()))),
        }
        if self.checkpoint is not None:
            told |= {"uuid": self.checkpoint.uuid, "uri": self.checkpoint.uri, "step": self.checkpoint.step}
        return replace(trial, reused=told)


def decide_reuse(trial: Trial, before: Sequence[TrainedBefore], config: SearchConfig) -> Reuse:
    """What the trial takes over up to its current target."""
    before = sorted(before, key=lambda each: (-each.longest, each.trial.trial_id))
    for each in before:
        if (found := _whole(trial, each)) is not None:
            return _with_source(found, each, config)
    for each in before:
        if (checkpoint := _newest(trial, each, config)) is not None:
            planned = [found for found in _planned(each) if 0 < found.batches <= checkpoint.step]
            return _with_source(Reuse(results=planned, checkpoint=checkpoint), each, config)
    return Reuse()


def _whole(trial: Trial, before: TrainedBefore) -> Reuse | None:
    """All results up to the target, if they are known."""
    target, known = trial.target, before.results
    if target is not None:
        at = target if target in known else None
        if (
            at is None and target in before.targets
        ):  # the script chooses where to validate: the first result past the target counts
            at = min((length for length in known if length >= target), default=None)
        if at is not None:
            return Reuse(results=[*(each for each in _planned(before) if each.length < at), known[at]])
    is_short = None in before.targets if target is None else before.longest < target
    if known and before.ended_by_itself and is_short:
        last = known[before.longest]
        return Reuse(results=[*(each for each in _planned(before) if each is not last), last], is_over=True)
    return None


def _planned(before: TrainedBefore) -> list[wire.TrialResult]:
    return [result for _, result in sorted(before.results.items()) if result.is_planned]


def _newest(trial: Trial, before: TrainedBefore, config: SearchConfig) -> CheckpointRecord | None:
    """The newest checkpoint below the target."""
    lengths = {result.batches: length for length, result in before.results.items() if result.batches}

    def is_below(each: CheckpointRecord) -> bool:
        length = each.step if config.unit == "batches" else lengths.get(each.step)
        return length is not None and (trial.target is None or length < trial.target)

    there = [each for each in before.checkpoints if each.state != DELETED and is_below(each)]
    return max(there, key=lambda each: (each.step, each.generation), default=None)


def _with_source(found: Reuse, before: TrainedBefore, config: SearchConfig) -> Reuse:
    length = max((each.length for each in found.results), default=0)
    return replace(
        found,
        source=before.trial.job,
        length=length,
        unit=config.unit,
        borrowed=_borrowed(found.results, before.checkpoints, smaller_is_better=config.smaller_is_better),
    )


def _borrowed(
    results: Iterable[wire.TrialResult], checkpoints: Iterable[CheckpointRecord], *, smaller_is_better: bool
) -> list[CheckpointRecord]:
    """The best and the newest of the checkpoints that belong to a result."""
    steps = {each.batches for each in results}
    there = [each for each in checkpoints if each.state != DELETED and each.step in steps]
    newest = sorted(there, key=lambda each: (each.step, each.generation))[-1:]
    best = best_first(there, smaller_is_better=smaller_is_better)[:1]
    return list({each.uuid: each for each in (*best, *newest)}.values())


def reused_text(reused: Mapping[str, Any]) -> str:
    """A sentence that says what was reused; "" if nothing was."""
    if not reused:
        return ""
    parts = [f"results of {reused['job']} reused up to {reused['length']} {reused['unit']}"] if reused["length"] else []
    if "step" in reused:
        parts.append(f"continued from batch {reused['step']} of {reused['job']}")
    return ", ".join(parts)
