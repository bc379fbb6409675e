"""A small real PBS of this machine: qsub, qstat, qdel and pbsdsh that do what OpenPBS does with a job's script.

A script runs in the home folder, in a session of its own, with a login's environment and not the submitter's. pbsdsh
starts a task for each line of the node file, in an environment that is barer still; tasks belong to the job, not to
pbsdsh. qdel sends SIGTERM to all of it, then SIGKILL. Output goes where -o says, as it is written. `qsub -I` gives a
shell. No queue: each job starts at once.   python pbs_lab.py qsub|qstat|qdel|pbsdsh ARGUMENTS"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KILL_DELAY_S = 5.0
PROGRAMS = ("qsub", "qstat", "qdel", "pbsdsh")


@dataclass(frozen=True)
class Lab:
    """Its folder, for tests: `env` puts the programs on the path."""

    folder: Path

    def up(self) -> None:
        (self.folder / "bin").mkdir(parents=True)
        (self.folder / "home").mkdir()
        (self.folder / "jobs").mkdir()
        for name in PROGRAMS:
            program = self.folder / "bin" / name
            program.write_text(f'#!/bin/sh\nPBS_LAB={self.folder} exec {sys.executable} {__file__} {name} "$@"\n')
            program.chmod(0o755)

    def env(self) -> dict[str, str]:
        return {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}

    def jobs(self) -> dict[str, dict[str, Any]]:
        return {path.stem: json.loads(path.read_text()) for path in (self.folder / "jobs").glob("*.json")}

    def running(self) -> list[str]:
        return [job for job, facts in self.jobs().items() if facts["job_state"] != "F"]


def main() -> None:
    lab = Lab(Path(os.environ["PBS_LAB"]))
    program, *words = sys.argv[1:]
    {"qsub": qsub, "qstat": qstat, "qdel": qdel, "pbsdsh": pbsdsh}[program](lab, words)


# --- qsub -----------------------------------------------------------------------------------------


def qsub(lab: Lab, words: list[str]) -> None:
    is_interactive = "-I" in words
    script = Path(words[-1]).read_text() if not is_interactive else ""
    options = [
        *re.findall(r"^#PBS\s+(.*)$", script, re.MULTILINE),
        " ".join(words[1:] if is_interactive else words[:-1]),
    ]
    if unknown := [line for line in options if re.match(r"-[vV]\b", line)]:
        sys.exit(f"qsub: readable by all users: {unknown[0]}")
    told = " ".join(options)
    num_nodes = int((re.search(r"select=(\d+)", told) or ["", "1"])[1])
    job = f"{len(lab.jobs())}.lab"
    _write(
        lab,
        job,
        job_state="R",
        Job_Name=(re.search(r"-N (\S+)", told) or ["", "STDIN"])[1],
        exec_host="+".join(_hosts(num_nodes)),
    )
    nodefile = lab.folder / "jobs" / f"{job}.nodes"
    nodefile.write_text("".join(f"{host.partition('/')[0]}\n" for host in _hosts(num_nodes)))
    environment = {
        "HOME": str(lab.folder / "home"),
        "PATH": f"{lab.folder / 'bin'}:/usr/bin:/bin",
        "USER": "tester",
        "PBS_JOBID": job,
        "PBS_NODEFILE": str(nodefile),
        "PBS_ENVIRONMENT": "PBS_INTERACTIVE" if is_interactive else "PBS_BATCH",
        "PBS_O_WORKDIR": os.getcwd(),
    }
    if is_interactive:
        code = subprocess.run(["bash"], env=environment, cwd=environment["HOME"], check=False).returncode
        _end(lab, job, code)
        sys.exit(code)
    print(job, flush=True)
    output = (re.search(r"-o (\S+)", told) or ["", "/dev/null"])[1]
    _watch(lab, job, Path(words[-1]).read_text(), environment, output, walltime_s=_walltime_s(told))


def _hosts(number: int) -> list[str]:
    return [f"node{each}/0" for each in range(number)]


def _walltime_s(told: str) -> float | None:
    found = re.search(r"walltime=(\d+):(\d+):(\d+)", told)
    return (
        None
        if found is None
        else sum(int(part) * factor for part, factor in zip(found.groups(), (3600, 60, 1), strict=True))
    )


def _watch(
    lab: Lab, job: str, script: str, environment: dict[str, str], output: str, *, walltime_s: float | None
) -> None:
    """Its mother: a process in the background, from the job's start to its end."""
    if os.fork():
        return
    os.setsid()
    copy = lab.folder / "jobs" / f"{job}.sh"
    copy.write_text(script)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    with open(output, "ab") as log:
        child = subprocess.Popen(
            ["bash", copy], env=environment, cwd=environment["HOME"], stdout=log, stderr=log, start_new_session=True
        )
    if _deleted(lab, job).exists():  # before there was anything to kill
        _kill(lab, job)
    try:
        code = child.wait(walltime_s)
    except subprocess.TimeoutExpired:
        _kill(lab, job)
        code = child.wait()
    _kill(lab, job)
    _end(lab, job, code if code >= 0 else 256 - code)
    os._exit(0)


# --- the others -----------------------------------------------------------------------------------


def pbsdsh(lab: Lab, words: list[str]) -> None:
    command = words[1:] if words[0] == "--" else words
    job = os.environ["PBS_JOBID"]
    tasks = []
    for number, host in enumerate(Path(os.environ["PBS_NODEFILE"]).read_text().split()):
        bare = {
            "HOME": str(lab.folder / "home"),
            "PATH": "/usr/bin:/bin",
            "PBS_JOBID": job,
            "PBS_NODENUM": str(number),
            "PBS_TASKNUM": str(number + 2),
            "PBS_ENVIRONMENT": "PBS_BATCH",
            "HOST": host,
        }
        tasks.append(subprocess.Popen(command, env=bare, cwd=bare["HOME"], start_new_session=True))
    codes = [task.wait() for task in tasks]
    sys.exit(max(code if code >= 0 else 128 - code for code in codes))


def qstat(lab: Lab, words: list[str]) -> None:
    jobs = lab.jobs()
    if words[-1] not in jobs:
        sys.exit(f"qstat: Unknown Job Id {words[-1]}")
    print(json.dumps({"timestamp": int(time.time()), "pbs_version": "23.06.06", "Jobs": {words[-1]: jobs[words[-1]]}}))


def qdel(lab: Lab, words: list[str]) -> None:
    facts = lab.jobs().get(words[-1])
    if facts is None:
        sys.exit(f"qdel: Unknown Job Id {words[-1]}")
    if facts["job_state"] == "F":
        sys.exit(f"qdel: Job has finished {words[-1]}")
    _deleted(lab, words[-1]).touch()
    if os.fork() == 0:
        os.setsid()
        _kill(lab, words[-1])
        os._exit(0)


def _deleted(lab: Lab, job: str) -> Path:
    return lab.folder / "jobs" / f"{job}.deleted"


def _kill(lab: Lab, job: str) -> None:
    """All processes of its sessions, and what they have started in sessions of their own: asked first."""
    deadline = time.monotonic() + KILL_DELAY_S
    number = signal.SIGTERM
    told: set[int] = set()
    while processes := _processes(lab, job):
        if time.monotonic() > deadline:
            number, told = signal.SIGKILL, set()
        for process in processes:
            if process not in told:
                told.add(process)
                try:
                    os.kill(process, number)
                except ProcessLookupError:
                    pass
        if number == signal.SIGTERM:
            time.sleep(0.1)


def _processes(lab: Lab, job: str) -> list[int]:
    """By the variable that all of them have inherited, as a cgroup would know them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environ = (folder / "environ").read_bytes().split(b"\0")
            is_alive = (folder / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            continue
        if is_alive and f"PBS_JOBID={job}".encode() in environ and f"HOME={lab.folder / 'home'}".encode() in environ:
            found.append(int(folder.name))
    return found


def _write(lab: Lab, job: str, **facts: Any) -> None:
    path = lab.folder / "jobs" / f"{job}.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps({**before, **facts}))
    aside.replace(path)


def _end(lab: Lab, job: str, code: int) -> None:
    _write(lab, job, job_state="F", Exit_status=code)


if __name__ == "__main__":
    main()
