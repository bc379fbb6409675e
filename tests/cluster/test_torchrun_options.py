"""`everstep run` with torchrun's options: real runs of a script that knows nothing of us (scripts/tell.py)."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from everstep.addresses import can_bind
from everstep.process import ENDED, process_state
from lab import nest
from lab.command import EVERSTEP, Command, environment, everstep

SCRIPTS = Path(__file__).parent / "scripts"
TELL, PUPPET = SCRIPTS / "tell.py", SCRIPTS / "puppet.py"
PATIENCE = ("--lease-s=600", "--arrive-s=600", "--stall-s=600")  # nobody is lost by being slow
PLAINLY = {"EVERSTEP_NURSERY": "off"}  # puppets need no torch


def run(*arguments: object, directory: Path, **added: str) -> subprocess.CompletedProcess[str]:
    return everstep("run", *nest.AGENT_OPTIONS, *arguments, folder=directory, **nest.shared(), **added)


def workers_environment(directory: Path, rank: int) -> Mapping[str, Any]:
    return json.loads((directory / f"env-{rank}.json").read_text())  # type: ignore[no-any-return]


def test_workers_get_the_environment_that_torchrun_gives(tmp_path: Path) -> None:
    arguments = [
        "--nproc_per_node=2",
        "--max-restarts",
        "3",
        "--role=trainer",
        "--rdzv-id",
        "my-run",
        "--rdzv-backend=c10d",
    ]
    done = everstep("run", *arguments, "--rdzv-endpoint=localhost:0", TELL, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        given = workers_environment(tmp_path, rank)
        expected = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "ROLE_NAME": "trainer",
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "3",
            "TORCHELASTIC_RUN_ID": "my-run",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
            "OMP_NUM_THREADS": "1",
        }
        assert given.items() >= expected.items()
        assert given["MASTER_PORT"].isdigit()
        assert given["TORCHELASTIC_ERROR_FILE"].endswith(f"/w{rank}/error.json")
    (job,) = (tmp_path / "runs").iterdir()
    assert job.name.startswith("my-run-")


def test_stdout_goes_to_stdout_and_all_else_to_stderr(tmp_path: Path) -> None:
    done = run("--standalone", "--nnodes=9", TELL, directory=tmp_path)
    assert done.stdout == "[w0] out of 0: an apple\n"
    lines = done.stderr.splitlines()
    assert "[w0] err of 0: an orange" in lines
    assert all(line.startswith(("[w0] err", "everstep: ")) for line in lines)
    assert re.fullmatch(r"everstep: finished in [\d.]+ s, 0 deaths survived", lines[-1])


def test_options_come_from_the_environment_too(tmp_path: Path) -> None:
    done = run(
        TELL,
        directory=tmp_path,
        PET_NPROC_PER_NODE="2",
        PET_LOG_DIR="logs",
        PET_REDIRECTS="0:1,1:2",
        PET_LOCAL_RANKS_FILTER="0",
        PET_VIRTUAL_LOCAL_RANK="1",
        PET_STANDALONE="0",
        PET_DUPLICATE_STDOUT_FILTERS="apple,pear",
        PET_MONITOR_INTERVAL="5",
        PET_ROLE="",
        CUDA_VISIBLE_DEVICES="5,6",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert re.findall(r"^\[.*", done.stderr, re.MULTILINE) == ["[w0] err of 0: an orange"]
    assert "--monitor-interval changes nothing: ends are seen at once" in done.stderr
    given = workers_environment(tmp_path, 1)
    assert (given["LOCAL_RANK"], given["CUDA_VISIBLE_DEVICES"], given["ROLE_NAME"]) == ("0", "6", "default")

    (job,) = (tmp_path / "logs").iterdir()
    for local_rank in ("0", "1"):
        assert (job / "attempt_0" / local_rank / "stdout.log").read_text() == "out of 0: an apple\n"
        assert (job / "attempt_0" / local_rank / "stderr.log").read_text() == "err of 0: an orange\n"
    copied = (job / "filtered_stdout.log").read_text().splitlines()
    assert sorted(copied) == ["[w0] out of 0: an apple", "[w1] out of 0: an apple"]


def test_tee_shows_what_was_redirected(tmp_path: Path) -> None:
    done = run("-r", "3", "-t", "1", TELL, directory=tmp_path)
    assert done.stdout == "[w0] out of 0: an apple\n"
    assert "orange" not in done.stderr


def test_the_first_failure_comes_first_in_the_report(tmp_path: Path) -> None:
    done = run("-r", "3", TELL, "fail", directory=tmp_path)
    assert done.returncode == 1
    report = done.stderr[done.stderr.index("everstep: first to fail") :].splitlines()
    (job,) = (tmp_path / "runs").iterdir()
    assert report[:5] == [
        "everstep: first to fail: w0, exit code 1",
        "  error: ValueError: recorded",
        f"  last lines of {job}/w0/stdout.log:",
        "  | out of 0: an apple",
        f"  last lines of {job}/w0/stderr.log:",
    ]
    assert report[-2] == "  | ValueError: a bad batch"
    assert report[-1].startswith("everstep: the job failed: w0 on ")
    assert report[-1].endswith(" died: exit code 1; no restart is allowed (--max-restarts)")


@pytest.mark.skipif(not can_bind("::1"), reason="this machine has no IPv6")
def test_a_job_whose_coordinator_has_an_ipv6_address_trains(tmp_path: Path) -> None:
    arguments = ["--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=[::1]:0"]
    done = everstep("run", *arguments, SCRIPTS / "train.py", "--steps=3", "--micro-batches=4", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    digests = [line.split()[-1] for line in done.stdout.splitlines() if " digest " in line]
    assert len(digests) == 2 and len(set(digests)) == 1


def test_wrong_options_tell_the_way_out(tmp_path: Path) -> None:
    for arguments, told in {
        ("--rdzv-backend=etcd",): "HINT: leave it out",
        ("--logs-specs=mine",): "HINT: --log-dir, --redirects and --tee",
        ("--nnodes=2:1",): "HINT: MIN:MAX",
        ("--nnodes=2",): "HINT: give all of them the same --rdzv-endpoint",
        ("--nnodes=2", "--rdzv-endpoint=no.such.host.invalid"): "HINT: give a name that this machine can resolve",
        ("-m", "--no-python"): "HINT: give one of them",
    }.items():
        done = run(*arguments, TELL, directory=tmp_path)
        assert done.returncode == 2
        assert told in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_signal_of_choice_ends_the_run_in_good_order(tmp_path: Path) -> None:
    arguments = ["--signals-to-handle", "SIGTERM,SIGUSR1", "--heartbeat-s=0.1", *PATIENCE, PUPPET, "100000"]
    with Command(*EVERSTEP, "run", *arguments, folder=tmp_path, are_errors_apart=True, **PLAINLY) as run:
        run.until(lambda: "generation 1 formed" in run.errors, "the first generation")
        seen = run.errors
        run.signal(signal.SIGUSR1)
        assert run.exit_code() == 128 + signal.SIGUSR1
    assert "SIGUSR1: workers have 30 s to end" in run.errors.removeprefix(seen)
    assert all(process_state(int(pid)) == ENDED for pid in re.findall(r"pid (\d+)", seen))


def read_on(terminal: int, seen: bytes, until: Callable[[bytes], object]) -> bytes:
    """More of what is shown, until it is enough or nobody has the other end any more."""
    while not until(seen):
        try:
            seen += os.read(terminal, 65536)
        except OSError:
            break
    return seen


def test_a_narrow_terminal_gets_a_progress_line_that_fits(tmp_path: Path) -> None:
    arguments = [*EVERSTEP, "run", "--nproc-per-node=3", "--heartbeat-s=0.1", *PATIENCE, str(PUPPET), "15"]
    held = PLAINLY | {"GATES": "5", "EVERSTEP_EVENTS": str(tmp_path / "events.jsonl")}
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(arguments[0], arguments, environment(COLUMNS="30", PYTHONIOENCODING="ascii", **held))
    try:
        seen = read_on(terminal, b"", until=lambda seen: re.search(rb"\x1b\[2Kstep \d+", seen))
        (tmp_path / "gate-5").touch()
        seen = read_on(terminal, seen, until=lambda seen: False)
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(pid, 0)
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
    drawn = [line for line in re.findall(r"\x1b\[2K([^\r\n]*)", seen.decode()) if line]
    progress = [line for line in drawn if re.match(r"step \d+", line)]
    assert progress
    assert all(len(line) < 30 for line in progress)
    assert "finished: 15 steps" in seen.decode()
