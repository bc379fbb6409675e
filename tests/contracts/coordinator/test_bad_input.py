"""Whatever is sent, the answer is a 4xx with a short text, and nothing changes."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, replace

import httpx
import pytest

from everstep import wire

WATCH = wire.Watch(
    incarnation="i", generation=0, seen=0, step=0, phase="outside", phase_s=0.0, longest_step_s=0.0, longest_wait_s=0.0
)
ARRIVE = wire.Arrive(incarnation="i", generation=0, settled=0, step=0, max_workers=None)
ANNOUNCE = wire.Announce(incarnation="i", pid=1, address="127.0.0.1", store_port=1, probe_port=2)
EXIT = wire.WorkerExit(exit_code=0)
SETTLED = wire.Settled(incarnation="i", generation=0, step=0)
LEAVE = wire.Leave(incarnation="i", generation=0, step=0, reason="")
BROKEN = wire.Broken(incarnation="i", generation=0, reason="")
LEASE = wire.LeaseRequest(incarnation="i", dataset="train", request=1, wait_s=0.0)
PART = wire.LeasePart(lease=1, start=0, count=1)
SLOT = wire.ReserveWorker(agent="a", request="r")
STATE = wire.WorkerState(worker="w9", is_running=True)
REPORT = wire.AgentReport(incarnation="a", node="n", workers=[])


def without(message, name):
    return {key: value for key, value in asdict(message).items() if key != name}


BAD = [
    ("not JSON", "workers/w0/watch", b"{", 422),
    ("not an object", "workers/w0/watch", b"[]", 422),
    ("empty", "workers/w0/watch", b"", 422),
    ("not UTF-8", "workers/w0/announce", b'{"incarnation":"\xff"}', 422),
    ("unknown field", "workers/w0/watch", {**asdict(WATCH), "x": 1}, 422),
    ("missing field", "workers/w0/watch", without(WATCH, "seen"), 422),
    ("text for a number", "workers/w0/watch", {**asdict(WATCH), "step": "5"}, 422),
    ("truth for a number", "workers/w0/watch", {**asdict(WATCH), "step": True}, 422),
    ("fraction for a number", "workers/w0/watch", {**asdict(WATCH), "step": 1.5}, 422),
    ("number for a text", "workers/w0/watch", {**asdict(WATCH), "incarnation": 5}, 422),
    ("null for a number", "workers/w0/watch", {**asdict(WATCH), "step": None}, 422),
    ("not a number", "workers/w0/watch", json.dumps({**asdict(WATCH), "phase_s": float("nan")}).encode(), 422),
    ("infinite", "workers/w0/watch", json.dumps({**asdict(WATCH), "phase_s": float("inf")}).encode(), 422),
    ("negative time", "workers/w0/watch", replace(WATCH, phase_s=-1.0), 422),
    ("negative step", "workers/w0/watch", replace(WATCH, step=-1), 422),
    ("huge step", "workers/w0/settled", replace(SETTLED, step=2**70), 422),
    ("unknown phase", "workers/w0/watch", replace(WATCH, phase="dancing"), 422),
    ("NUL in a text", "workers/w0/announce", replace(ANNOUNCE, address="a\0b"), 422),
    ("lone surrogate", "workers/w0/announce", b'{"incarnation":"\\ud800","pid":1,"address":"a"}', 422),
    ("no incarnation", "workers/w0/announce", replace(ANNOUNCE, incarnation=""), 422),
    ("text for a list", "workers/w0/arrive", {**asdict(ARRIVE), "unreachable": "w1"}, 422),
    ("max_workers 0", "workers/w0/arrive", replace(ARRIVE, max_workers=0), 422),
    ("deep nesting", "workers/w0/watch", b"[" * 100_000, 422),
    ("bad inner field", "agents/a/report", {**asdict(REPORT), "workers": [{"worker": "w0", "is_running": 1}]}, 422),
    ("negative wait", "agents/a/report", replace(REPORT, wait_s=-1.0), 422),
    ("micro-batch below -1", "workers/w0/exited", replace(EXIT, micro_batch=-2), 422),
    ("unknown worker watches", "workers/w9/watch", WATCH, 404),
    ("unknown worker arrives", "workers/w9/arrive", ARRIVE, 404),
    ("unknown worker announces", "workers/w9/announce", ANNOUNCE, 404),
    ("unknown worker exited", "workers/w9/exited", EXIT, 404),
    ("unknown worker settled", "workers/w9/settled", SETTLED, 404),
    ("unknown worker leaves", "workers/w9/leave", LEAVE, 404),
    ("unknown worker broken", "workers/w9/broken", BROKEN, 404),
    ("unknown worker reported", "agents/a/report", replace(REPORT, workers=[STATE]), 404),
    ("strange worker", "workers/..%2f..%00/watch", WATCH, 404),
    ("unknown call", "workers/w0/dance", WATCH, 404),
    ("another incarnation watches", "workers/w0/watch", replace(WATCH, incarnation="j"), 409),
    ("another incarnation arrives", "workers/w0/arrive", replace(ARRIVE, incarnation="j"), 409),
    ("future generation watched", "workers/w0/watch", replace(WATCH, generation=7), 409),
    ("future generation arrived", "workers/w0/arrive", replace(ARRIVE, generation=7), 409),
    ("future generation held", "workers/w0/arrive", replace(ARRIVE, settled=7), 409),
    ("future generation settled", "workers/w0/settled", replace(SETTLED, generation=7), 409),
    ("future generation broken", "workers/w0/broken", replace(BROKEN, generation=7), 409),
    ("future generation left", "workers/w0/leave", replace(LEAVE, generation=7), 409),
    ("a dead worker arrives", "workers/w1/arrive", replace(ARRIVE, incarnation=""), 409),
    ("no samples to report", "workers/w0/lease", replace(LEASE, done=[replace(PART, count=0)]), 422),
    ("a position before the first", "workers/w0/lease", replace(LEASE, returned=[replace(PART, start=-1)]), 422),
    ("request 0", "workers/w0/lease", replace(LEASE, request=0), 422),
    ("too many leases", "workers/w0/lease", replace(LEASE, wants=65), 422),
    ("too many parts", "workers/w0/lease", replace(LEASE, done=[PART] * 8193), 422),
    ("no generation settles", "workers/w0/lease", replace(LEASE, settles=True), 422),
    ("future generation leases", "workers/w0/lease", replace(LEASE, generation=7), 409),
    ("another incarnation leases", "workers/w0/lease", replace(LEASE, incarnation="j"), 409),
    ("a dead worker leases", "workers/w1/lease", LEASE, 409),
    ("unknown worker leases", "workers/w9/lease", LEASE, 404),
    ("unknown dataset", "workers/w0/lease", replace(LEASE, dataset="nothing"), 404),
    ("unknown dataset restored", "datasets/nothing/restore",
     {"request": "r", "checkpoint": {"size": 1, "shuffle": False, "seed": 0, "done": []}}, 404),
    ("half a range restored", "datasets/train/restore",
     {"request": "r", "checkpoint": {"size": 9, "shuffle": False, "seed": 0, "done": [[1]]}}, 409),
    ("long reason", "workers/w0/broken", replace(BROKEN, reason="r" * (1 << 16) + "!"), 422),
    ("long name", "workers", replace(SLOT, agent="a" * 257), 422),
    ("long name in the path", f"agents/{'a' * 257}/report", REPORT, 422),
    ("long name that leaves", f"agents/{'a' * 257}/leave", wire.AgentLeave(incarnation="a", reason=""), 422),
    ("more workers than a node can have", "agents/a/report", replace(REPORT, num_workers=4097), 422),
    ("no such port", "workers/w0/announce", replace(ANNOUNCE, store_port=65536), 422),
    ("number without a request", "workers", without(SLOT, "request"), 422),
]  # fmt: skip


@pytest.fixture
def job(play):
    job = play(start_workers=2)
    (w0, w1) = job.puppets(2)
    w0.incarnation = "i"
    w0.announce()
    w1.exit(1)
    job.coordinator.register_dataset("train", wire.DatasetSpec(size=9, batch_size=1))
    return job


@pytest.fixture
def http(server):
    headers = {"authorization": f"Bearer {server.token}"}
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=60) as client:
        yield client


def as_bytes(body):
    if isinstance(body, bytes):
        return body
    return json.dumps(body if isinstance(body, dict) else asdict(body)).encode()


@pytest.mark.parametrize(("path", "body", "status"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_it_is_refused_and_nothing_changes(job, http, path, body, status):
    before = job.view(), job.coordinator.datasets()
    answer = http.post(f"/v1/jobs/{job.coordinator.job}/{path}", content=as_bytes(body))

    assert (answer.status_code, list(answer.json())) == (status, ["detail", "code"])
    assert len(answer.content) < 500
    assert (job.view(), job.coordinator.datasets()) == before


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/jobs/nobody", 404),
        ("POST", "/v1/jobs/nobody/workers/w0/watch", 404),
        ("GET", "/v1/jobs/{job}/generations/1", 404),
        ("GET", "/v1/jobs/{job}/generations/0", 404),
        ("GET", "/v1/jobs/{job}/generations/-1", 422),
        ("GET", "/v1/jobs/{job}/generations/many", 422),
        ("GET", "/v1/jobs/{job}/generations/" + "9" * 5000, 422),
        ("DELETE", "/v1/jobs/{job}", 405),
        ("GET", "/v1/jobs/{job}/workers/w0/watch", 405),
        ("GET", "/docs", 404),
        ("GET", "/openapi.json", 404),
        ("GET", "/v1/jobs/%00", 404),
    ],
)
def test_what_does_not_exist(job, http, method, path, status):
    assert http.request(method, path.format(job=job.coordinator.job)).status_code == status


@pytest.mark.parametrize(
    "spec",
    [
        {"size": 0, "batch_size": 1},
        {"size": 1, "batch_size": 0},
        {"size": 1 << 40, "batch_size": 1, "epochs": 1 << 20},
        {"size": 1, "batch_size": 1, "on_bad_shard": "ignore"},
        {"size": 1, "batch_size": 1, "minibatches_per_shard": 0},
        {"size": 1},
    ],
)
def test_a_dataset_that_makes_no_sense_is_not_registered(job, http, spec):
    path = f"/v1/jobs/{job.coordinator.job}/datasets"
    assert http.put(f"{path}/senseless", json=spec).status_code == 422
    assert http.put(f"{path}/a%20b", json={"size": 1, "batch_size": 1}).status_code == 422
    assert len(job.coordinator.datasets().datasets) == 1


@pytest.mark.parametrize(
    "policy",
    [
        {"shard_failures": 0},
        {"straggler_factor": 0.5},
        {"shard_lease_s": 0.0},
        {"min_workers": 0},
        {"start_workers": 0},
        {"max_workers": 1, "min_workers": 2},
        {"lease_s": 0.0},
        {"lease_s": 1.0, "heartbeat_s": 1.0},
        {"arrive_s": -1.0},
        {"lease": 3.0},
        {"max_workers": 10**30},
        {"start_workers": -(10**400)},
        {"lease_s": 1e308},
    ],
    ids=lambda policy: ", ".join(policy),
)
def test_a_job_that_makes_no_sense_is_not_created(http, policy):
    assert http.put("/v1/jobs/senseless", json={"policy": policy}).status_code == 422
    assert http.get("/v1/jobs/senseless").status_code == 404


def test_a_job_needs_a_plain_id(http):
    assert http.put("/v1/jobs/a%20b", json={}).status_code == 422


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer wrong", "Basic {token}", "{token}", "Bearer {token}x"])
@pytest.mark.parametrize("path", ["/v1/health", "/v1/jobs/x", "/v1/nowhere", "/openapi.json"])
def test_without_the_token_there_is_nothing_to_be_seen(server, header, path):
    headers = {} if header is None else {"authorization": header.format(token=server.token)}
    answer = httpx.get(server.url + path, headers=headers, trust_env=False, timeout=60)

    assert answer.status_code == 401
    assert answer.json() == {"detail": "a valid bearer token is needed", "code": "token-unknown"}


@pytest.mark.parametrize("path", ["/", "/docs", "/nowhere", "/jobs/x"])
def test_without_the_token_every_other_address_is_the_same_empty_page(server, path):
    empty, answer = (httpx.get(server.url + each, trust_env=False, timeout=60) for each in ("/", path))

    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.content == empty.content


def test_health_is_told_to_who_has_the_token(http):
    assert http.get("/v1/health").status_code == 200


def test_a_long_body_is_refused_before_it_is_sent(server):
    with socket.create_connection(server.url.removeprefix("http://").split(":")) as connection:
        connection.settimeout(60)
        head = (
            f"PUT /v1/jobs/long HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {server.token}\r\n"
            "content-length: 99999999999\r\n\r\n"
        )
        connection.sendall(head.encode())
        answer = b"".join(iter(lambda: connection.recv(1000), b""))
        assert answer.startswith(b"HTTP/1.1 413")
        assert b'"body-too-long"' in answer and b"99999999999" in answer and b"1048576" in answer


def test_a_body_of_unknown_length_is_refused_when_it_gets_too_long(http):
    def endless():
        for _ in range(64):
            yield b" " * (1 << 16)

    try:
        assert http.put("/v1/jobs/long", content=endless()).status_code == 413
    except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        pass  # the coordinator hung up while we were still sending
    assert http.get("/v1/jobs/long").status_code == 404


def test_a_body_of_just_under_a_mebibyte_is_read(http):
    body = b'{"name": "n"' + b" " * ((1 << 20) - 100) + b"}"
    assert http.put("/v1/jobs/large", content=body).status_code == 200


def test_noise_instead_of_http_does_no_harm(server, http):
    with socket.create_connection(server.url.removeprefix("http://").split(":")) as connection:
        connection.sendall(os.urandom(4096))
    assert http.get("/v1/health").status_code == 200
