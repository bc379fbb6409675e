"""What the coordinator slept through is no evidence: while it stands still, it hears nobody.

Its machine was suspended or too busy, its process frozen. Then all deadlines have passed at once, and the calls that
would have met them have not been read yet. So everybody who is waited for gets the full time again, as after a restart.
Pure: facts and `now` in, values out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from everstep.coordinator.roster import NodeSign, Roster, Sign

LATE_S = 0.5  # a deadline that is looked at so much later was slept through


def is_lapse(due: float | None, now: float) -> bool:
    return due is not None and now > due + LATE_S


def forgive(
    roster: Roster, signs: Mapping[str, Sign], node_signs: Mapping[str, NodeSign], now: float
) -> tuple[Roster, dict[str, Sign], dict[str, NodeSign]]:
    """As if all had been heard just now, and the last closing had just been told."""
    roster = replace(roster, closed_at=max(roster.closed_at, now), recalled=dict.fromkeys(roster.recalled, now))
    return (
        roster,
        {name: replace(sign, alive_at=max(sign.alive_at, now)) for name, sign in signs.items()},
        {name: replace(sign, alive_at=max(sign.alive_at, now)) for name, sign in node_signs.items()},
    )
