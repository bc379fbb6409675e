"""The document tells what the service does: schemathesis makes thousands of calls from it and looks at every answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import httpx
import pytest

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.coordinator.edge.openapi import document
from everstep.wire.operations import OPERATIONS

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
KNOWN = """
headers = { Authorization = "Bearer ${TOKEN}" }
parameters = { "path.job" = "known", "path.worker" = "w0", "path.agent" = "a" }
"""
STRANGER = """
headers = { Authorization = "Bearer wrong" }
"""
QUICK = wire.Policy(heartbeat_s=0.02, lease_s=0.03, arrive_s=0.05)  # held calls are held for a moment only


@pytest.fixture
def played(tmp_path, server_class):
    server = server_class(tmp_path, str(tmp_path / "db"))
    with Coordinator(server.url, server.token, "known") as coordinator:
        coordinator.create_job(wire.JobSpec(policy=QUICK))
        coordinator.reserve(wire.ReserveWorker(agent="a", request="r"))
        announce = wire.Announce(incarnation="i", pid=1, address="127.0.0.1", store_port=1, probe_port=2)
        coordinator.announce("w0", announce)
    yield server
    server.stop()
    assert "Traceback" not in server.log_file.read_text()


def schemathesis(server, folder, settings, *options):
    (folder / "schemathesis.toml").write_text(settings)
    (folder / "openapi.json").write_text(json.dumps(document()))
    command = [
        *(sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"),
        *("--config-file", "schemathesis.toml", "run", "openapi.json", "--url", server.url, "--no-color"),
        *("--seed", "1", "--generation-database", "none", "--warnings", "off", *options),
    ]
    environment = {**os.environ, "TOKEN": server.token, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_with_the_token_every_answer_is_as_the_document_says(played, tmp_path):
    checks = ",".join([*CHECKS, "negative_data_rejection", "ignored_auth"])
    done = schemathesis(
        played, tmp_path, KNOWN, "--phases", "coverage,fuzzing", "--max-examples", "5", "--checks", checks
    )
    assert done.returncode == 0, done.stdout


def test_without_the_token_too(played, tmp_path):
    done = schemathesis(
        played, tmp_path, STRANGER, "--phases", "fuzzing", "--max-examples", "3", "--checks", ",".join(CHECKS)
    )
    assert done.returncode == 0, done.stdout


def test_the_document_is_served_to_who_may_look(played):
    answer = httpx.get(f"{played.url}/v1/openapi.json", headers={"authorization": f"Bearer {played.token}"}, timeout=60)
    assert answer.json() == document()


def test_every_call_is_in_it():
    listed = {(method.upper(), path) for path, calls in document()["paths"].items() for method in calls}
    assert listed == {(each.method, each.path) for each in OPERATIONS}


def test_each_refusal_is_declared():
    for path in document()["paths"].values():
        for operation in path.values():
            declared = {int(status) for status in operation["responses"]}
            expected = {200, 401, 403, 404, 409, 422, 429, 503} | ({413} if "requestBody" in operation else set())
            assert expected <= declared
