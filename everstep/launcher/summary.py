"""The last words of a run: how it went, or who failed first, how, and what it said.

Pure: facts in, text out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from everstep.launcher.decisions import Verdict

_MOST_CHARS = 500  # of a line
_RANK = re.compile(r"^\[rank\d+\]: ?")  # torch's, before each line of a traceback
_FRAME = '  File "'  # of a traceback
_NUM_STDOUT_LINES = 5  # beside stderr, which says more


@dataclass(frozen=True, kw_only=True, slots=True)
class LastWords:
    """What the worker that failed first left behind."""

    directory: str
    stdout: Sequence[str] = ()
    stderr: Sequence[str] = ()
    error: str = ""  # recorded by torch's @record


def summary(verdict: Verdict, *, num_steps: int, elapsed_s: float, good_s: float | None) -> str:
    """`good_s`: see progress.Goodput; None if no step was seen."""
    steps = f": {num_steps} steps in" if num_steps else " in"
    parts = [f"{verdict.reason}{steps} {elapsed_s:.1f} s"]
    if good_s is not None and elapsed_s > 0:
        parts.append(f"goodput {min(1.0, good_s / elapsed_s):.0%}")
    if verdict.num_restarts:
        parts.append(f"all workers restarted {verdict.num_restarts} time{'s' * (verdict.num_restarts != 1)}")
    if verdict.num_survived or not verdict.num_restarts:
        parts.append(f"{verdict.num_survived} death{'s' * (verdict.num_survived != 1)} survived")
    if verdict.unfinished:
        parts.append(f"{', '.join(verdict.unfinished)} killed after the last step")
    return ", ".join(parts)


def failure_report(verdict: Verdict, words: LastWords | None) -> list[str]:
    """What a person needs first: who failed first, how, its last words; then why the whole job ended."""
    lines = []
    if verdict.first_failure is not None:
        lines.append(f"first to fail: {verdict.first_failure.worker}, {verdict.first_failure}")
        if words is not None:
            lines += _told(words)
    return [*lines, verdict.reason if verdict.was_interrupted else f"the job failed: {verdict.reason}"]


def last_line(verdict: Verdict, words: LastWords | None) -> str:
    """Of a failure, in one line: who failed first, and its exception, or else the last that it said."""
    if verdict.is_good or verdict.was_interrupted or verdict.first_failure is None:
        return ""
    first = verdict.first_failure
    is_told = words is not None and not first.exit.signal  # a signal comes after any words
    said = _exception(words.stderr) if words is not None and is_told else ""
    what = words.error if words is not None and words.error else said or str(first)
    return f"{first.worker}: {what}"[:_MOST_CHARS]


def _exception(stderr: Sequence[str]) -> str:
    """The line after the last frame of a traceback, since an exception's text may have more lines; else the last."""
    lines = [_RANK.sub("", line) for line in stderr if line.strip()]
    last_frame = max((number for number, line in enumerate(lines) if line.startswith(_FRAME)), default=len(lines))
    found = next((line for line in lines[last_frame:] if not line.startswith(" ")), lines[-1] if lines else "")
    return found.strip()


def _told(words: LastWords) -> list[str]:
    lines = [f"  error: {words.error}"] if words.error else []
    stdout = words.stdout[-_NUM_STDOUT_LINES:] if words.stderr else words.stdout
    for name, last_lines in (("stdout.log", stdout), ("stderr.log", words.stderr)):
        if last_lines:
            lines += [f"  last lines of {words.directory}/{name}:", *(f"  | {line}" for line in last_lines)]
    return lines if stdout or words.stderr else [*lines, f"  it printed nothing ({words.directory})"]
