"""What a caller gets when things go wrong: the right type, the numbers, and never the token."""

from __future__ import annotations

import socket
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from everstep import wire
from everstep.client.calls import ASK_S, NUM_ASKED, SILENT_S, Coordinator, is_foreign
from everstep.errors import Abandoned, CoordinatorUnreachable, Refused, UsageError
from everstep.retry import patiently

SECRET = "not-to-be-seen-anywhere"


@pytest.fixture
def nobody():
    """A port that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def silent():
    """A port that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_refusal_carries_its_status_and_the_text(server):
    with Coordinator(server.url, server.token, "nowhere") as coordinator, pytest.raises(Refused) as refused:
        coordinator.view()
    assert refused.value.status == 404
    assert "there is no job nowhere" in refused.value.message


def test_a_wrong_token_is_refused_and_not_repeated(server):
    with Coordinator(server.url, SECRET, "job") as coordinator, pytest.raises(Refused) as refused:
        coordinator.view()
    assert refused.value.status == 401
    assert SECRET not in "".join(traceback.format_exception(refused.value)) + repr(coordinator) + str(refused.value)


def test_nobody_there(nobody):
    with Coordinator(nobody, SECRET, "job") as coordinator, pytest.raises(CoordinatorUnreachable) as unreachable:
        coordinator.view()
    assert nobody in unreachable.value.message
    assert SECRET not in "".join(traceback.format_exception(unreachable.value))


def test_nobody_answers(silent):
    with (
        Coordinator(silent, SECRET, "job", answer_s=0.1) as coordinator,
        pytest.raises(CoordinatorUnreachable, match="ReadTimeout"),
    ):
        coordinator.view()


def test_a_closed_client_calls_nobody(server):
    coordinator = Coordinator(server.url, server.token, "job")
    coordinator.close()
    with pytest.raises(CoordinatorUnreachable, match="closed"):
        coordinator.view()


def test_a_token_that_http_cannot_carry_is_refused_without_being_shown():
    with pytest.raises(UsageError) as refused:
        Coordinator("http://127.0.0.1:1", f"{SECRET}\x07x", "job")
    assert SECRET not in str(refused.value)


def test_it_is_made_quickly(nobody):
    took_s = []
    for _ in range(10):
        started = time.thread_time()
        Coordinator(nobody, SECRET, "job").close()
        took_s.append(time.thread_time() - started)
    assert min(took_s) < 0.02


def test_threads_share_one_client(play):
    job = play(start_workers=8)
    puppets = job.puppets(8)

    assert sorted(answer.rank for answer in job.together(*(each.arrive for each in puppets))) == list(range(8))


def test_patience_ends_at_its_deadline_and_says_so(nobody):
    with (
        Coordinator(nobody, SECRET, "job") as coordinator,
        pytest.raises(CoordinatorUnreachable, match=r"gave up after \d+\.\d s and \d+ tries: GET http://127.0.0.1"),
    ):
        patiently(coordinator.view, 0.5)


def test_patience_can_be_abandoned(nobody):
    stop = threading.Event()
    threading.Timer(0.1, stop.set).start()
    with Coordinator(nobody, SECRET, "job") as coordinator, pytest.raises(Abandoned):
        patiently(coordinator.view, 600.0, stop=stop)


def test_patience_does_not_repeat_what_was_refused(server):
    calls = []
    with Coordinator(server.url, server.token, "nowhere") as coordinator, pytest.raises(Refused):
        patiently(lambda: calls.append(1) or coordinator.view(), 600.0)
    assert len(calls) == 1


def test_messages_survive_the_wire():
    worker = wire.WorkerView(worker="w0", status="member", reason="", agent="a", pid=1, step=2, generation=1, rank=0)
    other = replace(worker, worker="w1", rank=1)
    view = wire.JobView(
        job="j", generation=1, is_closed=False, is_stopped=False, is_finished=False, reason="…", workers=[worker, other]
    )
    assert wire.from_json(wire.JobView, wire.to_json(view)) == view
    assert wire.from_json(wire.ReservedWorker, b'{"worker": "w0", "added_later": 1}') == wire.ReservedWorker(
        worker="w0"
    )
    spec = wire.JobSpec(policy=wire.Policy(max_workers=3))
    assert wire.from_json(wire.JobSpec, wire.to_json(spec)) == spec


@pytest.fixture
def refuser():
    """A server that refuses every call: its address, and the tokens that it was sent."""
    sent = []

    class Refusal(BaseHTTPRequestHandler):
        def do_GET(self):
            sent.append(self.headers["authorization"])
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_error(404)

        do_PUT = do_POST = do_GET  # noqa: N815

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Refusal) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", sent
        server.shutdown()
        thread.join()


def test_each_call_sends_the_token_that_may_do_no_more_than_it_needs(refuser):
    url, sent = refuser
    with Coordinator(url, "user:uuuu\nworker:wwww\nread-only:rrrr\n", "job") as coordinator:
        for call in (
            coordinator.view,
            lambda: coordinator.create_job(wire.JobSpec()),
            lambda: coordinator.reserve(wire.ReserveWorker(agent="a", request="r")),
        ):
            with pytest.raises(Refused):
                call()

    assert sent == ["Bearer rrrr", "Bearer uuuu", "Bearer wwww"]


@pytest.fixture
def babbler():
    """A port that answers something else than HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def babble():
            for _ in range(2):  # the call, and the question whether it is TLS
                with listener.accept()[0] as connection:
                    connection.recv(1000)
                    connection.sendall(b"220 welcome\r\n")

        thread = threading.Thread(target=babble)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def test_another_program_is_told_from_a_coordinator(server, nobody, babbler):
    assert is_foreign(babbler)
    assert not is_foreign(server.url)
    assert not is_foreign(nobody)  # it may come


def test_a_held_call_ends_when_its_client_is_closed():
    watch = wire.Watch(incarnation="i", generation=0, seen=0, wait_s=600.0)
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as thread:
        coordinator = Coordinator(f"http://127.0.0.1:{listener.getsockname()[1]}", SECRET, "job")
        watching = thread.submit(coordinator.watch, "w0", watch)
        with listener.accept()[0] as connection:
            assert connection.recv(1 << 16)
            coordinator.close()
            assert isinstance(watching.exception(30), CoordinatorUnreachable)


def test_the_kernel_asks_whether_the_coordinator_of_a_held_call_is_there(server):
    with Coordinator(server.url, server.token, "job") as coordinator:
        coordinator.check()
        (sock,) = coordinator._sockets
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        assert [sock.getsockopt(socket.IPPROTO_TCP, each) for each in options] == [SILENT_S, ASK_S, NUM_ASKED]
