"""A fit in a search's trial: train to a target, report, ask, and continue in the same process, stop, or leave.

Rank 0 talks to the search. All workers gather its answers between two steps and decide together. If rank 0 is lost, the
next one repeats its calls. The last report is part of the state, so a trial that continues from a checkpoint first
repeats that report, in case it did not arrive. A result is reported once the checkpoint of its batch is durable, so the
search never knows of a result that the trial cannot continue from.

While the search waits for other trials, all workers wait too: in short rounds, so that each notices when it is asked to
leave, and none seems to hang. If only some are asked to leave, the others wait on without them."""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from everstep.engine.step import Engine
from everstep.errors import UsageError
from everstep.native.digest import weights_digest
from everstep.pytorch.config_lengths import UNITS
from everstep.pytorch.fit_plan import UNBOUNDED
from everstep.pytorch.progress import TrialProgress
from everstep.pytorch.train_units import TrainUnit
from everstep.record.trial import PARK, STOP, TRAIN, WAIT, SearchCalls, TrialFacts, plain
from everstep.record.trial_result import read_result
from everstep.wire.trials import TrialResult

log = logging.getLogger("everstep")

MOST_DIGEST_BYTES = 4 << 30  # of weights; a digest of more would take too long at each validation
Gather = Callable[[str, Any], list[Any]]


class TrialSearch:
    """For one fit, on one worker. `gather(name, value)`: the values of all workers. `await_known()`: wait until the
    coordinator knows all checkpoints."""

    def __init__(
        self,
        facts: TrialFacts,
        calls: SearchCalls,
        engine: Engine,
        progress: TrialProgress,
        gather: Gather,
        await_known: Callable[[], None],
        *,
        bound: TrainUnit,
    ) -> None:
        self._facts, self._calls, self._engine, self._progress = facts, calls, engine, progress
        self._gather, self._await_known, self._bound = gather, await_known, bound
        self.is_parked = False  # all workers leave: the trial continues later

    @property
    def target(self) -> TrainUnit | None:
        """None: the end of the script, or reached by a metric that only a validation tells."""
        length, unit = self._progress.target_length, UNITS.get(self._facts.unit)
        return None if length is None or unit is None else unit(max(1, length))

    def result(self, metrics: Mapping[str, float], models: Sequence[nn.Module], *, is_planned: bool) -> dict[str, Any]:
        """Of a validation; plain, as a part of the state."""
        facts, now = self._facts, self._progress.now
        counted = int(getattr(now, facts.unit)) if facts.unit in UNITS else None
        length, metric = read_result(metrics, metric=facts.metric, unit=facts.unit, counted=counted)
        told = {"length": length, "metric": metric, "batches": now.batches, "digest": models_digest(models)}
        return {**told, "is_planned": is_planned}

    # --- what all workers do together ---------------------------------------------------------------------

    def begin(self, number: int) -> str:
        """Begin the `number`th fit: repeat the last report, in case it did not arrive, and ask how long to train.
        Returns the reason if there is nothing to train now."""
        if self._progress.result is not None and (reason := self._report(f"fit {number}")):
            return reason
        return self._take_target(f"fit {number}")

    def validated(self, *, is_halt: bool, is_target: bool, is_end: bool) -> str:
        """Report it; at a target also ask how to continue. Returns the reason if the fit ends here.

        is_halt: the state was saved."""
        if is_halt:
            self._await_known()
        if reason := self._report("batch"):
            return reason
        return self._take_target("batch") if is_target and not is_end else ""

    def _report(self, stage: str) -> str:
        result = self._progress.result
        assert result is not None
        message = TrialResult(**result)
        for number in itertools.count():
            wish = self._calls.report_result(message).wish if self._is_speaker else None
            said = [each for each in self._gather(f"{stage}: result {number}", wish) if each is not None]
            if said:
                return self._stop("") if said[0] == STOP else ""
        raise AssertionError("unreachable")

    def _take_target(self, stage: str) -> str:
        progress, regrouping = self._progress, self._engine.regrouping
        seen = progress.target if progress.is_at_target else max(0, progress.target - 1)
        was_asked = False
        for number in itertools.count():
            answer = self._ask(seen, was_asked=was_asked)
            was_asked = regrouping.is_asked_to_leave
            said = self._gather(f"{stage}: target {seen} {number}", [was_asked, answer])
            if all(is_asked for is_asked, _ in said):
                return self._park("all workers were asked to leave")
            answers: list[Any] = [each for _, each in said if each is not None]
            target, wish, length, reason = answers[0] if answers else (seen, WAIT, None, "")
            if wish == STOP:
                return self._stop(reason)
            if wish == PARK:
                return self._park(reason)
            if wish == TRAIN:
                self._train_to(target, length)
                return ""
            if any(is_asked for is_asked, _ in said):  # the trial shrinks while it waits
                regrouping.part(is_leaver=was_asked)
        raise AssertionError("unreachable")

    def _ask(self, seen: int, *, was_asked: bool) -> list[Any] | None:
        """Waits a few seconds, or until this worker is asked to leave; then all workers hear of it first."""
        regrouping = self._engine.regrouping
        if not self._is_speaker or (regrouping.is_asked_to_leave and not was_asked):
            return None
        target = self._calls.target(seen, lambda: regrouping.is_asked_to_leave and not was_asked)
        return None if target is None else plain(target)

    @property
    def _is_speaker(self) -> bool:
        return self._engine.regrouping.agreeing[0] == 0

    def _train_to(self, number: int, length: int | None) -> None:
        if length is None and self._bound == UNBOUNDED:
            raise UsageError(
                "fit() has no max_length, and the search sets no length",
                hint="set max_length in fit() or in the experiment's searcher",
                code="max-length-missing",
            )
        self._progress.target, self._progress.target_length = number, length
        log.info("target %d: %s", number, "the end of the script" if length is None else f"{length} {self._facts.unit}")

    def _stop(self, reason: str) -> str:
        self._progress.is_over = True
        return f"stopped by the search{reason and ': '}{reason}"

    def _park(self, reason: str) -> str:
        """Every worker leaves as if it was asked to: the job is not finished, and the state is saved."""
        self.is_parked = True
        self._engine.regrouping.request_leave()
        return f"parked{reason and ': '}{reason}"


def models_digest(models: Sequence[nn.Module]) -> str:
    """SHA-256 of all weights, the same on all workers; "" if there are too many."""
    tensors = [tensor for model in models for tensor in model.state_dict().values()]
    if sum(tensor.nbytes for tensor in tensors if hasattr(tensor, "nbytes")) > MOST_DIGEST_BYTES:
        return ""
    digests = [weights_digest(model) for model in models]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
