"""The list of jobs is right also about those that change while it is read from the store."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from everstep.coordinator import job_listing
from everstep.coordinator.job_listing import JobListing
from everstep.wire import JobSummary


class SlowReader:
    def __init__(self, found):
        self._found, self.is_asked, self.go_on = found, asyncio.Event(), asyncio.Event()

    async def summaries(self):
        self.is_asked.set()
        await self.go_on.wait()
        return self._found


def test_jobs_that_leave_the_memory_or_the_store_while_it_is_read_are_listed_as_they_are():
    async def story():
        kept, changed, removed = (
            JobSummary(job=name, name="", state="running", reason="", created_at=0.0)
            for name in ("kept", "changed", "removed")
        )
        reader = SlowReader([kept, changed, removed])
        listing = JobListing(reader, {}, None)
        asking = asyncio.create_task(listing.find(0, 10, "job", is_descending=False, search="", states=()))
        await reader.is_asked.wait()
        listing.forget("removed")
        listing.keep(replace(changed, state="finished"))
        reader.go_on.set()
        return [(each.job, each.state) for each in (await asking).jobs]

    assert asyncio.run(story()) == [("changed", "finished"), ("kept", "running")]


def test_a_list_is_sorted_again_only_if_a_job_has_changed(monkeypatch):
    async def story():
        rows = [JobSummary(job=name, name="", state="running", reason="", created_at=0.0) for name in "cab"]
        reader = SlowReader(rows)
        reader.go_on.set()
        listing, num_sorted = JobListing(reader, {}, None), []
        sort = job_listing._sorted
        monkeypatch.setattr(job_listing, "_sorted", lambda *given: num_sorted.append(1) or sort(*given))

        async def names(**asked):
            asked = {"is_descending": False, "search": "", "states": (), **asked}
            return "".join(each.job for each in (await listing.find(0, 10, "job", **asked)).jobs)

        assert [await names() for _ in range(3)] == ["abc"] * 3 and len(num_sorted) == 1
        assert await names(is_descending=True) == "cba" and await names(search="b") == "b"
        listing.keep(replace(rows[0], state="finished"))
        assert await names(states=("finished",)) == "c" and await names(states=("running",)) == "ab"
        listing.forget("a")
        assert await names() == "bc"

    asyncio.run(story())
