"""Reads the events of an experiment, lets a search method answer them, and posts its operations, until the end.

Each post carries the program's whole state, and is applied once. If a program dies before a post, the next one decides
again. The folder holds a copy of the state for people; the coordinator's is the one that counts."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.searcher.operations import SearcherOperation
from everstep.searcher.program import Program
from everstep.wire.experiments import COMPLETED, ERROR, MOST_SEARCH_EVENTS

T = TypeVar("T")


class SearchLink(Protocol):
    """Makes a call to the coordinator, and repeats it until an answer comes."""

    def __call__(self, call: Callable[[Coordinator], T]) -> T: ...


def search(link: SearchLink, program: Program, folder: Path) -> wire.ExperimentView:
    """Run the search to its end. `folder`: the copy of the state, replaced after each post."""
    number = program.experiment
    seen = _continue(program, link(lambda coordinator: coordinator.search_state(number)))
    is_heard = True
    while True:
        found = link(_reading(number, seen))
        operations = [each for row in found.events for each in program.handle(row)]
        seen = found.events[-1].number if found.events else seen
        if found.is_over and not found.events:
            break
        if program.is_changed and is_heard and not found.is_over:
            posted = _post(link, program, seen, [*operations, *program.progress()], folder)
            seen, is_heard = (seen, False) if posted is None else (posted, True)
    view = link(lambda coordinator: coordinator.experiment(number))
    program.state.experiment_completed = view.state == COMPLETED
    program.state.experiment_failed = view.state == ERROR
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        program.save(made := Path(scratch) / "state")
        keep_copy(made, folder)
    return view


def _continue(program: Program, known: wire.SearchState) -> int:
    program.load(known.state)
    return known.after_event


def _reading(number: int, seen: int) -> Callable[[Coordinator], wire.SearchEvents]:
    return lambda coordinator: coordinator.search_events(number, after=seen, limit=MOST_SEARCH_EVENTS, is_held=True)


def _post(
    link: SearchLink, program: Program, seen: int, operations: list[SearcherOperation], folder: Path
) -> int | None:
    """Post operations. Returns the number of the event to continue after: if another program was faster, its
    operations count. None: the experiment is ending, and takes no operations."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        text = program.save(made := Path(scratch) / "state")
        message = wire.SearchOperations(
            after_event=seen, operations=[each.to_plain() for each in operations], state=text
        )
        known = link(lambda coordinator: coordinator.search_operations(program.experiment, message))
        if known.after_event < seen:
            return None
        if known.state != text:
            return _continue(program, known)
        keep_copy(made, folder)
    return seen


def keep_copy(made: Path, folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
    made.rename(folder)
