"""Nobody holds the coordinator up, and nothing in it grows without end."""

from __future__ import annotations

import socket

import httpx
import pytest

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.errors import CoordinatorUnreachable, Refused
from everstep.retry import patiently

TIGHT = """
import everstep.coordinator.edge.connection as connection, everstep.wire.limits as limits
connection.REQUEST_S, limits.MAX_JOBS, limits.MAX_WORKERS, limits.MAX_NODES = 3.0, 2, 3, 2
limits.MAX_DATASETS = 2
"""
FEW_FILES = """
import everstep.coordinator.edge.server as server, resource
server.RESERVED_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 64
"""
GUARD = """
import everstep.coordinator.edge.guard as guard
guard.FAILURES_PER_S, guard.FAILURES_AT_ONCE = 2.0, 5
"""


@pytest.fixture(scope="module")
def tight(tmp_path_factory, server_class):
    folder = tmp_path_factory.mktemp("tight")
    server = server_class(folder, str(folder / "store.db"), before=TIGHT)
    yield server
    server.stop()
    assert "Traceback" not in server.log_file.read_text()


@pytest.fixture
def strange(tight):
    """A connection that can say anything."""
    with socket.create_connection(("127.0.0.1", tight.port), 60) as connection:
        yield connection


def all_of(connection):
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def head(server, *lines):
    usual = ("PUT /v1/jobs/slow HTTP/1.1", "host: x", f"authorization: Bearer {server.token}")
    return "\r\n".join([*usual, *lines, "", ""]).encode()


def test_who_connects_and_says_nothing_is_hung_up_on(strange):
    assert all_of(strange).startswith(b"HTTP/1.1 408 Request Timeout")


def test_a_head_that_does_not_end_is_hung_up_on(tight, strange):
    strange.sendall(head(tight)[:-4])
    answer = all_of(strange)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"request-too-slow"' in answer


def test_a_body_that_does_not_end_is_hung_up_on(tight, strange):
    strange.sendall(head(tight, "content-length: 100") + b'{"name": ')
    assert all_of(strange).startswith(b"HTTP/1.1 408 ")


def test_a_slow_head_after_a_good_call_is_hung_up_on_too(tight, strange):
    strange.sendall(head(tight, "content-length: 0").replace(b"PUT /v1/jobs/slow", b"GET /v1/health"))
    answer = b""
    while not answer.endswith(b"}"):
        answer += strange.recv(1000)
    assert answer.startswith(b"HTTP/1.1 200 ")
    strange.sendall(b"GET /v1")
    assert all_of(strange).startswith(b"HTTP/1.1 408 ")


def test_an_idle_connection_is_kept(tight):
    with httpx.Client(base_url=tight.url, headers={"authorization": f"Bearer {tight.token}"}, timeout=60) as http:
        http.get("/v1/health")
        with socket.create_connection(("127.0.0.1", tight.port), 60) as other:
            all_of(other)  # longer than a request may take
        (before,) = http._transport._pool.connections
        assert http.get("/v1/health").status_code == 200
        assert http._transport._pool.connections == [before]


def test_a_head_that_is_too_long_is_refused_while_it_comes_in(tight, strange):
    strange.sendall(head(tight, "x: " + "y" * (1 << 16))[:-4])
    answer = all_of(strange)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"the head is longer than 65536 bytes" in answer


def test_too_many_headers_are_refused(tight, strange):
    strange.sendall(head(tight, *(f"x-{n}: y" for n in range(120))))
    answer = all_of(strange)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b"122 headers are more than 100" in answer


def test_a_url_that_is_too_long_is_refused(tight):
    headers = {"authorization": f"Bearer {tight.token}"}
    answer = httpx.get(f"{tight.url}/v1/jobs/{'j' * 9000}", headers=headers, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (414, "url-too-long")


def test_there_are_so_many_jobs_workers_nodes_and_datasets_and_no_more(tight):
    def job(name):
        return Coordinator(tight.url, tight.token, name)

    with job("one") as one, job("two") as two, job("three") as three:
        one.create_job(wire.JobSpec())
        two.create_job(wire.JobSpec())
        with pytest.raises(Refused, match="409 2 jobs are open, the limit is 2: stop some"):
            three.create_job(wire.JobSpec())
        assert two.create_job(wire.JobSpec()).job == "two"  # is there already
        two.stop(wire.Stop(reason="to make room"))
        three.create_job(wire.JobSpec())

        spec = wire.DatasetSpec(size=8, batch_size=1)
        one.register_dataset("train", spec)
        one.register_dataset("test", spec)
        with pytest.raises(Refused, match="409 the job has 2 datasets, the limit is 2"):
            one.register_dataset("more", spec)
        assert one.register_dataset("test", spec).dataset == "test"  # is there already

        for number in range(3):
            one.reserve(wire.ReserveWorker(agent="a", request=str(number)))
        with pytest.raises(Refused, match="409 the job has had 3 workers, the limit is 3"):
            one.reserve(wire.ReserveWorker(agent="a", request="one too many"))
        assert one.reserve(wire.ReserveWorker(agent="a", request="0")).worker == "w0"

        report = wire.AgentReport(incarnation="i", node="n", workers=[], wait_s=0.0)
        for name in ("a", "b", "b"):
            three.report(name, report)
        with pytest.raises(Refused, match="409 the job has had 2 nodes, the limit is 2"):
            three.report("c", report)


def test_calls_that_fail_too_often_are_told_to_wait_and_good_ones_are_not(tmp_path, server_class):
    server = server_class(tmp_path, str(tmp_path / "db"), before=GUARD)
    try:
        with Coordinator(server.url, server.token, "nowhere") as coordinator:
            for _ in range(5):
                with pytest.raises(Refused, match="404"):
                    coordinator.view()
            with pytest.raises(CoordinatorUnreachable, match="429 too many calls that fail") as busy:
                while True:  # sooner than it forgets two a second
                    try:
                        coordinator.view()
                    except Refused:
                        pass
            assert busy.value.wait_s == 1.0
            assert coordinator.check().now > 0
    finally:
        server.stop()


def test_more_connections_than_there_are_files_for_are_told_to_come_back(tmp_path, server_class):
    server = server_class(tmp_path, str(tmp_path / "db"), before=FEW_FILES)
    held = [socket.create_connection(("127.0.0.1", server.port), 60) for _ in range(70)]
    try:
        with Coordinator(server.url, server.token, "job") as coordinator:
            with pytest.raises(CoordinatorUnreachable, match="503"):
                coordinator.check()
            for each in held:
                each.close()
            assert patiently(coordinator.check, 60.0).now > 0
    finally:
        for each in held:
            each.close()
        server.stop()
