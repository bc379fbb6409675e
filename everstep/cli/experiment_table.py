"""The lines of text that show a running experiment: made from facts alone, for any width and height. Pure.

On a terminal, the lines are drawn repeatedly; otherwise only changes are printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from everstep import wire
from everstep.cli.printable import counted, printable
from everstep.launcher.progress import clock
from everstep.wire.experiments import COMPLETED, ENDED, QUEUED, RUNNING, WAITING
from everstep.wire.hparams import flat

_BAR = 24
_LEAST_NAME = 12
_LEAST_ROWS = 3
_OVER = ("COMPLETED", "CANCELED", "ERROR", "USER_CANCELED", "INVALID_HP", "ERRORED")
_LEAST_SEEN = 0.02  # of the progress, before the remaining time is estimated
_LEAST_PASSED_S = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentFacts:
    view: wire.ExperimentView
    trials: tuple[wire.TrialView, ...] = ()
    num_slots: int = 0  # of the pool; 0: unknown
    problem: str = ""  # why there is no slot
    passed_s: float = 0.0
    left_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    text: str
    style: str = ""  # rich's


def guess_left_s(progress: float, *, before: float, passed_s: float) -> float | None:
    """Estimated from the progress since this command started."""
    gained = progress - before
    if gained < _LEAST_SEEN or passed_s < _LEAST_PASSED_S:
        return None
    return (1.0 - progress) / gained * passed_s


# --- the table --------------------------------------------------------------------------------------


def render(facts: ExperimentFacts, *, width: int, height: int) -> list[Line]:
    """The whole display, in at most `height` lines."""
    head = [
        Line(text=_title(facts.view, width), style="bold"),
        Line(text=_progress(facts, width)),
        Line(text=_counts(facts)),
    ]
    if facts.problem:
        head.append(Line(text=_waiting(facts), style="red"))
    if reached := _rungs(facts):
        head.append(Line(text=reached))
    shown, rest = choose(facts, max(_LEAST_ROWS, height - len(head) - 3))
    lines = [*head, *_rows(facts, shown, width)]
    if rest:
        lines.append(Line(text=f"  and {len(rest)} more: {_tally(rest)}", style="dim"))
    return [Line(text=_cut(printable(each.text), width), style=each.style) for each in lines]


def _title(view: wire.ExperimentView, width: int) -> str:
    """The first line. A long name is cut to leave room for the rest."""
    number, goal, name = f"experiment {view.experiment}", goal_of(view), printable(view.name)
    most = max(_LEAST_NAME, width - len(f'{number} "": {goal}'))
    return f'{number} "{_cut(name, most)}": {goal}' if name else f"{number}: {goal}"


def goal_of(view: wire.ExperimentView) -> str:
    return f"{view.searcher}, {'minimizing' if view.smaller_is_better else 'maximizing'} {view.metric}"


def _progress(facts: ExperimentFacts, width: int) -> str:
    view = facts.view
    filled = round(min(1.0, max(0.0, view.progress)) * _BAR)
    bar = f"{'━' * filled}{'╌' * (_BAR - filled)} " if width >= 70 else ""
    left = f", about {clock(facts.left_s)} left" if facts.left_s is not None and view.state not in ENDED else ""
    return f"{view.state} {bar}{view.progress:.0%} after {clock(facts.passed_s)}{left}"


def _counts(facts: ExperimentFacts) -> str:
    view = facts.view
    of = f" of {facts.num_slots}" if facts.num_slots else ""
    total = sum(view.num_trials.values())
    parts = [f"{number} {state.lower()}" for state, number in sorted(view.num_trials.items(), key=_by_state) if number]
    return f"slots in use: {view.num_slots}{of} · {counted(total, 'trials')}{': ' if parts else ''}{', '.join(parts)}"


def _waiting(facts: ExperimentFacts) -> str:
    return f"waiting for slots: {facts.problem}"


def _rungs(facts: ExperimentFacts) -> str:
    """For a search with several lengths: how many trials have reached each of them."""
    rungs = sorted({each.target for each in facts.trials if each.target is not None})
    if len(rungs) < 2:
        return ""
    first, *others = [(sum(each.length >= rung for each in facts.trials), rung) for rung in rungs]
    told = [
        f"{counted(first[0], 'trials')} at {counted(first[1], facts.view.unit)}",
        *(f"{number} at {at}" for number, at in others),
    ]
    return f"rungs reached: {', '.join(told)}"


def _by_state(item: tuple[str, int]) -> tuple[int, str]:
    order = (RUNNING, WAITING, QUEUED)
    return (order.index(item[0]) if item[0] in order else len(order), item[0])


def choose(facts: ExperimentFacts, most: int) -> tuple[list[wire.TrialView], list[wire.TrialView]]:
    """The trials to show, by number, and the others. Running trials are shown first, then the best, then the newest."""
    if len(facts.trials) <= most:
        return sorted(facts.trials, key=lambda each: each.trial), []
    best = facts.view.best.trial if facts.view.best is not None else 0

    def rank(each: wire.TrialView) -> tuple[bool, bool, bool, float, int]:
        return (
            each.trial != best,
            each.num_slots == 0 and each.state != RUNNING,
            each.state != WAITING,
            _score(each, facts.view),
            -each.trial,
        )

    ranked = sorted(facts.trials, key=rank)
    by_number = sorted(ranked[: most - 1], key=lambda each: each.trial)  # one line sums up the rest
    return by_number, ranked[most - 1 :]


def _score(trial: wire.TrialView, view: wire.ExperimentView) -> float:
    """A sort key: smaller is better; a trial without a result is worst."""
    value = float("nan") if trial.best is None else float(trial.best)
    return float("inf") if value != value else value if view.smaller_is_better else -value


def _tally(trials: Sequence[wire.TrialView]) -> str:
    counted = Counter(each.state for each in trials)
    return ", ".join(f"{number} {state.lower()}" for state, number in sorted(counted.items(), key=_by_state))


def _rows(facts: ExperimentFacts, trials: Sequence[wire.TrialView], width: int) -> Iterator[Line]:
    if not trials:
        return
    view = facts.view
    best = view.best.trial if view.best is not None else 0
    columns = ["  trial", "state", view.unit, "latest", "best", "at", "hyperparameters"]
    same = same_hparams(facts.trials)
    cells = [[*_cells(each, same, is_best=each.trial == best)] for each in trials]
    for dropped in ([], [5], [5, 6]) if width >= 60 else ([5, 6],):
        kept = [number for number in range(len(columns)) if number not in dropped]
        fixed = [number for number in kept if number != 6]
        widths = [max(len(row[number]) for row in [columns, *cells]) for number in kept]
        if sum(widths[: len(fixed)]) + 2 * len(kept) + (_hparams_width(dropped) if 6 in kept else 0) <= width:
            break
    yield Line(text=_joined([columns[number] for number in kept], widths), style="dim")
    for each, row in zip(trials, cells, strict=True):
        yield Line(text=_joined([row[number] for number in kept], widths), style=_style(each, best))


def _hparams_width(dropped: Container[int]) -> int:
    """The smallest useful column; the column `at` is dropped first."""
    return 12 if 5 in dropped else 30


def same_hparams(trials: Sequence[wire.TrialView]) -> set[str]:
    """Hyperparameters with the same value in all trials: a column of them would be useless."""
    if len(trials) < 2:
        return set()
    values: dict[str, set[str]] = {}
    for each in trials:
        for name, value in flat(each.hparams):
            values.setdefault(name, set()).add(repr(value))
    return {name for name, found in values.items() if len(found) == 1}


def _cells(trial: wire.TrialView, same: Container[str], *, is_best: bool) -> Iterator[str]:
    yield f"{'*' if is_best else ' '} {trial.trial}"
    restarts = f" (restart {trial.num_restarts})" if trial.num_restarts and trial.state not in _OVER else ""
    yield trial.state + restarts
    yield f"{trial.length}/{trial.target}" if trial.target is not None else str(trial.length or "")
    yield shown_value(trial.latest)
    yield shown_value(trial.best)
    yield str(trial.best_length) if trial.best is not None else ""
    yield shown_hparams(trial.hparams, same)


def _style(trial: wire.TrialView, best: int) -> str:
    if trial.trial == best:
        return "green"
    if trial.state in ("ERROR", "ERRORED"):
        return "red"
    return "" if trial.num_slots or trial.state == RUNNING else "dim"


def _joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


def shown_value(value: Any) -> str:
    return "" if value is None else f"{float(value):.5g}"


def shown_hparams(hparams: dict[str, Any], but: Container[str] = ()) -> str:
    """lr=0.01 optimizer.name=adam"""
    return " ".join(f"{name}={_shown(value)}" for name, value in flat(hparams) if name not in but)


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# --- what has changed -------------------------------------------------------------------------------


def changes(before: ExperimentFacts | None, now: ExperimentFacts) -> list[str]:
    """Lines for a log: a trial's start, results, restarts and end, and the experiment's state."""
    view = now.view
    reason = f": {view.reason}" if view.reason else ""
    state = f"experiment {view.experiment} {view.state}{reason}"
    lines = [state] if before is None else []
    known = {each.trial: each for each in before.trials} if before is not None else {}
    best = (before.view.best.trial, before.view.best.length) if before and before.view.best else None
    for each in now.trials:
        lines += [
            f"[{view.progress:.0%}] trial {each.trial} {news}" for news in _news(known.get(each.trial), each, now)
        ]
    if before is not None and view.best is not None and (view.best.trial, view.best.length) != best:
        lines.append(f"best so far: trial {view.best.trial}, {view.metric} {shown_value(view.best.metric)}")
    if before is not None and before.view.state != view.state and view.state not in ENDED:  # `ending` reports the end
        lines.append(state)
    if now.problem and (before is None or before.problem != now.problem):
        lines.append(_waiting(now))
    return [printable(each) for each in lines]


def _news(old: wire.TrialView | None, new: wire.TrialView, facts: ExperimentFacts) -> Iterator[str]:
    if new.started_at is not None and (old is None or old.started_at is None):
        yield f"began: {shown_hparams(new.hparams) or 'no hyperparameters'}"
    if new.num_restarts > (old.num_restarts if old is not None else 0) and new.state not in _OVER:
        yield f"restarted ({new.num_restarts}): {new.reason}"
    if new.latest is not None and new.length != (old.length if old is not None else 0):
        yield f"has {facts.view.metric} {shown_value(new.latest)} after {counted(new.length, facts.view.unit)}"
    if new.state in _OVER and (old is None or old.state != new.state):
        yield f"{new.state}{': ' if new.reason else ''}{new.reason}"


# --- the end ----------------------------------------------------------------------------------------


def ending(facts: ExperimentFacts, checkpoint: wire.SavedCheckpoint | None) -> list[str]:
    """The winner, and how to load it."""
    view = facts.view
    batches = sum(each.batches for each in facts.trials)
    trained = f", {batches:,} batches" if batches else ""
    total = sum(view.num_trials.values())
    lines = [f"experiment {view.experiment} {view.state}{f': {view.reason}' if view.reason else ''}"]
    lines.append(f"{counted(total, 'trials')}{trained} in {clock(_length_s(view, facts.passed_s))}")
    if view.best is None:
        lines += _without_result(view)
        return [printable(each) for each in lines]
    best = view.best
    length = counted(best.length, view.unit)
    lines.append(f"best: trial {best.trial}, {view.metric} {shown_value(best.metric)} after {length}")
    trial = next((each for each in facts.trials if each.trial == best.trial), None)
    lines += [f"  {name}: {value}" for name, value in flat(trial.hparams if trial is not None else {})]
    lines += _loading(best.checkpoint or (trial.best_checkpoint if trial is not None else ""), checkpoint)
    return [printable(each) for each in lines]


def _without_result(view: wire.ExperimentView) -> Iterator[str]:
    if view.state == COMPLETED:
        yield f"there is no best trial: no trial reported {view.metric}, the searcher's metric"
        call = f'everstep.report({{"{view.metric}": ...}}, step=...)'
        yield f"  to report it, call {call}, or print a line that metric_line matches"
        yield f"  to see what they printed: everstep e logs {view.experiment} --trial 1"


def _loading(uuid: str, checkpoint: wire.SavedCheckpoint | None) -> Iterator[str]:
    if not uuid:
        yield "checkpoint: none was saved"
        return
    yield f"checkpoint: {uuid}"
    yield "to load it in Python:"  # not indented, so that it can be copied
    yield "import everstep"
    yield "from everstep.experimental import client"
    yield f'path = client.get_checkpoint("{uuid}").download()'
    yield "everstep.pytorch.load_trial_from_checkpoint_path(path)  # with its weights"
    if checkpoint is not None:
        yield f"everstep.Checkpointer(path).load({checkpoint.step})  # other scripts: their state"


def _length_s(view: wire.ExperimentView, passed_s: float) -> float:
    if view.started_at is None or view.ended_at is None:
        return passed_s
    return max(0.0, view.ended_at - view.started_at)
