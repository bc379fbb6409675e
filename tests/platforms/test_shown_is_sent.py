"""On every platform, the request that a dry run prints is the request that reaches the platform.

Programs and servers here only record what they are given."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep.jobs import submitted
from everstep.jobs.submitted import Prepared
from everstep.process import reap_detached
from lab.command import Shell
from lab.oci.tenancy import OciLab, open_lab

JOB = {
    "name": "shown",
    "entrypoint": ["train.py", "it's", "$HOME", "new\nline"],
    "nodes": 2,
    "secrets": {"KEY": "hunter2"},
    "image": "me/train:1",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "home"))
    return tmp_path


def prepared(folder: Path, platform: Any, **more: Any) -> Prepared:
    (folder / "job.yaml").write_text(yaml.safe_dump({**JOB, **more, "platform": platform}))
    return submitted.prepare(folder / "job.yaml")


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> Path:
    """A program of this name on the path, and the folder where it records."""
    programs, records = folder / "bin", folder / f"{name}-records"
    programs.mkdir(exist_ok=True)
    records.mkdir()
    program = programs / name
    program.write_text(f"#!/bin/bash\nrecords={records}\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return records


RECORD = """
number=$(ls "$records" | grep -c script)
cp "${@: -1}" "$records/script-$number"
printf '%s\\n' "$@" > "$records/words-$number"
echo $((41 + number))
"""


def recorded(records: Path) -> list[str]:
    return [path.read_text() for path in sorted(records.glob("script-*"))]


def test_slurm_single(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = install(folder, monkeypatch, "sbatch", RECORD)
    job = prepared(folder, "slurm")
    submitted.submit(job, print)

    assert recorded(records) == [job.request.text]


def test_slurm_array(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = install(folder, monkeypatch, "sbatch", RECORD)
    job = prepared(folder, {"slurm": {"mode": "array"}})
    submitted.submit(job, print)

    scripts = recorded(records)
    words = [path.read_text().split() for path in sorted(records.glob("words-*"))]
    sent = "\n".join(f"# --- sbatch {' '.join(each)}\n{script}" for each, script in zip(words, scripts, strict=True))
    assert sent == job.request.text.replace("'--dependency=after:$COORDINATOR'", "--dependency=after:41")


def test_pbs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = install(folder, monkeypatch, "qsub", RECORD)
    job = prepared(folder, "pbs")
    submitted.submit(job, print)

    (main,), node = recorded(records), (job.request.ticket.folder / "node.sh").read_text()
    here = job.request.ticket.folder
    assert f"# --- {here / 'job.sh'}\n{main}\n# --- {here / 'node.sh'}\n{node}" == job.request.text


def test_compose(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker = """
case "$*" in
  *" up "*) cp "$5" "$records/script-0"; services=$(grep -oE '^  (node-[0-9]+|coordinator):' "$5" | tr -d ' :') ;
    for each in $services; do echo "$each" >> "$records/services"; done ;;
  ps*) touch "$records/services"; cat "$records/services" ;;
  inspect*) shift 3; sep="["; for each; do printf '%s{"Id": "%s-0123456789", "Name": "/%s",
    "State": {"Status": "running", "ExitCode": 0, "StartedAt": "x"}, "NetworkSettings": {},
    "Config": {"Labels": {"com.docker.compose.service": "%s"}}}' "$sep" "$each" "$each" "$each"; sep=","; done
    echo "]" ;;
  *) echo 1 ;;
esac
"""
    records = install(folder, monkeypatch, "docker", docker)
    job = prepared(folder, "compose")
    record = submitted.submit(job, print)

    assert recorded(records) == [job.request.text]
    assert dict(record.runs) == {"node-0": "node-0-01234", "node-1": "node-1-01234"}


def test_local(folder: Path) -> None:
    job = prepared(folder, "local")
    record = submitted.submit(job, print)
    process = Path("/proc", str(record.natives["pid"]))
    try:
        words = (process / "cmdline").read_text().split("\0")[:-1]
        variables = dict(each.partition("=")[::2] for each in (process / "environ").read_text().split("\0") if each)
        shown = yaml.safe_load(job.request.text)
        assert words == shown["command"]
        assert {name: variables[name] for name in shown["environment"]} == shown["environment"]
    finally:
        submitted.cancel(record, print)
        reap_detached(record.natives["pid"])


# --- by HTTP ---


class Cluster(ThreadingHTTPServer):
    """Takes all objects that it is given, as a Kubernetes API server does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.created: list[Any] = []
        self.daemon_threads = True


_VERSION = [
    "buildDate",
    "compiler",
    "gitCommit",
    "gitTreeState",
    "gitVersion",
    "goVersion",
    "major",
    "minor",
    "platform",
]


class _Answers(BaseHTTPRequestHandler):
    server: Cluster

    def do_GET(self) -> None:
        if self.path == "/version/":
            self._answer(200, dict.fromkeys(_VERSION, "1"))
        else:
            self._answer(404, {"message": "not found"})

    def do_POST(self) -> None:
        made = self._body()
        self.server.created.append(made)
        self._answer(201, {**made, "metadata": {**made["metadata"], "uid": str(len(self.server.created))}})

    def do_PATCH(self) -> None:
        self._body()
        self._answer(200, {})

    def _body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, status: int, body: Mapping[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with Cluster() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        context = {"name": "here", "context": {"cluster": "here", "user": "me"}}
        config = {
            "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "users": [{"name": "me", "user": {}}],
            "contexts": [context],
            "current-context": "here",
        }
        (folder / "kubeconfig").write_text(yaml.safe_dump(config))
        monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("mode", ["elastic", "indexed"])
def test_kubernetes(folder: Path, cluster: Cluster, mode: str) -> None:
    job = prepared(folder, {"kubernetes": {"mode": mode}})
    submitted.submit(job, print)

    without_values = [{key: value for key, value in each.items() if key != "data"} for each in cluster.created]
    shown = list(yaml.safe_load_all(job.request.text))
    values = [each for each in cluster.created if each["kind"] == "Secret"]
    assert [
        each if each["kind"] == "Secret" else full for each, full in zip(without_values, cluster.created, strict=True)
    ] == shown
    assert values and all(each["data"] for each in values)


@pytest.fixture(scope="module")
def tenancy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OciLab]:
    with open_lab(tmp_path_factory.mktemp("oci")) as lab:
        yield lab


@pytest.mark.parametrize("mode", ["runs", "multinode"])
def test_oci(folder: Path, tenancy: OciLab, mode: str) -> None:
    """By the command line: what fsspec knows of buckets is read once in a process."""
    tenancy.change(accept_s=600.0)  # no run starts
    given = tenancy.job()
    options = {"oci": {**given["platform"]["oci"], "mode": mode}}
    (folder / "job.yaml").write_text(yaml.safe_dump({**JOB, "image": given["image"], "platform": options}))
    shell = Shell(folder, **tenancy.env())
    dry = shell.type("run", "-f", "job.yaml", "--dry-run")
    info = yaml.safe_load(shell.type("run", "-f", "job.yaml"))
    state = tenancy.state()
    shell.type("cancel", info["everstep"]["id"])
    tenancy.reset()

    (dry_id,) = set(re.findall(r"shown-\d{4}-\d{6}-[0-9a-f]{4}", dry))
    filled = {dry_id: info["everstep"]["id"], "<the subnet's CIDR>": "127.0.0.0/8", "<the job's OCID>": info["jobId"]}
    for place, value in filled.items():
        dry = dry.replace(place, value)
    shown, (made,) = yaml.safe_load(dry), state["jobs"]
    assert {name: made[name] for name in shown["job"]} == shown["job"]
    runs = {run["displayName"]: run for run in state["runs"]}
    assert runs.keys() == {each["displayName"] for each in shown["jobRuns"]}
    for each in shown["jobRuns"]:
        assert {name: runs[each["displayName"]][name] for name in each} == each
