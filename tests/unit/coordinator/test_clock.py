"""Nobody is lost for a coordinator that was stopped; whoever is silent while it listens still is."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager

import pytest

from everstep import wire
from everstep.coordinator.clock import LONGEST_GAP_S, TICK_S, Clock
from everstep.coordinator.service import Service
from everstep.coordinator.store import Store


class Wall:
    """A clock on the wall that goes on when it is told to."""

    def __init__(self) -> None:
        self.time_s = 100.0

    def __call__(self) -> float:
        return self.time_s


def test_it_goes_like_the_one_on_the_wall_while_it_is_looked_at():
    wall = Wall()
    clock = Clock(wall)
    for _ in range(100):
        wall.time_s += TICK_S
        clock.now()
    assert clock.now() == pytest.approx(100.0 + 100 * TICK_S)


def test_it_stands_still_while_nobody_looks():
    wall = Wall()
    clock = Clock(wall)
    for _ in range(2):
        before = clock.now()
        wall.time_s += 3600.0
        assert clock.now() == pytest.approx(before + LONGEST_GAP_S)


@asynccontextmanager
async def one_that_trains(tmp_path, wall):
    service = Service(Store(str(tmp_path / "db")), Clock(wall))
    try:
        job = await service.create("j", wire.JobSpec(policy=wire.Policy(lease_s=3.0)))
        await job.reserve(wire.SlotRequest(agent="a", request="r"))
        await job.announce("w0", wire.Announce(incarnation="i", pid=1, address="h", store_port=1, probe_port=2))
        await job.arrive("w0", wire.Arrive(incarnation="i", generation=0, settled=0, step=0, max_workers=None))
        yield job
    finally:
        await service.close()


async def status(job):
    await job.reserve(wire.SlotRequest(agent="a", request=os.urandom(8).hex()))  # so that all that is due is decided
    return job.view().workers[0].status


def test_nobody_is_lost_while_the_coordinator_does_not_get_on(tmp_path):
    async def story():
        wall = Wall()
        async with one_that_trains(tmp_path, wall) as job:
            for _ in range(5):
                wall.time_s += 600.0
                assert await status(job) == "member"

    asyncio.run(story())


def test_who_is_silent_while_it_listens_is_lost_after_its_lease(tmp_path):
    async def story():
        wall = Wall()
        async with one_that_trains(tmp_path, wall) as job:
            began = wall.time_s
            while await status(job) == "member":
                wall.time_s += TICK_S
            assert wall.time_s - began == pytest.approx(3.0, abs=3 * TICK_S)

    asyncio.run(story())
