"""A coordinator that stood still holds nobody's silence against them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from everstep import wire
from everstep.coordinator.job import Job
from everstep.coordinator.lapse import is_lapse
from everstep.coordinator.roster import Roster

LEASE_S = 60.0


async def keep(*_: object) -> None: ...


def test_a_deadline_that_is_looked_at_much_later_was_slept_through() -> None:
    assert is_lapse(100.0, now=160.0)
    assert not is_lapse(100.0, now=100.1)
    assert not is_lapse(None, now=100.0)


def test_who_could_not_be_heard_is_not_lost() -> None:
    async def story() -> str:
        job = Job(Roster(job="j", name="", policy=wire.Policy(lease_s=LEASE_S)), keep, keep)
        try:
            await job.reserve(wire.SlotRequest(agent="a", request="w0"))
            announcement = wire.Announce(incarnation="i", pid=1, address="127.0.0.1", store_port=1, probe_port=2)
            await job.announce("w0", announcement)
            now = time.monotonic()
            job.signs["w0"] = replace(job.signs["w0"], alive_at=now - 2 * LEASE_S)
            job._examine_at = now - LEASE_S
            await job.reserve(wire.SlotRequest(agent="a", request="w1"))  # something happens
            return job.view().workers[0].status
        finally:
            await job.close()

    assert asyncio.run(story()) != "lost"
