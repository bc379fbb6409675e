"""An HTTP call is one declaration and one handler: everything else follows from them."""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path

from everstep.client.calls import Coordinator
from everstep.coordinator.edge.dispatch import HANDLERS
from everstep.coordinator.job import CoordinatedJob
from everstep.wire.operations import OPERATIONS

ROOT = Path(__file__).parents[3]

DECLARATION = '''
    @operation("POST", f"{_JOB}/weather/{{place}}", USER)
    def forecast(self, place: PathName, message: wire.Stop, days: Count = 3) -> wire.Health:
        """Tomorrow's weather."""

'''
HANDLER = """

async def forecast(call: HttpCall, place: str, message: wire.Stop, days: int = 3) -> wire.Health:
    return wire.Health(now=days + len(place) + len(message.reason))
"""
STORY = """
import os, sys
from pathlib import Path
import everstep
from everstep import wire
from everstep.client.calls import Coordinator
from everstep.coordinator.edge.openapi import document
from everstep.coordinator.edge.server import serve
from everstep.errors import Refused
from everstep.wire.operations import markdown

assert everstep.__file__.startswith(sys.argv[1]), everstep.__file__
folder = Path(sys.argv[2])
(folder / "token").write_text("user:uuuu\\nworker:wwww\\n")
(folder / "token").chmod(0o600)
if (child := os.fork()) == 0:
    serve("127.0.0.1", 0, str(folder / "db"), folder / "token", ready_fd=int(sys.argv[3]))
    os._exit(0)
os.close(int(sys.argv[3]))
url = os.fdopen(int(sys.argv[4])).readline().strip()
try:
    with Coordinator(url, "user:uuuu", "j") as user, Coordinator(url, "worker:wwww", "j") as worker:
        user.create_job(wire.JobSpec())
        message = wire.Stop(reason="ab")
        print("client", user.forecast("Bern", message).now, user.forecast("Ur", message, 5).now)
        for what, call in {
            "role": lambda: worker.forecast("Bern", wire.Stop(reason="")),
            "validation": lambda: user.forecast("Bern", wire.Stop(reason=""), days=-1),
        }.items():
            try:
                call()
            except Refused as refused:
                print(what, refused.status, refused.code)
finally:
    os.kill(child, 15)
    os.waitpid(child, 0)
described = document()["paths"]["/v1/jobs/{job}/weather/{place}"]["post"]
print("openapi", described["operationId"], [each["name"] for each in described["parameters"]])
row = "| `POST /v1/jobs/{job}/weather/{place}` | `Stop` → `Health` | user | Tomorrow's weather. |"
print("docs", row in markdown())
"""


def test_a_new_call_needs_its_declaration_and_its_handler_and_nothing_else(tmp_path):
    copy = tmp_path / "everstep"
    shutil.copytree(ROOT / "everstep", copy, ignore=shutil.ignore_patterns("__pycache__"))
    declared, answers = copy / "wire" / "operations.py", copy / "coordinator" / "edge" / "handlers.py"
    before, rest = declared.read_text().split("\n\ndef declared(", 1)
    declared.write_text(f"{before}\n{DECLARATION}\ndef declared({rest}")
    answers.write_text(answers.read_text() + HANDLER)
    read, write = os.pipe()

    done = subprocess.run(
        [sys.executable, "-c", STORY, tmp_path, tmp_path, str(write), str(read)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        cwd=tmp_path,
        pass_fds=[read, write],
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(read)
    os.close(write)

    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if not line.startswith("everstep coordinator")] == [
        "client 9 9",
        "role 403 role-insufficient",
        "validation 422 parameter-invalid",
        "openapi forecast ['job', 'place', 'days']",
        "docs True",
    ]


def test_each_handler_takes_what_its_operation_declares():
    for each in OPERATIONS:
        if function := next((getattr(place, each.name) for place in HANDLERS if hasattr(place, each.name)), None):
            assert list(inspect.signature(function).parameters)[1:] == list(each.parameters), each.name
        else:  # given by their places
            method = inspect.signature(getattr(CoordinatedJob, each.name))
            assert len(method.parameters) == len(each.parameters) + 1, each.name
            assert not each.in_query, each.name
        assert callable(getattr(Coordinator, each.name))
        assert each.summary, each.name
