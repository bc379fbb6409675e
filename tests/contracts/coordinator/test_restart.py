"""kill -9 the coordinator and start it again: everything is as before, and nobody is lost for it."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest
from sqlalchemy import create_engine, text

from everstep.client.calls import Coordinator
from everstep.coordinator.store.store import ADVISORY_LOCK
from everstep.errors import CoordinatorUnreachable, UsageError
from everstep.waiting import wait_until

HELD = {"heartbeat_s": 30.0, "lease_s": 60.0}  # a call without news is held for half a minute


@pytest.fixture
def frail(request, tmp_path, server_class):
    """A coordinator of its own, to be killed; on SQLite unless a test asks for something else."""
    is_postgres = getattr(request, "param", "sqlite") == "postgres"
    server = server_class(tmp_path, request.getfixturevalue("postgres_url") if is_postgres else str(tmp_path / "db"))
    yield server
    server.end()


on_both_stores = pytest.mark.parametrize("frail", ["sqlite", "postgres"], indirect=True)


def reborn(server):
    server.kill()
    server.start()


@on_both_stores
def test_everything_is_as_before(frail, play):
    job = play(frail, start_workers=3, micro_batch_deaths=2)
    w0, w1, w2 = job.training(3)
    dead = job.puppets(1)[0]
    dead.exit(-9, step=3, micro_batch=1)
    before = job.view()

    reborn(frail)

    assert job.view() == before
    assert job.coordinator.generation(1).members[2].worker == w2.name
    assert not w0.watch().is_closed  # an open generation stays open
    assert job.puppets(1)[0].name == "w4"  # no name is given twice
    w1.break_("a socket broke", must_probe=True)

    reborn(frail)

    watched = w0.watch()
    assert (watched.is_closed, watched.must_probe, watched.reason) == (True, True, "w1: a socket broke")
    answers = job.together(w0.arrive, w1.arrive, w2.arrive)
    assert [(a.generation, a.continues) for a in answers] == [(2, 1)] * 3  # who held which state was kept too
    another = job.puppets(1)[0]
    another.exit(-9, step=3, micro_batch=1)
    assert job.view().reason.startswith("micro-batch 1 of step 3 killed w3, w5")

    reborn(frail)

    assert job.view().is_stopped


def test_asked_to_stop_it_answers_the_calls_it_holds(frail, play):
    job = play(frail, **HELD)
    (w0,) = job.training(1)
    w0.watch()  # hears all the news there is, so that the next one is held
    with ThreadPoolExecutor(1) as threads:
        w0.step = 7
        held = threads.submit(w0.watch)
        wait_until(lambda: job.view().workers[0].step == 7, 60, "the call to be held")
        frail.process.terminate()
        with pytest.raises(CoordinatorUnreachable) as refused:
            held.result(60)
    assert refused.value.code == "coordinator-stops"
    assert frail.process.wait(60) == -signal.SIGTERM
    assert "Cancel" not in frail.log_file.read_text()  # uvicorn's word for calls that it had to cut


@on_both_stores
def test_two_coordinators_do_not_share_a_store(frail, tmp_path, server_class):
    folder = tmp_path / "second"
    folder.mkdir()
    with pytest.raises(AssertionError, match="another coordinator uses this"):
        server_class(folder, frail.store).stop()


@pytest.mark.parametrize("frail", ["postgres"], indirect=True)
def test_a_coordinator_whose_lock_was_lost_stops_before_it_writes_once_more(frail, play, tmp_path, server_class):
    job = play(frail)
    job.training(1)
    lose_lock(frail.store)
    folder = tmp_path / "second"
    folder.mkdir()
    with closing_server(server_class(folder, frail.store)) as second:  # let in: the lock was free
        with pytest.raises(CoordinatorUnreachable):
            job.puppets(1)

        assert frail.process.wait(60) == -signal.SIGTERM
        assert "another coordinator has taken this store" in frail.log_file.read_text()
        with closing(Coordinator(second.url, second.token, job.coordinator.job)) as coordinator:
            assert [worker.worker for worker in coordinator.view().workers] == ["w0"]


def lose_lock(url):
    """As by a failover, or a firewall that forgets idle connections."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
    holders = f"select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and objid = {ADVISORY_LOCK}"
    with engine.begin() as connection:
        assert connection.scalars(text(holders)).all() == [True]
    engine.dispose()


@contextmanager
def closing_server(server):
    try:
        yield server
    finally:
        server.end()


def test_the_token_is_made_for_its_owner_alone_and_shown_nowhere(frail):
    assert stat.S_IMODE(frail.token_file.stat().st_mode) == 0o600
    assert len(frail.token) >= 32
    with open(f"/proc/{frail.process.pid}/cmdline", "rb") as command_line:
        assert frail.token.encode() not in command_line.read()
    token = frail.token
    reborn(frail)
    assert frail.token == token
    assert token not in frail.log_file.read_text()


def test_a_token_file_that_others_may_read_is_refused(tmp_path):
    from everstep.coordinator.edge.server import read_or_create_token

    (tmp_path / "token").write_text("secret")
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(UsageError, match="others can read it"):
        read_or_create_token(tmp_path / "token")


def test_importing_the_coordinator_does_not_import_torch():
    code = "import sys, everstep.coordinator.edge.server, everstep.client.calls; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)}, check=True)
