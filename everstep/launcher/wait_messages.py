"""Decide what to say on a node that only waits for workers to end.

Workers of a job end nearly together. If one of them hangs while it ends, the nodes that wait must name it: else the
user does not know where to look. Workers that regroup may leave one by one, hours before the others: these are waited
for only when the job is over.
Pure: facts in, a sentence out."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from everstep.wire import JobView

TOLD_AFTER_S = 5.0  # ends are usually milliseconds apart
_GONE = ("left", "sent", "dead")
_MOST = 5


def whom_we_wait_for(
    view: JobView, *, agent: str, running: Mapping[str, int], is_regrouping: bool, since_s: float
) -> str:
    """`running`: workers of this node and their process numbers; `since_s` ago the last thing ended here, worker or
    job. "" if no worker is waited for, or not for long."""
    is_over = view.is_finished or view.is_stopped
    if since_s < TOLD_AFTER_S or (is_regrouping and not is_over):
        return ""
    late = [f"{name} (pid {pid})" for name, pid in running.items()]
    if not is_over:
        others = {node.agent for node in view.nodes if node.is_present} - {agent}
        unended = [each for each in view.workers if each.agent in others and each.status not in _GONE]
        late += [f"{each.worker} on {each.agent}" for each in unended]
    return f"waiting for {_listed(late)} to end" if late else ""


def _listed(names: Collection[str]) -> str:
    shown = list(names)[:_MOST]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
