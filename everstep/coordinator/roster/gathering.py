"""How long a closing in good order may wait to be kept.

All members stand ready after the same step, so the next generation can be formed a moment after the first of them has
arrived. The closing and the forming are then kept together, and members wait for one write instead of two. Nothing is
lost if the coordinator is killed meanwhile: those that have arrived ask again. Pure."""

from __future__ import annotations

from everstep.coordinator.roster.facts import Roster

GATHER_S = 0.05


def gathers_until(kept: Roster, roster: Roster) -> float | None:
    """None: nothing is to be gathered. A loss is always reported at once."""
    closed = roster.generation
    was_open = kept.generation.is_open and kept.generation.number == closed.number
    if not was_open or not closed.is_closed or closed.is_broken or roster.is_over:
        return None
    return roster.closed_at + GATHER_S
