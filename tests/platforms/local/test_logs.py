"""`everstep logs`: the same for a job that runs, one that is over, and a coordinator elsewhere; without secrets."""

from __future__ import annotations

import base64
import json
import shutil
import sqlite3
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from everstep.record.log_chunk import unpack
from lab.command import EVERSTEP, Command, Shell, until

SECRET = "hunter2hunter2"
SCRIPT = """
import base64, logging, os, pathlib, sys, time
secret = os.environ["PASSWORD"]
for number in range(40):
    print(f"step {number}", flush=True)
logging.basicConfig(format="%(asctime)s %(levelname)s: %(name)s: %(message)s")
logging.getLogger("train").warning("password %s, base64 %s", secret, base64.b64encode(secret.encode()).decode())
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
print("enough", flush=True)
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "train.py").write_text(SCRIPT)
    return Shell(tmp_path, EVERSTEP_HOME=str(tmp_path / "home"), PASSWORD=SECRET, EVERSTEP_NURSERY="off")


def errors_of(shell: Shell, *words: str, is_good: bool) -> str:
    assert shell.type(*words, is_good=is_good) == ""
    return shell.last.stderr


def steps(output: str) -> list[str]:
    return [line for line in output.splitlines() if "step " in line]


def kept_text(database: Path) -> str:
    with sqlite3.connect(database) as connection:
        return "".join(unpack(data).text.decode() for (data,) in connection.execute("select data from log_blocks"))


def test_a_submitted_job_is_searched_while_it_runs_and_when_it_is_over(shell: Shell, tmp_path: Path) -> None:
    job = {
        "entrypoint": ["train.py", str(tmp_path / "enough"), "0"],
        "platform": "local",
        "secrets": {"PASSWORD": "env:PASSWORD"},
        "checkpoint": f"file://{tmp_path}/saved",
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    began = datetime.now().replace(microsecond=0)
    job_id = yaml.safe_load(shell.type("run", "-f", "job.yaml"))["everstep"]["id"]
    with Command(*EVERSTEP, "logs", job_id, "--follow", folder=tmp_path, **shell.env) as follower:
        follower.wait_said(r"node-0 \| \[w0\] step 39")
        follower.wait_said("WARNING: train: password")
        until(lambda: "password" in shell.type("logs", job_id, "--level", "warning"))

        assert steps(shell.type("logs", job_id, "--rank", 0)) == [f"[w0] step {number}" for number in range(40)]
        assert steps(shell.type("logs", job_id, "--grep", "step 1", "--worker", "w0")) == [
            f"[w0] step {number}" for number in (1, *range(10, 20))
        ]
        last = shell.type("logs", job_id, "--tail", 2, "--grep", "step 1", "--worker", "w0")
        assert last.splitlines() == ["[w0] step 18", "[w0] step 19"]
        (timed,) = shell.type("logs", job_id, "--grep", "step 39", "--worker", "w0", "--timestamps").splitlines()
        at, _, text = timed.partition(" ")
        assert text == "[w0] step 39"
        assert began <= datetime.fromisoformat(at) <= datetime.now()
        around = shell.type("logs", job_id, "--regex", "^step 2$", "--context", 1).splitlines()
        assert [line.partition(" | ")[2] for line in around] == ["[w0] step 1", "[w0] step 2", "[w0] step 3"]
        _its_folder_leads_to_its_coordinator(shell, tmp_path / "runs" / job_id)
        (tmp_path / "enough").touch()
        shell.type("watch", job_id)
        follower.until(lambda: follower.process.wait(0) is not None, "its end")
        said = follower.said
    assert said.count("step 39") == said.count("enough") == 1

    folder = tmp_path / "runs" / job_id
    warning = shell.type("logs", job_id, "--level", "warning", "--since", "1h")
    assert "WARNING: train: password ***, base64 ***" in warning
    assert "everstep: w0 started" in shell.type("logs", job_id, "--node", "node-0")
    copy = tmp_path / "saved" / "record" / job_id / "coordinator-logs.db"
    until(copy.exists)
    for path in folder.rglob("*"):  # its folder is gone: the copy beside the checkpoints is there
        if path.name.startswith("coordinator-logs"):
            path.unlink()
    assert steps(shell.type("logs", job_id, "--worker", "w0")) == [f"[w0] step {number}" for number in range(40)]
    assert shell.type("logs", job_id, "--worker", "w0", "--tail", 1).splitlines() == ["[w0] enough"]

    shown = [said, warning, (folder / "job.log").read_text(), *(path.read_text() for path in folder.glob("node-*.log"))]
    kept = kept_text(copy)
    assert "step 39" in kept
    for text in (*shown, kept):
        assert SECRET not in text
        assert base64.b64encode(SECRET.encode()).decode().rstrip("=") not in text


def _its_folder_leads_to_its_coordinator(shell: Shell, folder: Path) -> None:
    """As long as the job runs; a copy says from when it is."""
    shell.type("page", folder, "--no-browser")
    assert (folder / "coordinator.url").read_text().strip() in shell.last.stdout + shell.last.stderr
    assert len(steps(shell.type("logs", folder, "--grep", "step 3"))) == 11
    assert "as of 20" not in shell.last.stderr

    copy = folder.with_name("copy")
    copy.mkdir()
    for path in folder.glob("coordinator*"):
        shutil.copy(path, copy)
    assert len(steps(shell.type("logs", copy, "--grep", "step 3"))) == 11
    assert "as of 20" in shell.last.stderr and "still running elsewhere" in shell.last.stderr


def test_the_last_lines_of_a_worker_that_failed_are_shown_without_secrets(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "enough").touch()
    job = {
        "entrypoint": ["train.py", str(tmp_path / "enough"), "3"],
        "platform": "local",
        "secrets": {"PASSWORD": "env:PASSWORD"},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    job_id = yaml.safe_load(shell.type("run", "-f", "job.yaml"))["everstep"]["id"]
    shell.type("watch", job_id, is_good=False)
    (console,) = (path.read_text() for path in (tmp_path / "runs" / job_id).glob("node-*.log"))

    assert console.count("password ***") == console.count(" started (pid") + 1  # the report of the failure repeats it
    assert SECRET not in console


def test_a_run_that_failed_has_its_log(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "enough").touch()
    shell.type("run", "--job", "trial", "train.py", tmp_path / "enough", 3, is_good=False)

    assert steps(shell.type("logs", "trial")) != []
    assert "step 7" in shell.type("logs", "trial", "--grep", "step 7")
    assert "no line matches" in errors_of(shell, "logs", "trial", "--grep", "nothing of the kind", is_good=True)
    assert "w0 ended: exit code 3" in shell.type("logs", "trial", "--regex", "ended: .*3")
    assert "no line matches" in errors_of(shell, "logs", "trial", "--until", "1h", is_good=True)


def test_what_is_secret_in_the_arguments_of_a_run_is_in_no_record_of_it(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "quiet.py").write_text("pass")
    typed = ("--api-key", "open-sesame", f"--login={SECRET}", "--store=s3://me:swordfish@host/x", "--epochs", 3)
    shell.type("run", "--job", "trial", "quiet.py", *typed)

    told = json.loads((tmp_path / "runs" / "trial" / "record.json").read_text())["configuration"]["command"]
    assert told[-6:] == ["--api-key", "***", "--login=***", "--store=s3://me:***@host/x", "--epochs", "3"]
    for path in (tmp_path / "runs" / "trial").rglob("*"):
        if path.is_file():
            kept = path.read_bytes()
            assert not any(value in kept for value in (b"open-sesame", SECRET.encode(), b"swordfish")), path


def test_a_job_of_a_standing_coordinator_has_its_log_there(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "enough").touch()
    serve = ("serve", "--port", 0, "--store", "store.db", "--token-file", "token", "--ready-file", "url")
    with Command(*EVERSTEP, *serve, folder=tmp_path, **shell.env):
        until(lambda: (tmp_path / "url").exists())
        there = ("--coordinator", (tmp_path / "url").read_text().strip(), "--token-file", "token")
        shell.type("run", *there, "--job", "one", "train.py", tmp_path / "enough", 0)

        assert len(steps(shell.type("logs", "one", *there))) == 40
        assert len(steps(shell.type("logs", "one"))) == 40  # the run's folder says where
        assert "one has not reported any metrics" in shell.type("metrics", "one")
        assert "no line matches" in errors_of(shell, "logs", "one", *there, "--level", "critical", is_good=True)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--rank", "0", "--worker", "w0"], "--rank and --worker"),
        (["--level", "loud"], "one of debug, info"),
        (["--since", "yesterday"], "not a time"),
        (["--regex", "("], "not a regular expression"),
    ],
)
def test_what_cannot_be_asked_is_said(words: list[str], sentence: str, shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "x"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"job": "x", "state": "finished"}))
    (folder / "coordinator-logs.db").touch()
    assert sentence in errors_of(shell, "logs", "x", *words, is_good=False)
