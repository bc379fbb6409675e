"""People who share a pool, with real processes: each gets a share by weight, and no more than the quota."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.command import until
from lab.people import ALICE, BOB, ROOT, as_, write_tokens
from lab.pool_nodes import PoolFileStage
from lab.pool_stage import Trials

SLOTS = 4
NODE = {"platform": "local", "max_nodes": 1, "slots_per_node": SLOTS, "idle": "10m"}
WINDOW = 60.0  # slot-seconds


class Shared:
    """A pool of 4 slots with its people."""

    def __init__(self, folder: Path, **people: Mapping[str, Any]) -> None:
        write_tokens(folder)
        self.stage = PoolFileStage(folder, NODE)
        self.stage.people = people
        self.alice, self.bob = self._trials(folder / "alice", ALICE), self._trials(folder / "bob", BOB)

    def _trials(self, folder: Path, token: str) -> Trials:
        folder.mkdir()
        return Trials(folder, lambda: as_(self.stage, token))

    def held(self) -> Counter[str]:
        with as_(self.stage, ROOT) as root:
            return Counter(slot.owner for agent in root.pool("default").agents for slot in agent.slots if slot.owner)

    def used(self) -> Counter[str]:
        """Slot-seconds."""
        with as_(self.stage, ROOT) as root:
            found = Counter[str]()
            for each in root.pool_use("default", days=2).use:
                found[each.person] += each.slot_seconds  # type: ignore[assignment]
            return found

    def most_held(self, experiment: int) -> int:
        """At any time, by the assignments that were stored."""
        with sqlite3.connect(f"file:{self.stage.folder}/store.db?mode=ro", uri=True) as store:
            rows = store.execute("select began_at, ended_at from assignments where experiment = ?", (experiment,))
            changes = [(at, change) for began, ended in rows for at, change in ((began, 1), (ended, -1))]
        most = now = 0
        for _, change in sorted(changes):
            now += change
            most = max(most, now)
        return most

    def whole_story(self) -> str:
        with as_(self.stage, ROOT) as root:
            return f"{root.pool('default')}\n{root.queue('default')}"


def test_two_people_with_weights_1_and_3_use_4_slots_1_to_3(tmp_path: Path) -> None:
    """Of trials that end and begin all the time, by the seconds of slots that were stored."""
    shared = Shared(tmp_path, alice={"weight": 1}, bob={"weight": 3})
    with shared.stage:
        numbers = [trials.create(500, "--seconds", "1") for trials in (shared.alice, shared.bob)]
        until(lambda: shared.held() == {"alice": 1, "bob": 3}, shared.whole_story)
        before = shared.used()
        until(lambda: (shared.used() - before).total() >= WINDOW, shared.whole_story)
        used = shared.used() - before
        for trials, number in zip((shared.alice, shared.bob), numbers, strict=True):
            trials.act(number, "kill")
        assert abs(used["bob"] / used.total() - 3 / 4) <= 0.05 * 3 / 4, used
        assert abs(used["alice"] / used.total() - 1 / 4) <= 0.05 * 1 / 4, used


def test_a_person_never_holds_more_slots_than_the_quota(tmp_path: Path) -> None:
    shared = Shared(tmp_path, bob={"quota": 2})
    with shared.stage:
        first = shared.bob.create(4, "--hold")
        shared.bob.wait_starts(2)
        second = shared.alice.create(2, "--hold")
        shared.alice.wait_starts(2)
        assert shared.held() == {"alice": 2, "bob": 2}
        waiting = [each.reason for each in shared.bob.trials(first) if each.state == "QUEUED"]
        assert waiting == ["needs 1 slot; the quota of bob is 2 slots"] * 2
        shared.alice.let_go()
        assert shared.alice.wait_state(second, "COMPLETED", "ERROR").state == "COMPLETED"
        shared.bob.let_go()
        assert shared.bob.wait_state(first, "COMPLETED", "ERROR").state == "COMPLETED"
        until(lambda: not shared.held(), shared.whole_story)
        assert (shared.most_held(first), shared.most_held(second)) == (2, 2)
