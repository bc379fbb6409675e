"""Changes that wait together share a transaction of the store, and none of them is harmed by the others."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, event, insert, select
from sqlalchemy.exc import OperationalError

from everstep.coordinator.store.store import Store
from everstep.coordinator.store.tables import ENDED_JOBS
from everstep.errors import Refused
from everstep.storage.database import StoreError

Change = Callable[[Connection], str]


class Changes:
    """On a store. They wait until the one before them, which holds up the store's thread, may end."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.num_commits = 0
        event.listen(store._engine, "commit", self._note_commit)

    def _note_commit(self, _: Connection) -> None:
        self.num_commits += 1

    async def together(self, *changes: Change, canceled: int = 0) -> list[Any]:
        """Their answers and errors. `canceled`: so many of the first ones lose their callers while they wait."""
        is_begun, may_end = threading.Event(), threading.Event()

        def hold_up(_: Connection) -> None:
            is_begun.set()
            may_end.wait(60)

        first = asyncio.create_task(self.store.write(hold_up))
        await asyncio.to_thread(is_begun.wait, 60)
        self.num_commits = 0
        self.waiting = [asyncio.create_task(self.store.write(each)) for each in changes]
        await asyncio.sleep(0)  # each has made its call
        for each in self.waiting[:canceled]:
            each.cancel()
        await asyncio.sleep(0)
        may_end.set()
        return (await asyncio.gather(first, *self.waiting, return_exceptions=True))[1:]

    def kept(self, *names: str) -> set[str]:
        with self.store._engine.begin() as connection:
            return set(connection.scalars(select(ENDED_JOBS.c.job).where(ENDED_JOBS.c.job.in_(names))))


def named(name: str) -> Change:
    def change(connection: Connection) -> str:
        connection.execute(insert(ENDED_JOBS), {"job": name, "seen_at": 0.0})
        return name

    return change


def refused(name: str) -> Change:
    def change(connection: Connection) -> str:
        named(name)(connection)
        raise Refused("not allowed")

    return change


@pytest.fixture
def names() -> list[str]:
    return [uuid.uuid4().hex for _ in range(20)]


@pytest.fixture
def play(store_url: str) -> Iterator[Callable[[Callable[[Changes], Awaitable[None]]], None]]:
    store = Store(store_url)
    changes = Changes(store)

    def play(story: Callable[[Changes], Awaitable[None]]) -> None:
        asyncio.run(story(changes))  # type: ignore[arg-type]

    yield play
    store.close()


Play = Callable[[Callable[[Changes], Awaitable[None]]], None]


def test_changes_that_wait_together_are_one_transaction_and_each_has_its_own_answer(
    play: Play, names: list[str]
) -> None:
    async def story(changes: Changes) -> None:
        assert await changes.together(*map(named, names)) == names
        assert changes.num_commits == 2  # theirs, and that of the one before them
        assert changes.kept(*names) == set(names)

    play(story)


def test_no_change_is_answered_before_its_transaction_has_committed(play: Play, names: list[str]) -> None:
    async def story(changes: Changes) -> None:
        answered: list[bool] = []

        def look(_: Connection) -> None:
            answered.extend(each.done() for each in changes.waiting)

        event.listen(changes.store._engine, "commit", look)
        await changes.together(*map(named, names))
        assert answered and not any(answered)

    play(story)


@pytest.mark.parametrize("bad", [refused, lambda name: lambda it: named(name)(it) + named(name)(it)])
def test_a_change_that_fails_leaves_nothing_and_the_others_are_kept(
    play: Play, names: list[str], bad: Callable[[str], Change]
) -> None:
    """Refused by the coordinator's own code, or by the database, which then gives up the whole transaction."""

    async def story(changes: Changes) -> None:
        before, failing, after = names[:9], names[9], names[10:]
        answers = await changes.together(*map(named, before), bad(failing), *map(named, after))
        assert isinstance(answers.pop(9), Refused | StoreError)
        assert answers == [*before, *after]
        assert changes.kept(*names) == {*before, *after}

    play(story)


def test_all_changes_of_a_commit_that_fails_are_told_so(play: Play, names: list[str]) -> None:
    async def story(changes: Changes) -> None:
        def fail(_: Connection) -> None:
            if changes.num_commits > 1:
                raise OperationalError("commit", {}, Exception("the disk is full"))

        event.listen(changes.store._engine, "commit", fail)
        answers = await changes.together(*map(named, names))
        event.remove(changes.store._engine, "commit", fail)
        assert [type(each) for each in answers] == [StoreError] * len(names)
        assert changes.kept(*names) == set()

    play(story)


def test_a_change_whose_caller_is_gone_before_it_was_made_is_not_made(play: Play, names: list[str]) -> None:
    async def story(changes: Changes) -> None:
        answers = await changes.together(*map(named, names), canceled=1)
        assert isinstance(answers[0], asyncio.CancelledError)
        assert changes.kept(*names) == set(names[1:])

    play(story)
