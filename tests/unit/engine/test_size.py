"""How many workers train together, as each of them says when it arrives."""

from __future__ import annotations

import pytest

from everstep.engine.fixed_world import LoneMembership
from everstep.engine.group import LARGEST_WORLD
from everstep.engine.settings import Settings
from everstep.engine.step import Engine
from everstep.ipc.progress_page import ProgressPage


@pytest.mark.parametrize(
    ("micro_batches", "settled", "is_newcomer", "told"),
    [
        (8, 0, False, 8),
        (8, 3, False, 8),
        (2 * LARGEST_WORLD, 0, False, 2 * LARGEST_WORLD),  # all begin: too many are refused, with the number
        (2 * LARGEST_WORLD, 3, False, LARGEST_WORLD),  # a job that trains does not end because more come
        (2 * LARGEST_WORLD, 0, True, LARGEST_WORLD),
        (None, 0, False, None),
        (None, 0, True, LARGEST_WORLD),
    ],
)
def test_more_workers_than_were_shown_to_work_are_spares_of_a_job_that_trains(
    micro_batches: int | None, settled: int, is_newcomer: bool, told: int | None
) -> None:
    membership = LoneMembership()
    membership.is_newcomer = is_newcomer
    engine = Engine(lambda board, closed: membership, ProgressPage())
    engine.work.configure(
        Settings(num_micro_batches=micro_batches, micro_batches_per_worker=None if micro_batches else 1, reduce="fast")
    )
    engine.regrouping.settled = settled
    assert engine.regrouping.max_workers == told
