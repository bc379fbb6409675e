"""What was kept is what was, change by change."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import closing
from dataclasses import replace

import pytest

from everstep.coordinator.store.store import Store, load_generation, restored
from everstep.errors import UsageError
from everstep.storage.database import StoreTaken


@pytest.fixture
def kept(stage, tmp_path):
    """A play whose every act is kept; `reload` reads it back with a store of its own."""
    url = str(tmp_path / "store.db")
    store = Store(url)

    class Kept(stage):
        saved = None

        def _act(self, roster):
            super()._act(roster)
            store.save(self.saved, self.roster)
            self.saved = self.roster

        def reload(self):
            nonlocal store
            store.close()
            store = Store(url)
            return store.load("play")

    yield Kept(start_workers=3)
    store.close()


def facts(roster):
    """All but what everybody says again."""
    return (roster.workers, roster.generation, roster.policy, roster.reserved, roster.num_announced,
            roster.is_stopped, roster.is_finished, roster.reason)  # fmt: skip


def test_a_story_is_kept_act_by_act(kept):
    w0, w1, w2 = kept.add(3)
    acts = [
        lambda: kept.arrive(w0, w1, w2, max_workers=4),
        lambda: kept.settle(w0, w1, w2, step=2),
        lambda: kept.break_(w0, must_probe=True),
        lambda: kept.arrive(w0, w1, step=3, unreachable=(w2,)),
        lambda: kept.arrive(w2, step=3),
        lambda: kept.after(3.0, w0),
        lambda: kept.exit(w1, step=3, micro_batch=1),
        lambda: kept.arrive(w0, step=3),
        lambda: kept.leave(w0, step=3),
    ]
    for act in acts:
        act()
        assert facts(kept.reload()) == facts(kept.roster)
    assert kept.roster.is_finished


def test_a_generation_closed_and_followed_in_one_go_keeps_the_reason_of_its_end(stage, tmp_path):
    store = Store(str(tmp_path / "store.db"))
    play = stage(start_workers=2)
    w0, w1 = play.add(2)
    play.arrive(w0, w1)
    store.save(None, play.roster)
    before = play.roster
    play.exit(w1)
    play.arrive(w0)
    store.save(before, play.roster)

    first, second = store.read(lambda rows: [load_generation(rows, "play", number) for number in (1, 2)])
    assert (first.is_closed, first.reason) == (True, "w1 died: killed by SIGKILL")
    assert not second.is_closed
    store.close()


def test_after_a_restart_everybody_gets_the_full_time(kept):
    w0, w1, w2 = kept.add(3)
    kept.arrive(w0, w1, w2)
    kept.after(3.0, w0, w1)
    roster = restored(kept.reload(), now=5000.0, grace_s=4.0)

    assert (roster.lost_at, roster.closed_at) == ({w2: 5000.0}, 5004.0)
    assert facts(roster) == facts(replace(roster, arrivals={}))


def test_the_file_is_for_its_owner_alone(kept, tmp_path):
    assert stat.S_IMODE((tmp_path / "store.db").stat().st_mode) == 0o600


def test_a_file_system_without_locks_is_told_as_what_it_is(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(UsageError, match="cannot lock the store.*No locks available"):
        Store(str(tmp_path / "store.db"))


def test_who_lost_the_store_neither_writes_nor_reads(tmp_path, stage):
    """Where locks do not reach from machine to machine, a second coordinator may come."""
    path = str(tmp_path / "store.db")
    first, play = Store(path), stage()
    first.save(None, play.roster)
    (tmp_path / "store.db.lock").unlink()  # as good as on another machine
    second = Store(path)

    for act in (lambda: first.save(None, play.roster), lambda: first.load("play"), lambda: first.save_ledgers("j", [])):
        with pytest.raises(StoreTaken):
            act()
    assert second.load("play") is not None
    first.close()
    second.close()


def test_a_store_that_cannot_be_opened_says_why(tmp_path):
    with pytest.raises(UsageError, match="No such file or directory"):
        Store(str(tmp_path / "nowhere" / "store.db"))
    (tmp_path / "text").write_text("this is no database, and long enough to be seen as none" * 100)
    with pytest.raises(UsageError, match="not a database"):
        Store(str(tmp_path / "text"))


def test_a_store_keeps_its_identity_which_no_other_has(tmp_path):
    def identity(name):
        with closing(Store(str(tmp_path / name))) as store:
            return store.identity

    assert identity("a.db") == identity("a.db") != identity("b.db")
