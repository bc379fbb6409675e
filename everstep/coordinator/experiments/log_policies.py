"""What follows for a trial when lines of its log match the log policies of its experiment. Pure.

A match is noted once, with its line, and the trial's reason names it. `exclude_node`: the trial is not placed on that
node again. `cancel_retries`: its next failure ends it. Two built-in policies only note what happened; a policy of the
same name replaces one, and without a pattern turns it off."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from everstep import wire
from everstep.coordinator.experiments.facts import Trial
from everstep.wire.experiments import CANCEL_RETRIES, EXCLUDE_NODE

BUILT_IN = (
    wire.LogPolicy(name="CUDA OOM", pattern="CUDA out of memory"),
    wire.LogPolicy(name="ECC Error", pattern="uncorrectable ECC error encountered"),
)
MOST_LINE = 300  # characters of a line that are kept
_MOST_NODES = 100  # that a policy excludes


@dataclass(frozen=True, kw_only=True, slots=True)
class MatchedLine:
    """The first line that matches a pattern, among those just searched on a node."""

    pattern: str
    node: str
    line: str
    worker: str = ""


def policies_of(spec: wire.ExperimentSpec) -> list[wire.LogPolicy]:
    named = {each.name for each in spec.log_policies}
    own = [each for each in BUILT_IN if each.name not in named]
    return [each for each in (*own, *spec.log_policies) if each.pattern]


def noted(trial: Trial, policies: Iterable[wire.LogPolicy], lines: Sequence[MatchedLine]) -> Trial:
    """The trial with matches that are new. Only for nodes that are excluded, each node counts."""
    matches = matches_of(trial)
    for policy in policies:
        for each in lines:
            if each.pattern == policy.pattern and _is_new(policy, each.node, matches):
                line = each.line[:MOST_LINE]
                matches.append(wire.LogMatch(policy=policy.title, action=policy.action, node=each.node, line=line))
    return trial if len(matches) == len(trial.log_matches) else _with(trial, matches)


def given_up(trial: Trial, policies: Iterable[wire.LogPolicy], pattern: str, problem: str) -> Trial:
    """The trial after one of its patterns turned out to be unusable."""
    matches = matches_of(trial)
    for policy in policies:
        if policy.pattern == pattern and not any(each.policy == policy.title and each.problem for each in matches):
            matches.append(wire.LogMatch(policy=policy.title, action="", node="", line="", problem=problem))
    return trial if len(matches) == len(trial.log_matches) else _with(trial, matches)


def wanted_patterns(trial: Trial, policies: Iterable[wire.LogPolicy]) -> list[str]:
    """What to search for: not what is known already."""
    matches = matches_of(trial)
    given = {each.policy for each in matches if each.problem}
    return [
        each.pattern
        for each in policies
        if each.title not in given and (each.action == EXCLUDE_NODE or _is_new(each, "", matches))
    ]


def _is_new(policy: wire.LogPolicy, node: str, matches: Sequence[wire.LogMatch]) -> bool:
    known = [each for each in matches if each.policy == policy.title and not each.problem]
    if policy.action != EXCLUDE_NODE:
        return not known
    return len(known) < _MOST_NODES and all(each.node != node for each in known)


def matches_of(trial: Trial) -> list[wire.LogMatch]:
    return [wire.LogMatch(**each) for each in trial.log_matches]


def _with(trial: Trial, matches: Sequence[wire.LogMatch]) -> Trial:
    told: list[dict[str, Any]] = [asdict(each) for each in matches]
    return replace(trial, log_matches=told)


# --- decisions ---


def excluded_nodes(trial: Trial) -> frozenset[str]:
    return frozenset(each["node"] for each in trial.log_matches if each["action"] == EXCLUDE_NODE)


def why_no_restart(trial: Trial) -> str:
    """Empty: it may restart."""
    found = next((each for each in matches_of(trial) if each.action == CANCEL_RETRIES), None)
    return "" if found is None else f"log policy {found.policy} allows no more restarts ({found.line.strip()})"


def matches_text(trial: Trial) -> str:
    """For the trial's reason; empty: nothing matched."""
    return "; ".join(_text(each) for each in matches_of(trial))


def _text(match: wire.LogMatch) -> str:
    if match.problem:
        return f"log policy {match.policy}: {match.problem}"
    if match.action == EXCLUDE_NODE:
        return f"log policy {match.policy}: not on {match.node} again ({match.line.strip()})"
    if match.action == CANCEL_RETRIES:
        return f"log policy {match.policy}: no more restarts ({match.line.strip()})"
    return f"{match.policy} on {match.node}"
