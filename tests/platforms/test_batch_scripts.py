"""What is submitted to queues, compared with checked-in text, and what queues say, in our words.

EVERSTEP_WRITE_EXPECTED=1 rewrites the texts: check the difference before committing it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from everstep.errors import UsageError
from everstep.job_file.load import load
from everstep.platforms import status_file
from everstep.platforms.base import JobRecord, Ticket, platform_of
from everstep.platforms.batch_queue import Queued, QueueWatch, await_gone, decide_status
from everstep.platforms.pbs import parse_qstat
from everstep.platforms.slurm import parse_sacct, parse_squeue
from everstep.storage.code_archive import Code
from lab.refused import refused

EXPECTED = Path(__file__).parent / "expected"
TICKET = Ticket(
    id="mnist-1115-101500-ab12",
    folder=Path("/shared/mnist/runs/mnist-1115-101500-ab12"),
    workdir=Path("/shared/mnist"),
    code=Code(sha256="c0de" * 16, data=b""),
)
PLAIN = "name: mnist\nentrypoint: train.py\nplatform: {platform}\n"
RICH = """
name: mnist
entrypoint: [train.py, two words, it's, "new\\nline", $HOME]
nodes: 2:4
resources: {{cpu: 8, memory: 32Gi, gpu: 2, gpu_type: v100}}
env: {{GREETING: "good\\nday"}}
secrets: {{TOKEN: hunter2}}
time_limit: 1h30m
platform: {platform}
"""
JOBS = {
    "slurm-plain.sh": PLAIN.format(platform="slurm"),
    "slurm-single.sh": RICH.format(
        platform="{slurm: {partition: gpu, account: vision, constraint: a100&nvlink, raw: [--exclude=n7]}}"
    ),
    "slurm-array.sh": RICH.format(platform="{slurm: {mode: array, partition: gpu, coordinator_partition: cpu}}"),
    "slurm-once.sh": PLAIN.format(platform="{slurm: {requeue: false, signal: SIGUSR1, signal_lead: 5m}}"),
    "slurm-allocation.sh": PLAIN.format(platform="{slurm: {mode: allocation}}"),
    "pbs-plain.sh": PLAIN.format(platform="pbs"),
    "pbs-rich.sh": RICH.format(platform="{pbs: {queue: work, project: vision, select: phase=18b, launcher: ssh}}"),
}


def rendered(text: str, ticket: Ticket = TICKET) -> str:
    job = load(text).job
    return platform_of(job.platform.chosen).render(job, ticket).text.replace(sys.executable, "/venv/bin/python")


@pytest.mark.parametrize("name", JOBS)
def test_the_script_is_as_it_was_agreed_on(name: str) -> None:
    text = rendered(JOBS[name])
    if os.environ.get("EVERSTEP_WRITE_EXPECTED") == "1":
        (EXPECTED / name).write_text(text)
    assert text == (EXPECTED / name).read_text()
    assert "hunter2" not in text


@pytest.mark.parametrize("name", JOBS)
def test_bash_can_read_it(name: str) -> None:
    done = subprocess.run(["bash", "-n"], input=rendered(JOBS[name]), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("platform", ["slurm", "{slurm: {mode: array}}", "pbs"])
def test_arguments_that_look_like_our_own_marks_stay_as_they_are(platform: str) -> None:
    given = ["@MIN@", "@SIGNAL@", "@COORDINATE@", "@LAUNCH@", "it's", "$HOME", "new\nline"]
    text = rendered(f"entrypoint: {json.dumps(['train.py', *given])}\nnodes: 2\nplatform: {platform}\n")
    orders = [line for line in text.splitlines() if line.startswith("export EVERSTEP_ORDER=")]
    assert orders
    for line in orders:
        told = subprocess.run(["bash", "-c", f'{line}\nprintf %s "$EVERSTEP_ORDER"'], capture_output=True, check=True)
        assert json.loads(told.stdout)["args"] == given


@pytest.mark.parametrize("platform", ["slurm", "{slurm: {mode: array}}", "pbs"])
def test_a_folder_of_any_name_is_that_folder(platform: str) -> None:
    folder = Path("/shared/it's $HOME/`echo no` & so on")
    text = rendered(PLAIN.format(platform=platform), replace(TICKET, folder=folder))
    lines = [line for line in text.splitlines() if line.startswith("folder=")]
    assert lines
    for line in lines:
        told = subprocess.run(["bash", "-c", f'{line}\nprintf %s "$folder"'], capture_output=True, check=True)
        assert told.stdout.decode() == str(folder)


@pytest.mark.parametrize(
    ("said", "ends_at"),
    [("", "9999999999"), ("N/A", "9999999999"), ("2026-11-15T10:15:00", "1794737700")],
)
def test_a_queue_that_does_not_say_when_the_time_is_up_is_no_time_that_was_up(
    said: str, ends_at: str, tmp_path: Path
) -> None:
    (tmp_path / "squeue").write_text(f"#!/bin/sh\necho '{said}'\n")
    (tmp_path / "squeue").chmod(0o755)
    lines = [line for line in rendered(JOBS["slurm-plain.sh"]).splitlines() if line.startswith(("look()", "ends_at="))]
    script = "\n".join([*lines, 'echo "$ends_at"'])
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TZ": "UTC"}
    told = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=path, check=True)
    assert told.stdout.strip() == ends_at


def test_secrets_of_other_platforms_are_refused() -> None:
    for platform in ("slurm", "pbs"):
        with refused("secret-kind-unsupported"):
            rendered(PLAIN.format(platform=platform) + "secrets: {A: 'kubernetes:name/key'}\n")


def test_what_squeue_says() -> None:
    said = "12_0|mnist|RUNNING|n[1-2]|None\n12_1|mnist|PENDING||(Resources) | with a bar\n\nslurm_load_jobs error\n"
    running, pending = parse_squeue(said)
    assert (running.id, running.state, running.where, running.reason) == ("12_0", "running", "n[1-2]", "")
    assert (pending.state, pending.reason) == ("pending", "(Resources) | with a bar")


@pytest.mark.parametrize(
    ("native", "state"),
    [("CANCELLED by 1000", "canceled"), ("COMPLETED+", "succeeded"), ("OUT_OF_MEMORY", "failed"), ("NEW", "unknown")],
)
def test_what_sacct_says(native: str, state: str) -> None:
    (found,) = parse_sacct(f"12|mnist|{native}|n1|1:0|\n")
    assert (found.state, found.reason) == (state, "exit code 1:0")


def test_what_qstat_says() -> None:
    (found,) = parse_qstat('{"Jobs": {"7.pbs": {"job_state": "R", "exec_host": "n1/0*8+n2/0*8"}}}')
    assert (found.id, found.state, found.where) == ("7.pbs", "running", "n1, n2")
    (ended,) = parse_qstat('{"Jobs": {"7.pbs": {"job_state": "F", "Exit_status": 271}}}')
    assert (ended.state, ended.reason) == ("failed", "exit code 271")
    (finished,) = parse_qstat('{"Jobs": {"7.pbs": {"job_state": "F", "Exit_status": 0}}}')
    assert finished.state == "succeeded"
    assert parse_qstat("{}") == []


def queued(native: str, state: str, *, name: str = "job", reason: str = "") -> Queued:
    return Queued(id="12", name=name, state=state, native=native, reason=reason)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("told", "jobs", "is_canceled", "state", "reason"),
    [
        ("running", [queued("RUNNING", "running")], False, "running", "said"),
        ("unknown", [queued("PENDING", "pending", reason="Priority")], False, "pending", "12 is PENDING: Priority"),
        ("succeeded", [queued("COMPLETING", "running")], False, "succeeded", "said"),
        ("pending", [queued("PENDING", "pending", reason="BeginTime")], False, "pending", "12 is PENDING: BeginTime"),
        ("running", [queued("TIMEOUT", "failed")], False, "failed", "12 is TIMEOUT"),
        ("running", [queued("COMPLETED", "succeeded")], False, "succeeded", "12 is COMPLETED"),
        ("running", [queued("CANCELLED", "canceled")], False, "canceled", "12 is CANCELLED"),
        ("running", [], False, "failed", "the queue no longer knows the job; its last report: said"),
        ("running", [], True, "canceled", "canceled"),
        ("running", [queued("RUNNING", "running")], True, "running", "canceled; 1 of its jobs are about to end"),
    ],
)
def test_what_becomes_of_a_job(told: str, jobs: list[Queued], is_canceled: bool, state: str, reason: str) -> None:
    status = decide_status((told, "said"), jobs, main="job", is_canceled=is_canceled)  # type: ignore[arg-type]
    assert (status.state, status.reason) == (state, reason)


def watch(*answers: bool | Exception, is_said: bool = False, **options: float) -> QueueWatch:
    """Of a queue that answers so, one after the other."""
    left = iter(answers)

    def ask() -> bool:
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return QueueWatch(
        has_said_so=lambda: is_said, is_over=ask, is_there=lambda: not ask(), **{"every_s": 0.0} | options
    )


SILENT = UsageError("squeue: Unable to contact slurm controller")


def test_a_queue_that_does_not_answer_is_asked_again() -> None:
    queue = watch(SILENT, False, SILENT, True)
    assert [queue.has_ended() for _ in range(5)] == [False, False, False, True, True]


def test_a_queue_that_never_answers_is_an_error() -> None:
    with pytest.raises(UsageError, match="Unable to contact"):
        watch(SILENT, patience_s=-1.0).has_ended()


def test_a_queue_is_asked_now_and_then_only() -> None:
    queue = watch(False, every_s=3600.0)
    assert [queue.has_ended() for _ in range(5)] == [False] * 5


def test_after_the_last_word_nodes_may_still_write() -> None:
    queue = watch(False, SILENT, True, is_said=True, last_every_s=0.0, patience_s=-1.0)
    assert [queue.has_ended() for _ in range(4)] == [False, False, True, True]
    assert watch(is_said=True, last_lines_s=-1.0).has_ended()  # but not without limit


def test_a_job_that_has_said_its_last_word_needs_no_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    record = JobRecord(id="j", name="j", platform="slurm", created_at=0.0, folder=str(tmp_path), job={})
    with refused("scheduler-not-found"):
        platform_of("slurm").status(record)
    status_file.write(tmp_path, "succeeded", "all done")
    assert platform_of("slurm").status(record).state == "succeeded"


def test_jobs_that_do_not_go_are_named() -> None:
    await_gone(lambda: [queued("COMPLETED", "succeeded")], by="scancel", within_s=0.0)
    with refused("batch-job-not-ended"):
        await_gone(lambda: [queued("RUNNING", "running")], by="scancel", within_s=0.0)


def test_half_a_last_word_is_not_taken_for_one(tmp_path: Path) -> None:
    assert status_file.read(tmp_path) is None
    (tmp_path / "status.json").write_text('{"state": "fail')
    assert status_file.read(tmp_path) == ("unknown", "its last report cannot be read")


def test_ssh_starts_a_node_of_each_host_whatever_the_folder_is_called(tmp_path: Path) -> None:
    """By an ssh that hands its words to a shell, as the real one does, and says where it was asked to."""
    folder = tmp_path / "it's $HOME"
    folder.mkdir()
    (folder / "node.sh").write_text(f'echo "deadline=$1 number=$2" >> {tmp_path}/told\n')
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/bash\nshift 3\necho "$1" >> {tmp_path}/told\nshift\nexec bash -c "$*"\n')
    ssh.chmod(0o755)
    (tmp_path / "nodes").write_text("n1\nn1\nn2\n")
    script = rendered("entrypoint: train.py\ntime_limit: 1h\nplatform: {pbs: {launcher: ssh}}\n")
    launch = script[script.index("start() {") : script.index("nodes=$!")]
    facts = f"folder={shlex.quote(str(folder))}\ndeadline=\nPATH={tmp_path}:$PATH\nPBS_NODEFILE={tmp_path}/nodes\n"
    subprocess.run(["bash", "-c", f"{facts}{launch}wait"], check=True)

    assert sorted((tmp_path / "told").read_text().splitlines()) == [
        "deadline= number=0",
        "deadline= number=1",
        "n1",
        "n2",
    ]
