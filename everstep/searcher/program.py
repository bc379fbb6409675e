"""A search method between two posts: events in, operations out, and its whole state as one text.

Pure, except for what the method itself does. The coordinator stores the text together with the operations, so a
restarted program continues from the same moment, wherever it died."""

from __future__ import annotations

import base64
import io
import json
import math
import tempfile
import uuid
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from everstep import wire
from everstep.errors import UsageError
from everstep.search.custom import LengthsAsked
from everstep.search.program_operations import CREATE, SHUTDOWN, VALIDATE_AFTER
from everstep.searcher.operations import Progress, SearcherOperation
from everstep.searcher.search_method import ExitedReason, SearcherState, SearchMethod
from everstep.wire.experiments import MOST_STATE


@dataclass(kw_only=True, slots=True)
class _FollowedTrial:
    request_id: uuid.UUID
    asked: LengthsAsked = field(default_factory=LengthsAsked)


class Program:
    def __init__(self, method: SearchMethod, experiment: int) -> None:
        self.method, self.experiment = method, experiment
        self.state = SearcherState(experiment_id=experiment)
        self.is_changed = False  # since the last text
        self._trials: list[_FollowedTrial] = []  # trial n is at n - 1
        self._is_shut_down = False
        self._progress = -1.0

    # --- events

    def handle(self, row: wire.SearchEventView) -> list[SearcherOperation]:
        """The method's operations after an event. Some events call no handler."""
        operations: list[SearcherOperation] = []
        for answer in self._answers(row.event):
            self.is_changed = True
            operations += answer
        self.state.last_event_id = row.number
        return operations

    def progress(self) -> list[SearcherOperation]:
        """The method's progress as an operation, if it has changed."""
        progress = float(self.method.progress(self.state))
        if progress == self._progress:
            return []
        self._progress = progress
        return [Progress(progress)]

    def _answers(self, event: Mapping[str, Any]) -> Iterable[list[SearcherOperation]]:
        """Each list comes from one of the method's handlers."""
        kind = event["kind"]
        if kind == "began":
            yield self.method.initial_operations(self.state)
        elif kind == "programmed":
            yield from self._note_own(event["operations"])
        elif kind == "validated":
            trial = self._trials[event["trial"] - 1]
            trial.asked.report(event["length"], event["metric"])
            self.state.trial_progress[trial.request_id] = float(trial.asked.past)
            yield from self._note_answered(trial)
        elif kind == "ended":
            yield from self._note_ended(self._trials[event["trial"] - 1], event["why"])

    def _note_own(self, operations: Iterable[Mapping[str, Any]]) -> Iterable[list[SearcherOperation]]:
        """Note that the operations of a post were carried out."""
        by_id = {str(trial.request_id): trial for trial in self._trials}
        for each in operations:
            if self._is_shut_down:
                return
            self._is_shut_down = each["kind"] == SHUTDOWN
            if each["kind"] == CREATE:
                trial = by_id[each["request_id"]] = _FollowedTrial(request_id=uuid.UUID(each["request_id"]))
                self._trials.append(trial)
                self.state.trials_created.add(trial.request_id)
                self.state.trial_progress[trial.request_id] = 0.0
                yield self.method.on_trial_created(self.state, trial.request_id)
            elif "request_id" in each:
                trial = by_id[each["request_id"]]
                if each["kind"] == VALIDATE_AFTER:
                    trial.asked.ask(each["length"])
                    yield from self._note_answered(trial)
                else:
                    trial.asked.is_closing = True

    def _note_answered(self, trial: _FollowedTrial) -> Iterable[list[SearcherOperation]]:
        metric = math.nan if trial.asked.metric is None else trial.asked.metric
        for length in trial.asked.take_answered():
            yield self.method.on_validation_completed(self.state, trial.request_id, metric, length)

    def _note_ended(self, trial: _FollowedTrial, why: str | None) -> Iterable[list[SearcherOperation]]:
        """Note the end of a trial. As in Determined, a trial that exits early is closed as well."""
        if why is not None:
            reason = ExitedReason(why)
            if reason is ExitedReason.INVALID_HP:
                self.state.trial_progress.pop(trial.request_id, None)
            elif reason is ExitedReason.ERRORED:
                self.state.failures.add(trial.request_id)
            yield self.method.on_trial_exited_early(self.state, trial.request_id, reason)
        self.state.trials_closed.add(trial.request_id)
        yield self.method.on_trial_closed(self.state, trial.request_id)

    # --- state

    def save(self, folder: Path) -> str:
        """Everything as one text. The method writes its own state into this new folder. No two texts are equal."""
        folder.mkdir()
        self.method.save(self.state, folder, experiment_id=self.experiment)
        trials = [{**asdict(each), "request_id": str(each.request_id)} for each in self._trials]
        plain = {
            "post": uuid.uuid4().hex,
            "trials": trials,
            "is_shut_down": self._is_shut_down,
            "progress": self._progress,
            "files": _packed(folder),
        }
        text = json.dumps(plain)
        if len(text) > MOST_STATE:
            raise UsageError(
                f"the search method's state has {len(text)} characters when packed, more than {MOST_STATE}",
                hint="make save_method_state write less: leave out what can be computed again",
                code="search-program-state",
            )
        self.is_changed = False
        return text

    def load(self, text: str) -> None:
        """Restore what `save` returned; "": nothing is stored yet."""
        if not text:
            return
        plain = json.loads(text)
        self._trials = [
            _FollowedTrial(request_id=uuid.UUID(each["request_id"]), asked=LengthsAsked(**each["asked"]))
            for each in plain["trials"]
        ]
        self._is_shut_down, self._progress = plain["is_shut_down"], plain["progress"]
        with tempfile.TemporaryDirectory(prefix="everstep-search-") as folder:
            _unpack(plain["files"], Path(folder))
            self.state, _ = self.method.load(Path(folder))
        self.is_changed = False


def _packed(folder: Path) -> str:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder))
    return base64.b64encode(packed.getvalue()).decode()


def _unpack(text: str, folder: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(text))) as archive:
        archive.extractall(folder)
