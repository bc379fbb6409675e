"""A search method of one's own: operations as plain data, state that is read back."""

from __future__ import annotations

import json
import uuid

import pytest

from everstep.errors import UsageError
from everstep.searcher import (
    Close,
    Create,
    ExitedReason,
    Operation,
    Progress,
    SearcherState,
    SearchMethod,
    Shutdown,
    ValidateAfter,
)
from everstep.searcher.operations import from_plain

ID = uuid.UUID(int=7)


class BestOfThree(SearchMethod):
    """As a user of Determined's would write it."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}

    def initial_operations(self, searcher_state):
        ids = [uuid.UUID(int=number) for number in range(3)]
        return [each for trial in ids for each in (Create(trial, {"x": trial.int}, None), ValidateAfter(trial, 10))]

    def on_trial_created(self, searcher_state, request_id):
        return []

    def on_validation_completed(self, searcher_state, request_id, metric, train_length):
        self.metrics[str(request_id)] = metric
        return [Close(request_id)]

    def on_trial_closed(self, searcher_state, request_id):
        return [Shutdown()] if len(searcher_state.trials_closed) == 3 else [Progress(0.5)]

    def on_trial_exited_early(self, searcher_state, request_id, exited_reason):
        return [Shutdown(failure=True)] if exited_reason is ExitedReason.ERRORED else []

    def progress(self, searcher_state):
        return len(searcher_state.trials_closed) / 3

    def save_method_state(self, path):
        (path / "metrics.json").write_text(json.dumps(self.metrics))

    def load_method_state(self, path):
        self.metrics = json.loads((path / "metrics.json").read_text())


def test_a_method_goes_through_its_search():
    method, state, seen = BestOfThree(), SearcherState(), []
    queue = method.initial_operations(state)
    for operation in queue:
        assert isinstance(operation, Operation)
        seen.append(operation.kind)
        if isinstance(operation, Create):
            state.trials_created.add(operation.request_id)
            queue += method.on_trial_created(state, operation.request_id)
        elif isinstance(operation, ValidateAfter):
            queue += method.on_validation_completed(state, operation.request_id, 0.5, operation.length)
        elif isinstance(operation, Close):
            state.trials_closed.add(operation.request_id)
            queue += method.on_trial_closed(state, operation.request_id)
    assert seen == ["create", "validate_after"] * 3 + ["close"] * 3 + ["progress"] * 2 + ["shutdown"]
    assert method.progress(state) == 1.0


def test_a_method_and_the_experiments_state_are_read_back(tmp_path):
    method, state = BestOfThree(), SearcherState()
    method.metrics = {"a": 1.0}
    state.trials_created |= {ID, uuid.UUID(int=2)}
    state.trial_progress[ID] = 0.25
    state.last_event_id = 12
    method.save(state, tmp_path, experiment_id=3)

    again = BestOfThree()
    assert again.load(tmp_path) == (state, 3)
    assert again.metrics == {"a": 1.0}


@pytest.mark.parametrize(
    "operation",
    [Create(ID, {"x": 1}), ValidateAfter(ID, 10), Close(ID), Progress(0.5), Shutdown(cancel=True)],
    ids=lambda operation: operation.kind,
)
def test_an_operation_is_plain_data(operation):
    assert from_plain(json.loads(json.dumps(operation.to_plain()))) == operation


@pytest.mark.parametrize(
    "plain",
    [{}, {"kind": "explode"}, {"kind": "close"}, {"kind": "close", "request_id": "x"}],
)
def test_an_unknown_operation_is_refused(plain):
    with pytest.raises(UsageError, match="operation"):
        from_plain(plain)


def test_lengths_and_progress_have_bounds():
    with pytest.raises(UsageError, match="at least 1"):
        ValidateAfter(ID, 0)
    with pytest.raises(UsageError, match="from 0 to 1"):
        Progress(1.5)


def test_a_method_without_a_handler_cannot_be_made():
    class Half(SearchMethod): ...

    with pytest.raises(TypeError, match="on_trial_closed"):
        Half()
