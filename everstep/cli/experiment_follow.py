"""Follows an experiment to its end: a live table on a terminal, otherwise lines. Ctrl-C pauses a local experiment.

Exit code 0 if it completed, 1 if not, 128 + n after signal n."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
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
from everstep.jobs.trial_log import TrialLines, trial_lines
from everstep.pool.local_service import agent_problem
from everstep.wire.experiments import ACTIVE, COMPLETED, ENDED, ERROR, PAUSED
from everstep.wire.pool import DEFAULT_POOL

_LOOK_S = 0.5
_TRIALS_S = 2.0  # with very many trials, read their table no more often than this
_FEW_TRIALS = 200
_PAUSE_S = 60.0  # for trials to save
_LAST_LINES = 12
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Interruptions:
    def __init__(self) -> None:
        self._is_held, self._held = False, 0

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """A signal raises Interrupted only after this."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        if self._held:
            raise Interrupted(self._held)

    def interrupt(self, number: int, _frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if not self._is_held:
            raise Interrupted(number)
        self._held = number


@contextlib.contextmanager
def interruptible() -> Iterator[Interruptions]:
    """The first signal that asks the command to end raises Interrupted; a second one ends it at once. SIGHUP is an
    exception: a terminal that closes may send it several times, and under nohup it means nothing."""
    interruptions = Interruptions()
    former = {each: signal.getsignal(each) for each in _SIGNALS}
    if former[signal.SIGHUP] == signal.SIG_IGN:
        del former[signal.SIGHUP]
    for each in former:
        signal.signal(each, interruptions.interrupt)
    try:
        yield interruptions
    finally:
        for each, handler in former.items():
            if signal.getsignal(each) != signal.SIG_IGN:
                signal.signal(each, handler)


def follow(link: CoordinatorLink, begin: Callable[[], int]) -> int:
    """Show an experiment to its end; return the exit code. `begin` creates it and returns its number. Signals wait
    until it exists and can be paused."""
    experiment = 0
    try:
        with interruptible() as interruptions:
            with interruptions.held():
                experiment = begin()
            facts = _watch(link, experiment)
    except Interrupted as interrupted:
        return _leave(link, experiment, interrupted.number) if experiment else 128 + interrupted.number
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
    """Print the last lines of the first failed trial, which usually say why."""
    failed = next((each for each in facts.trials if each.state == ERROR), None)
    if failed is None:
        return
    click.echo(f"trial {failed.trial} failed: {printable(failed.reason)}")
    for line in trial_lines(link, failed.experiment, failed.trial, TrialLines(tail=_LAST_LINES)):
        click.echo(f"  {shown_line(line, is_one=True, has_time=False)}")
    click.echo(f"for all of its output: everstep e logs {failed.experiment} --trial {failed.trial}")


def exit_code(view: wire.ExperimentView) -> int:
    return 0 if view.state == COMPLETED else 1


def _checkpoint_of(link: CoordinatorLink, view: wire.ExperimentView) -> wire.SavedCheckpoint | None:
    uuid = view.best.checkpoint if view.best is not None else ""
    try:
        return link(lambda coordinator: coordinator.checkpoint(uuid)) if uuid else None
    except Refused:
        return None


def _leave(link: CoordinatorLink, experiment: int, number: int) -> int:
    """Leave after a signal; return the exit code. If the experiment has ended meanwhile, show its end as usual."""
    if not link.is_local:
        _tell(f"experiment {experiment} continues; `everstep e kill {experiment}` ends it")
        return 128 + number
    _tell("pausing; trials save their state")
    with contextlib.suppress(Refused):
        experiments.act(link, experiment, "pause", "interrupted at the terminal")
    deadline = time.monotonic() + _PAUSE_S
    view = link(lambda coordinator: coordinator.experiment(experiment))
    while not _is_at_rest(view) and time.monotonic() < deadline:
        threading.Event().wait(0.1)
        view = link(lambda coordinator: coordinator.experiment(experiment))
    if view.state in ENDED:
        with contextlib.suppress(OSError):
            print_end(link, facts_of(link, experiment))
        return exit_code(view)
    if view.state == PAUSED:
        _tell(f"paused; `everstep e activate {experiment}`, or the same command, continues it")
    else:
        _tell(f"experiment {experiment} is {view.state}: {view.reason}")
    return 128 + number


def _is_at_rest(view: wire.ExperimentView) -> bool:
    return view.state in ENDED or (view.state == PAUSED and not view.num_slots)


def _tell(line: str) -> None:
    """Print a line, unless the terminal is gone."""
    with contextlib.suppress(OSError):
        say(line)


def _watch(link: CoordinatorLink, experiment: int) -> ExperimentFacts:
    """Until it is over or paused."""
    lookout = _Lookout(link, experiment)
    with _screen() as screen:
        while True:
            facts = lookout.look()
            screen.show(facts)
            if _is_at_rest(facts.view):
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
        num_slots, problem = self._slots(view)
        return ExperimentFacts(
            view=view,
            trials=self._trials,
            num_slots=num_slots,
            problem=problem,
            passed_s=passed_s,
            left_s=left_s,
        )

    def _slots(self, view: wire.ExperimentView) -> tuple[int, str]:
        """How many slots the pool has; if none, why."""
        name, pool = view.scheduling.pool, None
        with contextlib.suppress(Refused):  # there is none
            pool = self._link(lambda it: it.pool(name))
        if pool is not None and pool.num_slots:
            return pool.num_slots, ""
        if pool is not None and pool.nodes is not None:
            return 0, pool.nodes.reason if view.state == ACTIVE else ""
        return 0, agent_problem() if self._link.is_local and name == DEFAULT_POOL else ""


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
        with contextlib.suppress(OSError):  # the terminal is gone
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
