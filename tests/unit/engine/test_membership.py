"""A worker's membership: whatever ends one of its threads reaches the script."""

from __future__ import annotations

import threading

import pytest

from everstep import wire
from everstep.engine.membership import Membership
from everstep.errors import PermanentError
from everstep.ipc.progress_page import ProgressPage

WAIT_S = 30.0


class Odd:
    """A coordinator whose calls fail in an unforeseen way."""

    def __init__(self, *failing):
        self.failing = failing

    def announce(self, worker, message):
        return wire.Announced(is_newcomer=False, policy=wire.Policy())

    def watch(self, worker, message):
        if "watch" in self.failing:
            raise OSError(116, "Stale file handle")
        return wire.Watched(seen=1, is_closed=False, reason="", must_probe=False, newcomers=0, leavers={},
                            is_stopped=False)  # fmt: skip

    def arrive(self, worker, message):
        raise OSError(116, "Stale file handle")

    def close(self):
        pass


@pytest.mark.parametrize("failing", ["watch", "arrive"])
def test_a_thread_of_the_membership_does_not_end_in_silence(failing):
    closed = threading.Event()
    membership = Membership(Odd(failing), "http://127.0.0.1:9", "w0", ProgressPage(), lambda generation: closed.set())
    try:
        membership.announce()
        membership.arrive(0)
        with pytest.raises(PermanentError, match="Stale file handle"):
            membership.next_group(0)
        assert closed.wait(WAIT_S)
    finally:
        membership.close()
