"""Who may stop the whole job, and for what."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.engine.fixed_world import LoneMembership
from everstep.engine.step import Engine
from everstep.engine.world import World
from everstep.errors import PeerLost, StateMismatch, UsageError
from everstep.ipc.progress_page import ProgressPage, has_lifeline, has_raised


class Listening(LoneMembership):
    def __init__(self) -> None:
        super().__init__()
        self.stopped: list[str] = []

    def stop_job(self, reason: str) -> None:
        self.stopped.append(reason)


def stopped_by(error: Exception, *, continues: int, settled: int) -> list[str]:
    """What the coordinator is told by a worker that has settled in this generation, and is in one that continues."""
    membership = Listening()
    engine = Engine(lambda board, closed: membership, ProgressPage())
    engine.regrouping.world = World(generation=2, rank=1, size=2, continues=continues)
    engine.regrouping.settled = settled
    engine.regrouping.stop_job_for(error)
    return membership.stopped


@pytest.mark.parametrize("error", [UsageError("wrong"), StateMismatch("wrong")])
def test_a_newcomer_that_does_not_fit_is_turned_away_and_the_others_go_on(error: Exception) -> None:
    assert stopped_by(error, continues=1, settled=0) == []


@pytest.mark.parametrize(("continues", "settled"), [(0, 0), (1, 1), (1, 2)])
def test_one_of_those_that_begin_or_train_stops_all(continues: int, settled: int) -> None:
    assert stopped_by(UsageError("wrong"), continues=continues, settled=settled) == ["UsageError: wrong"]


@pytest.mark.parametrize(
    ("error", "is_own"),
    [(ValueError("odd"), True), (PeerLost("gone"), False), (UsageError("wrong"), False), (SystemExit(0), False)],
)
def test_the_agent_learns_whether_an_exception_was_the_scripts_own(
    error: BaseException, is_own: bool, tmp_path: Path
) -> None:
    board = ProgressPage(tmp_path / "board")
    assert not has_raised(tmp_path / "board")
    Engine(lambda board, closed: Listening(), board).died_of(error)
    board.close()
    assert has_raised(tmp_path / "board") == is_own
    assert has_lifeline(tmp_path / "board")
    ProgressPage().note_raised()  # where no agent looks


@pytest.mark.parametrize("error", [PeerLost("gone"), ValueError("of the script")])
def test_what_is_not_wrong_use_of_us_stops_nobody_else(error: Exception) -> None:
    assert stopped_by(error, continues=1, settled=1) == []
