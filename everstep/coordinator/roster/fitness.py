"""Decide which of the checked nodes take part: all wait for the slowest, hence nodes that are much slower are left out.

Slow nodes are kept if too few would remain; only a failed one is never used. A node that is left out stays as a spare:
it is decided again when others go. Pure: facts in, a value with its reason out."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from everstep.coordinator.roster.facts import Decision, Node, listed

SLOW = 2.0  # a node is slow if the median is this many times faster


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit(Decision):
    kept: frozenset[str]
    failed: Mapping[str, str] = field(default_factory=dict)  # agent → why
    slow: Mapping[str, str] = field(default_factory=dict)  # left out, though they would do
    needed: Mapping[str, str] = field(default_factory=dict)  # kept, though they are slow

    @property
    def left_out(self) -> dict[str, str]:
        return {**self.failed, **self.slow}

    @property
    def notes(self) -> list[str]:
        """A line for each node that is not simply fit."""
        return [
            *(f"{agent} is left out: {why}" for agent, why in self.left_out.items()),
            *(f"{agent} is slow, but needed: {why}" for agent, why in self.needed.items()),
        ]


def decide_fit(nodes: Sequence[Node], min_nodes: int) -> Fit:
    """Nodes that were not checked are taken as they are."""
    if all(node.fitness is None for node in nodes):
        return Fit("none-checked", "no node was checked", kept=frozenset(node.agent for node in nodes))
    failed = {node.agent: node.fitness.failure for node in nodes if node.fitness and node.fitness.failure}
    useful = [node for node in nodes if node.agent not in failed]
    slow = dict(_slow(useful))
    num_needed = max(0, min_nodes - (len(useful) - len(slow)))
    by_speed = sorted(slow, key=lambda agent: slow[agent][0])  # the least slow first
    needed = {agent: slow[agent][1] for agent in by_speed[:num_needed]}
    left = {agent: slow[agent][1] for agent in by_speed[num_needed:]}
    kept = frozenset(node.agent for node in useful) - left.keys()
    names = listed([*failed, *left])
    return Fit(
        "some-left-out" if failed or left else "all-fit",
        f"{names} left out" if failed or left else "all nodes are fit",
        kept=kept,
        failed=failed,
        slow=left,
        needed=needed,
    )


def _slow(nodes: Sequence[Node]) -> Iterator[tuple[str, tuple[float, str]]]:
    """Each slow node, with how many times it is slower than the median, and in what."""
    gflops = {node.agent: node.fitness.gflops for node in nodes if node.fitness and node.fitness.gflops is not None}
    mb_per_s = {
        node.agent: node.fitness.mb_per_s for node in nodes if node.fitness and node.fitness.mb_per_s is not None
    }
    for node in nodes:
        worse = []
        for values, what in ((gflops, "GFLOP/s"), (mb_per_s, "MB/s to its best neighbor")):
            if node.agent in values:
                median, own = statistics.median(values.values()), values[node.agent]
                ratio = median / own if own > 0 else float("inf")
                if ratio > SLOW:
                    worse.append((ratio, f"{_short(own)} {what}, the median is {_short(median)}"))
        if worse:
            yield node.agent, (max(worse)[0], " and ".join(text for _, text in worse))


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.2g}"
