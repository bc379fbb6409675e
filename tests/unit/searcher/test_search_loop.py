"""A search program that dies at any of its doors: the same trials, none twice."""

from __future__ import annotations

import json
import math
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from everstep import wire
from everstep.errors import UsageError
from everstep.search.config import read_searcher
from everstep.search.events import CreateTrial, Programmed, StopTrial, TrainTo, event_from_plain, to_plain
from everstep.search.search import Search
from everstep.search.space import Space
from everstep.searcher import (
    Close,
    Create,
    ExitedReason,
    SearcherState,
    SearchMethod,
    Shutdown,
    ValidateAfter,
    search_loop,
)
from everstep.searcher import program as searcher_program
from everstep.searcher.program import Program
from everstep.searcher.search_loop import search
from everstep.wire.experiments import MOST_STATE

CONFIG = read_searcher({"name": "custom", "metric": "loss"})


class Death(BaseException):
    """Of the program: nothing after it is done."""


class Halving(SearchMethod):
    """Four trials, of which the two best continue, and a fifth that starts where the best ended."""

    def __init__(self, num_calls: list[int] | None = None, die_at: int = 0) -> None:
        self.results: dict[str, float] = {}
        self.early: list[str] = []
        self._num_calls, self._die_at = num_calls or [0], die_at

    def _maybe_die(self) -> None:
        self._num_calls[0] += 1
        if self._num_calls[0] == self._die_at:
            raise Death

    def initial_operations(self, searcher_state):
        self._maybe_die()
        names = [uuid.uuid4() for _ in range(4)]  # others each time it is called
        return [
            each
            for number, name in enumerate(names)
            for each in (Create(name, {"x": number}, None), ValidateAfter(name, 4))
        ]

    def on_trial_created(self, searcher_state, request_id):
        self._maybe_die()
        return []

    def on_validation_completed(self, searcher_state, request_id, metric, train_length):
        self._maybe_die()
        if train_length == 8:
            return [Close(request_id)]
        self.results[str(request_id)] = metric
        if len(self.results) < 4:
            return []
        ordered = [uuid.UUID(each) for each in sorted(self.results, key=lambda each: self.results[each])]
        return [*(ValidateAfter(each, 8) for each in ordered[:2]), *(Close(each) for each in ordered[2:])]

    def on_trial_closed(self, searcher_state, request_id):
        self._maybe_die()
        return [Shutdown()] if len(searcher_state.trials_closed) == 4 else []

    def on_trial_exited_early(self, searcher_state, request_id, exited_reason):
        self.early.append(exited_reason.value)
        return []

    def progress(self, searcher_state):
        return len(searcher_state.trials_closed) / 4

    def save_method_state(self, path):
        self._maybe_die()
        (path / "folder").mkdir()
        (path / "folder" / "results.json").write_text(json.dumps(self.results))

    def load_method_state(self, path):
        self.results = json.loads((path / "folder" / "results.json").read_text())


class SmallCoordinator:
    """The calls of a search program on a fold in memory. Trials train as soon as they are told to.

    `doors`: called before and after each call of the program."""

    def __init__(self, why: Callable[[int, int], str | None] = lambda trial, length: None) -> None:
        self.rows: list[wire.SearchEventView] = []
        self.fold = Search.begin(CONFIG, Space(), 7)
        self.operations: list = []
        self.state, self.after_event = "", 0
        self.num_doors, self.die_at = 0, 0
        self._why = why
        self._keep({"kind": "began"}, self.fold.start())

    def __call__(self, call):
        self._door()
        answer = call(self)
        self._door()
        return answer

    def _door(self) -> None:
        self.num_doors += 1
        if self.num_doors == self.die_at:
            raise Death

    def _keep(self, event: dict, operations: list) -> None:
        self.operations += operations
        plain = [to_plain(each) for each in operations]
        self.rows.append(wire.SearchEventView(number=len(self.rows) + 1, time=0.0, event=event, operations=plain))
        for each in operations:
            if isinstance(each, TrainTo):
                why = self._why(each.trial, each.length)
                made = {"kind": "validated", "trial": each.trial, "length": each.length, "metric": 1 / each.trial}
                ended = {"kind": "ended", "trial": each.trial, "why": why, "length": None}
                self._note(ended if why else made)
            elif isinstance(each, StopTrial):
                self._note({"kind": "ended", "trial": each.trial, "why": None, "length": None})

    def _note(self, event: dict) -> None:
        self._keep(event, self.fold.apply(event_from_plain(event)))

    def search_state(self, experiment: int) -> wire.SearchState:
        return wire.SearchState(after_event=self.after_event, state=self.state, last_event=len(self.rows))

    def search_events(self, experiment: int, *, after: int, limit: int, is_held: bool) -> wire.SearchEvents:
        assert is_held
        return wire.SearchEvents(events=self.rows[after : after + min(limit, 3)], is_over=self.fold.is_done)

    def search_operations(self, experiment: int, message: wire.SearchOperations) -> wire.SearchState:
        assert message.after_event <= len(self.rows)
        if message.after_event > self.after_event and not self.fold.is_done:
            event = Programmed(after_event=message.after_event, operations=message.operations)
            operations = self.fold.apply(event_from_plain(json.loads(json.dumps(to_plain(event)))))
            self.after_event, self.state = message.after_event, message.state
            self._keep({"kind": "programmed", "after_event": 0, "operations": message.operations}, operations)
        return self.search_state(experiment)

    def experiment(self, experiment: int):
        class View:
            state = "COMPLETED"

        return View()

    def told(self) -> list:
        """All that trials were told, in order; not for whom: their names may differ."""
        return [_told(each) for each in self.operations]


def _told(operation) -> tuple:
    hparams = dict(operation.hparams) if isinstance(operation, CreateTrial) else {}
    return operation.kind, getattr(operation, "trial", 0), getattr(operation, "length", 0), hparams


def run_to_end(coordinator: SmallCoordinator, folder: Path, **deaths: int) -> tuple[int, SearcherState]:
    """Start it again until it ends. How often it died, and the last one's state."""
    num_calls, num_deaths = [0], 0
    folder.mkdir()
    while True:
        try:
            program = Program(Halving(num_calls, deaths.get("method", 0)), 1)
            search(coordinator, program, folder / "exp_1")
            return num_deaths, program.state
        except Death:
            num_deaths += 1


def test_a_search_goes_through(tmp_path):
    coordinator = SmallCoordinator()
    _, state = run_to_end(coordinator, tmp_path / "s")
    told = coordinator.told()
    assert [each[1] for each in told if each[0] == "create"] == [1, 2, 3, 4]
    assert sorted(each[1] for each in told if each[2] == 8) == [3, 4]  # the best two
    assert coordinator.fold.is_done and coordinator.fold.progress == 1.0
    assert len(state.trials_closed) == len(state.trials_created) == 4 and state.experiment_completed
    kept = SearcherState()
    kept.from_dict(json.loads((tmp_path / "s" / "exp_1" / "state").read_text()))
    assert kept.experiment_id == 1 and kept.experiment_completed
    assert len(json.loads((tmp_path / "s" / "exp_1" / "folder" / "results.json").read_text())) == 4


def test_a_program_that_dies_before_or_after_any_call_creates_nothing_twice(tmp_path):
    quiet = SmallCoordinator()
    run_to_end(quiet, tmp_path / "quiet")
    assert quiet.num_doors > 12
    for door in range(1, quiet.num_doors + 1):
        coordinator = SmallCoordinator()
        coordinator.die_at = door
        num_deaths, state = run_to_end(coordinator, tmp_path / str(door))
        assert num_deaths == 1 and coordinator.told() == quiet.told()
        assert len(state.trials_created) == 4


def test_a_method_that_dies_in_any_of_its_calls_creates_nothing_twice(tmp_path):
    quiet = SmallCoordinator()
    num_calls = [0]
    (tmp_path / "quiet").mkdir()
    search(quiet, Program(Halving(num_calls), 1), tmp_path / "quiet" / "exp_1")
    for call in range(1, num_calls[0] + 1):
        coordinator = SmallCoordinator()
        num_deaths, _ = run_to_end(coordinator, tmp_path / str(call), method=call)
        assert num_deaths == 1 and coordinator.told() == quiet.told()


class Lines:
    """Counts the lines of everstep/searcher as they run, and dies before one of them, once."""

    def __init__(self, die_before: int = 0) -> None:
        self.number, self._die_before = 0, die_before
        self._ran_at: dict[tuple[str, int], list[int]] = {}

    def __enter__(self) -> Lines:
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame, event, arg):
        return self._ran if frame.f_code.co_filename in SEARCHER else None

    def _ran(self, frame, event, arg):
        if event == "line":
            self.number += 1
            self._ran_at.setdefault((frame.f_code.co_filename, frame.f_lineno), []).append(self.number)
        if event == "line" and self.number == self._die_before:
            raise Death
        return self._ran

    def first_and_last(self) -> list[int]:
        """Of each line of the files."""
        return sorted({number for numbers in self._ran_at.values() for number in (numbers[0], numbers[-1])})


SEARCHER = {search_loop.__file__, searcher_program.__file__}


def test_a_program_that_dies_between_any_two_lines_creates_nothing_twice(tmp_path):
    quiet = SmallCoordinator()
    with Lines() as lines:
        run_to_end(quiet, tmp_path / "quiet")
    assert len(lines.first_and_last()) > 100
    for line in lines.first_and_last():
        coordinator = SmallCoordinator()
        with Lines(die_before=line):
            num_deaths, state = run_to_end(coordinator, tmp_path / str(line))
        assert num_deaths == 1 and coordinator.told() == quiet.told() and len(state.trials_created) == 4


def test_of_two_programs_at_once_the_slower_one_takes_over_the_others_state(tmp_path):
    coordinator = SmallCoordinator()

    class Slower:
        """Before its first post arrives, another program has searched to the end."""

        def __call__(self, call):
            return call(self)

        def __getattr__(self, name):
            return getattr(coordinator, name)

        def search_operations(self, experiment, message):
            run_to_end(coordinator, tmp_path / "faster")
            return coordinator.search_operations(experiment, message)

    quiet = SmallCoordinator()
    run_to_end(quiet, tmp_path / "quiet")
    program = Program(Halving(), 1)
    (tmp_path / "slower").mkdir()
    search(Slower(), program, tmp_path / "slower" / "exp_1")
    assert coordinator.told() == quiet.told() and len(program.state.trials_closed) == 4


def test_a_trial_that_exits_early_is_said_so_and_closed(tmp_path):
    class Two(Halving):
        def on_trial_exited_early(self, searcher_state, request_id, exited_reason):
            assert request_id in searcher_state.trials_created and request_id not in searcher_state.trials_closed
            self.early.append(exited_reason)
            self.results[str(request_id)] = math.inf
            return []

    whys = {1: "ERRORED", 2: "INVALID_HP"}
    coordinator = SmallCoordinator(lambda trial, length: whys.get(trial))
    program = Program(Two(), 1)
    search(coordinator, program, tmp_path / "exp_1")
    assert program.method.early == [ExitedReason.ERRORED, ExitedReason.INVALID_HP]  # type: ignore[attr-defined]
    assert len(program.state.failures) == 1 and len(program.state.trials_closed) == 4


def test_a_state_that_is_too_long_is_refused_before_anything_is_posted(tmp_path):
    class Heavy(Halving):
        def save_method_state(self, path):
            (path / "heavy").write_bytes(uuid.uuid4().bytes * 16 + _noise())

    coordinator = SmallCoordinator()
    with pytest.raises(UsageError) as error:
        search(coordinator, Program(Heavy(), 1), tmp_path / "exp_1")
    assert error.value.code == "search-program-state" and len(coordinator.rows) == 1


def _noise() -> bytes:
    return b"".join(uuid.uuid4().bytes for _ in range(MOST_STATE // 16))
