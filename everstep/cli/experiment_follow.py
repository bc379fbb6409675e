"""Follows an experiment to its end: a live table on a terminal, else lines. Ctrl-C pauses a local one.

Exit code 0 if it completed, 1 if not, 128 + n after signal n."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType, TracebackType

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from everstep import env, wire
from everstep.cli.experiment_table import ExperimentFacts, changes, ending, guess_left_s, render
from everstep.cli.logs import shown_line
from everstep.cli.options import say
from everstep.cli.printable import printable
from everstep.errors import Refused
from everstep.jobs import experiments
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.jobs.trial_log import trial_lines
from everstep.wire.experiments import COMPLETED, ENDED, ERROR, PAUSED

POOL = "default"
_LOOK_S = 0.5
_TRIALS_S = 2.0  # with very many trials, their table is not read more often
_FEW_TRIALS = 200
_PAUSE_S = 60.0  # for trials to save
_LAST_LINES = 12
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """The signals that ask a command to end raise Interrupted, once; a second one ends it at once."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        raise Interrupted(number)

    former = {each: signal.signal(each, interrupt) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in former.items():
            signal.signal(each, handler)


def follow(link: CoordinatorLink, experiment: int) -> int:
    """The exit code."""
    try:
        with interruptible():
            facts = _watch(link, experiment)
    except Interrupted as interrupted:
        with contextlib.suppress(OSError):  # the terminal may be gone
            _leave(link, experiment)
        return 128 + interrupted.number
    if facts.view.state == PAUSED:
        say(f"experiment {experiment} is paused: {facts.view.reason}; `everstep e activate {experiment}` continues it")
        return 0
    return print_end(link, facts)


def print_end(link: CoordinatorLink, facts: ExperimentFacts) -> int:
    for line in ending(facts, _checkpoint_of(link, facts.view)):
        click.echo(line)
    _print_failure(link, facts)
    return exit_code(facts.view)


def _print_failure(link: CoordinatorLink, facts: ExperimentFacts) -> None:
    """The last lines of the first trial that failed: they usually say why."""
    failed = next((each for each in facts.trials if each.state == ERROR), None)
    if failed is None:
        return
    click.echo(f"trial {failed.trial} failed: {printable(failed.reason)}")
    for line in trial_lines(link, failed.experiment, failed.trial, tail=_LAST_LINES):
        click.echo(f"  {shown_line(line, is_one=True, has_time=False)}")
    click.echo(f"all of its output: everstep e logs {failed.experiment} --trial {failed.trial}")


def exit_code(view: wire.ExperimentView) -> int:
    return 0 if view.state == COMPLETED else 1


def _checkpoint_of(link: CoordinatorLink, view: wire.ExperimentView) -> wire.SavedCheckpoint | None:
    uuid = view.best.checkpoint if view.best is not None else ""
    try:
        return link(lambda coordinator: coordinator.checkpoint(uuid)) if uuid else None
    except Refused:
        return None


def _leave(link: CoordinatorLink, experiment: int) -> None:
    if not link.is_local:
        say(f"experiment {experiment} continues; `everstep e kill {experiment}` ends it")
        return
    say("pausing; trials save their state")
    view = experiments.act(link, experiment, "pause", "interrupted at the terminal")
    deadline = time.monotonic() + _PAUSE_S
    while view.num_slots and view.state not in ENDED and time.monotonic() < deadline:
        threading.Event().wait(0.1)
        view = link(lambda coordinator: coordinator.experiment(experiment))
    if view.state in ENDED:
        say(f"experiment {experiment} {view.state}: {view.reason}")
        return
    say(f"paused; `everstep e activate {experiment}`, or the same command, continues it")


def _watch(link: CoordinatorLink, experiment: int) -> ExperimentFacts:
    """Until it is over or paused."""
    lookout = _Lookout(link, experiment)
    with _screen() as screen:
        while True:
            facts = lookout.look()
            screen.show(facts)
            if facts.view.state in ENDED or (facts.view.state == PAUSED and not facts.view.num_slots):
                return facts
            threading.Event().wait(_LOOK_S)


class _Lookout:
    """Collects the facts; trials only after something has happened to one."""

    def __init__(self, link: CoordinatorLink, experiment: int) -> None:
        self._link, self._experiment = link, experiment
        self._began, self._first_progress = time.monotonic(), -1.0
        self._seen: tuple[object, ...] = ()
        self._trials: tuple[wire.TrialView, ...] = ()
        self._looked_at = float("-inf")

    def look(self) -> ExperimentFacts:
        view = self._link(lambda it: it.experiment(self._experiment), patience_s=env.coordinator_deadline_s())
        now = time.monotonic()
        if self._first_progress < 0:
            self._first_progress = view.progress
        seen = (view.last_event, view.state, view.num_slots, tuple(sorted(view.num_trials.items())), view.best)
        is_many = len(self._trials) > _FEW_TRIALS and view.state not in ENDED
        if seen != self._seen and (not is_many or now - self._looked_at >= _TRIALS_S):
            self._trials = tuple(experiments.all_trials(self._link, self._experiment))
            self._seen, self._looked_at = seen, now
        passed_s = now - self._began
        left_s = guess_left_s(view.progress, before=self._first_progress, passed_s=passed_s)
        return ExperimentFacts(
            view=view, trials=self._trials, num_slots=self._num_slots(), passed_s=passed_s, left_s=left_s
        )

    def _num_slots(self) -> int:
        try:
            return self._link(lambda it: it.pool(POOL)).num_slots
        except Refused:  # there is none
            return 0


class _Table:
    def __init__(self) -> None:
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> _Table:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, facts: ExperimentFacts) -> None:
        size = self._console.size
        lines = render(facts, width=size.width, height=size.height - 1)
        shown = Text("\n").join(Text(each.text, style=each.style, no_wrap=True) for each in lines)
        self._live.update(shown, refresh=True)


class _Lines:
    def __init__(self) -> None:
        self._before: ExperimentFacts | None = None

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def show(self, facts: ExperimentFacts) -> None:
        for line in changes(self._before, facts):
            click.echo(line)
        sys.stdout.flush()
        self._before = facts


def _screen() -> _Table | _Lines:
    return _Table() if sys.stdout.isatty() else _Lines()


def facts_of(link: CoordinatorLink, experiment: int) -> ExperimentFacts:
    view = link(lambda coordinator: coordinator.experiment(experiment))
    return ExperimentFacts(view=view, trials=tuple(experiments.all_trials(link, experiment)))
