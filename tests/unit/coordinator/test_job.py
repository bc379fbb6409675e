"""Nothing is told before it is kept, and nothing is lost while it cannot be."""

from __future__ import annotations

import asyncio
import json

import pytest

from everstep import wire
from everstep.coordinator.job import CoordinatedJob
from everstep.coordinator.roster.facts import Roster
from everstep.storage.database import StoreError


class Disk:
    """A store that can be full, or slow."""

    def __init__(self) -> None:
        self.is_full = False
        self.is_free = asyncio.Event()
        self.is_free.set()
        self.num_saves = 0

    async def in_thread(self, call) -> None:
        await self.is_free.wait()
        if self.is_full:
            raise StoreError("the disk is full")
        self.num_saves += 1


def with_a_job(story, **policy):
    async def run():
        disk = Disk()
        job = CoordinatedJob(Roster(job="j", name="", policy=wire.Policy(**policy)), disk)
        try:
            await asyncio.wait_for(story(job, disk), 60)
        finally:
            await job.close()

    asyncio.run(run())


def announcement(name):
    return wire.Announce(incarnation=name, pid=1, address="127.0.0.1", store_port=1, probe_port=2)


def arrival(name, generation=0):
    return wire.Arrive(incarnation=name, generation=generation, settled=generation, step=0, max_workers=None)


async def begin(job, name="w0"):
    await job.reserve(wire.ReserveWorker(agent="a", request=name))
    await job.announce(name, announcement(name))


def test_a_generation_is_not_told_before_it_is_kept():
    async def story(job, disk):
        await begin(job)
        disk.is_free.clear()
        arriving = asyncio.create_task(job.arrive("w0", arrival("w0")))
        while not job.roster.generation.number:
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not arriving.done()
        assert job.view().generation == 0

        disk.is_free.set()
        assert json.loads(await arriving)["generation"] == 1

    with_a_job(story)


def test_a_full_disk_is_an_answer_and_asking_again_helps_once_there_is_room():
    async def story(job, disk):
        await begin(job)
        disk.is_full = True
        with pytest.raises(StoreError, match="the disk is full"):
            await job.reserve(wire.ReserveWorker(agent="a", request="another"))
        assert len(job.view().workers) == 1

        disk.is_full = False
        assert (await job.reserve(wire.ReserveWorker(agent="a", request="another"))).worker == "w1"
        assert len(job.view().workers) == 2

    with_a_job(story)


def test_many_changes_cost_one_save():
    async def story(job, disk):
        await begin(job)
        disk.is_free.clear()
        requests = [job.reserve(wire.ReserveWorker(agent="a", request=str(number))) for number in range(100)]
        reserving = asyncio.gather(*requests)
        await asyncio.sleep(0)
        before = disk.num_saves
        disk.is_free.set()
        reserved = await reserving

        assert len({number.worker for number in reserved}) == 100
        assert disk.num_saves - before <= 2

    with_a_job(story)


def test_a_report_without_news_does_not_wait_until_the_changes_of_others_are_kept():
    async def story(job, disk):
        report = wire.AgentReport(incarnation="a", node="n", workers=[], wait_s=0.0)
        await job.report("a", report)
        disk.is_free.clear()
        reserving = asyncio.create_task(job.reserve(wire.ReserveWorker(agent="b", request="r")))
        await asyncio.sleep(0)
        await job.report("a", report)
        assert not reserving.done()

        disk.is_free.set()
        await reserving

    with_a_job(story)


def test_heartbeats_and_arrivals_are_not_written():
    async def story(job, disk):
        for name in ("w0", "w1"):
            await begin(job, name)
        await job.arrive("w0", arrival("w0"))
        before = disk.num_saves
        watch = wire.Watch(
            incarnation="w0", generation=1, seen=0, step=0, phase="outside", phase_s=0.0, longest_step_s=0.0,
            longest_wait_s=0.0,
        )  # fmt: skip
        for _ in range(10):
            await job.watch("w0", watch)
        await job.arrive("w1", arrival("w1"))  # a newcomer: waits

        assert disk.num_saves == before

    with_a_job(story)


async def form_first(job, *names):
    for name in names:
        await begin(job, name)
    await asyncio.gather(*(job.arrive(name, arrival(name)) for name in names))


def test_a_generation_that_ends_in_good_order_and_the_next_one_cost_one_save():
    async def story(job, disk):
        await form_first(job, "w0", "w1")
        before = disk.num_saves
        arriving = asyncio.create_task(job.arrive("w0", arrival("w0", 1)))
        while job.roster.generation.is_open:
            await asyncio.sleep(0)
        formed = [json.loads(await job.arrive("w1", arrival("w1", 1))), json.loads(await arriving)]

        assert [each["generation"] for each in formed] == [2, 2]
        assert disk.num_saves == before + 1

    with_a_job(story, start_workers=2)


def test_a_generation_whose_other_members_do_not_come_is_kept_as_closed():
    async def story(job, disk):
        await form_first(job, "w0", "w1")
        arriving = asyncio.create_task(job.arrive("w0", arrival("w0", 1)))
        while job.kept.generation.is_open:
            await asyncio.sleep(0.01)
        assert (job.kept.generation.number, job.kept.generation.is_broken) == (1, False)
        arriving.cancel()

    with_a_job(story, start_workers=2)


def test_a_loss_is_told_without_waiting_for_others():
    async def story(job, disk):
        await form_first(job, "w0", "w1")
        arriving = asyncio.create_task(job.arrive("w0", arrival("w0", 1)))
        while job.roster.generation.is_open:
            await asyncio.sleep(0)
        assert job.kept.generation.is_open
        await job.broken("w1", wire.Broken(incarnation="w1", generation=1, reason="a loss"))
        assert job.kept.generation.is_broken
        arriving.cancel()

    with_a_job(story, start_workers=2)


def test_a_generation_that_was_closed_before_it_was_told_does_not_strand_its_members():
    async def story(job, disk):
        await begin(job)
        arriving = asyncio.create_task(job.arrive("w0", arrival("w0")))
        while job.kept.generation.number == 0:
            await asyncio.sleep(0)
        await job.broken("w0", wire.Broken(incarnation="w0", generation=1, reason="at once"))

        assert json.loads(await arriving)["generation"] in (1, 2)

    with_a_job(story)


@pytest.mark.parametrize("num_turns", range(6))
def test_it_ends_also_when_something_changes_at_that_moment(num_turns):
    async def story(job, disk):
        await begin(job)
        reserving = asyncio.create_task(job.reserve(wire.ReserveWorker(agent="a", request="at the last moment")))
        for _ in range(num_turns):
            await asyncio.sleep(0)
        await job.close()
        reserving.cancel()

    with_a_job(story)


def test_silence_is_noticed_when_its_time_is_over_and_not_a_lease_later():
    async def story(job, disk):
        report = wire.AgentReport(incarnation="i", node="a", workers=[], num_workers=1, address="h", wait_s=0.0)
        await job.report("a", report)  # the attempt begins
        while not job.kept.attempt.is_closed:
            await asyncio.sleep(0.01)
        assert "no worker printed or did anything" in job.kept.attempt.reason

    with_a_job(story, silence_s=0.1, lease_s=600.0, stall_s=600.0, max_nodes=1, max_restarts=1)


def test_a_view_is_made_once_for_all_who_ask_until_something_changes():
    async def story(job, disk):
        await begin(job)
        first = job.view_json()
        assert job.view_json() is first
        brief = job.view_json(is_brief=True)
        assert json.loads(brief)["workers"] == []

        watch = wire.Watch(incarnation="w0", generation=0, seen=0, step=7, phase=wire.OUTSIDE, phase_s=0.0,
                           longest_step_s=0.0, longest_wait_s=0.0)  # fmt: skip
        await job.watch("w0", watch)
        assert json.loads(job.view_json())["workers"][0]["step"] == 7
        assert job.view_json(is_brief=True) is brief

        await begin(job, "w1")
        assert len(json.loads(job.view_json())["workers"]) == 2

    with_a_job(story)


def test_a_hang_is_looked_for_although_leases_and_stalls_take_longer():
    async def story(job, disk):
        await begin(job, "w0")
        await begin(job, "w1")
        await asyncio.gather(job.arrive("w0", arrival("w0")), job.arrive("w1", arrival("w1")))
        for name, phase in (("w0", wire.COMPUTING), ("w1", wire.WAITING)):
            await job.watch(name, wire.Watch(incarnation=name, generation=1, seen=0, phase=phase, phase_s=0.0))
        while job.roster.workers["w0"].status != "lost":
            await asyncio.sleep(0.01)
        assert "w0 has computed for" in job.roster.workers["w0"].reason

    with_a_job(story, start_workers=2, heartbeat_s=0.01, lease_s=600.0, stall_s=600.0, hang_s=0.1)
