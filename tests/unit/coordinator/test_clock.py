"""Nobody is lost for a coordinator that was stopped or away; whoever is silent while it listens is, after its lease.

The clock on the wall is the test's, so that none of these stories depends on how busy the machine is."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import asynccontextmanager

import pytest

from everstep import wire
from everstep.coordinator.clock import LONGEST_GAP_S, TICK_S, Clock
from everstep.coordinator.roster.health import CUT_S
from everstep.coordinator.service import Service
from everstep.coordinator.store.store import Store
from everstep.retry import LONGEST_PAUSE_S


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


POLICY = wire.Policy(lease_s=3.0, heartbeat_s=1.0)


@asynccontextmanager
async def coordinator(tmp_path, wall):
    """One after the other, on the same store."""
    service = Service(Store(str(tmp_path / "db")), Clock(wall))
    try:
        yield await service.create("j", wire.JobSpec(policy=POLICY))
    finally:
        await service.close()


async def train(job):
    await job.reserve(wire.ReserveWorker(agent="a", request="r"))
    await job.announce("w0", wire.Announce(incarnation="i", pid=1, address="h", store_port=1, probe_port=2))
    await job.arrive("w0", wire.Arrive(incarnation="i", generation=0, settled=0, step=0, max_workers=None))


async def status(job):
    await job.reserve(wire.ReserveWorker(agent="a", request=os.urandom(8).hex()))  # so that all that is due is decided
    return job.view().workers[0].status


async def lost_after(job, wall):
    began = wall.time_s
    while await status(job) == "member":
        wall.time_s += TICK_S
    return pytest.approx(wall.time_s - began, abs=3 * TICK_S)


def told(story):
    def tell(tmp_path):
        asyncio.run(asyncio.wait_for(story(tmp_path, Wall()), 60))

    return tell


@told
async def test_nobody_is_lost_while_the_coordinator_does_not_get_on(tmp_path, wall):
    async with coordinator(tmp_path, wall) as job:
        await train(job)
        for _ in range(5):
            wall.time_s += 600.0
            assert await status(job) == "member"


@told
async def test_who_is_silent_while_it_listens_is_lost_after_its_lease(tmp_path, wall):
    async with coordinator(tmp_path, wall) as job:
        await train(job)
        assert await lost_after(job, wall) == POLICY.lease_s


@told
async def test_an_agent_proves_that_its_busy_worker_lives(tmp_path, wall):
    running = [wire.WorkerState(worker="w0", is_running=True)]
    report = wire.AgentReport(incarnation="a", node="n", workers=running, wait_s=0.0)
    async with coordinator(tmp_path, wall) as job:
        await train(job)
        for _ in range(100):
            wall.time_s += TICK_S
            await job.report("a", report)
        assert await status(job) == "member"
        assert await lost_after(job, wall) == POLICY.lease_s


@told
async def test_an_agent_that_waited_in_vain_for_a_coordinator_that_was_away_has_its_lease(tmp_path, wall):
    report = wire.AgentReport(incarnation="a", node="n", workers=[], wait_s=0.0)
    async with coordinator(tmp_path, wall) as job:
        await train(job)
        for away_s, patience_s in ((0.0, CUT_S), (600.0, POLICY.lease_s)):
            await job.report("a", report)
            wall.time_s += away_s
            job.may_be_gone("a", report, is_cut=True)
            began = wall.time_s
            while (await status(job), job.view().nodes[0].is_present)[1]:
                wall.time_s += TICK_S
            assert wall.time_s - began == pytest.approx(patience_s, abs=3 * TICK_S)


@told
async def test_who_does_not_come_back_after_a_restart_is_lost_after_a_full_lease_and_stays_so(tmp_path, wall):
    async with coordinator(tmp_path, wall) as job:
        await train(job)
    wall.time_s += 600.0  # nobody is lost for a coordinator that was away
    async with coordinator(tmp_path, wall) as job:
        assert await lost_after(job, wall) == LONGEST_PAUSE_S + POLICY.lease_s
    async with coordinator(tmp_path, wall) as job:
        report = wire.AgentReport(incarnation="a", node="n", workers=[])
        assert [order["worker"] for order in json.loads(await job.report("a", report))["kill"]] == ["w0"]
