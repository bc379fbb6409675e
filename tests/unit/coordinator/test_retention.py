"""Old jobs are looked for again also after a look that failed."""

from __future__ import annotations

import asyncio

from everstep.coordinator import retention
from everstep.coordinator.retention import JobRetention


def test_a_look_that_fails_is_logged_and_not_the_last_one(monkeypatch, caplog):
    async def story():
        looks, again = [], asyncio.Event()

        async def forget():
            looks.append(1)
            if len(looks) > 1:
                again.set()
            raise RuntimeError("a mistake of ours")

        monkeypatch.setattr(retention, "SWEEP_S", 0.0)
        kept = JobRetention(None, None, None, forget=forget, drop=forget, remove=forget)
        await asyncio.wait_for(again.wait(), 30)
        await kept.close()

    asyncio.run(story())
    assert "could not remove old jobs" in caplog.text and "a mistake of ours" in caplog.text
