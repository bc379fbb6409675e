"""What happens to jobs on a cluster: preemption, drained and crashed nodes, an allocation, a login without torch."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from lab.command import EVERSTEP, ROOT, everstep, run, until
from lab.contract import TRAINING, undisturbed
from lab.guide import follow
from lab.slurm.hosts import Lab
from lab.submitted import SCRIPT, Submitted, digest_after

RESUME = SCRIPT.with_name("resume.py")
SLOW = ["train.py", "--steps", "300", "--pace", "0.2", "--until"]  # a file: then it hurries
ENV = {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}

Submit = Callable[..., Submitted]


@pytest.fixture
def submit(queue: Lab, tmp_path: Path) -> Iterator[Submit]:
    started: list[Submitted] = []

    def submit(options: Mapping[str, Any], **job: Any) -> Submitted:
        started.append(Submitted(tmp_path, {"env": ENV, **job, "platform": {"slurm": dict(options)}}, queue.env()))
        return started[-1]

    yield submit
    for each in started:
        each.close()


def test_plain_ddp_on_two_nodes(submit: Submit, tmp_path: Path) -> None:
    """Seed 003's training, by the example that repeats it, without a change."""
    for name in ("01_plain_ddp", "data"):
        shutil.copytree(ROOT / "examples" / name, tmp_path / name)
    args = ["--epochs", "1", "--batch-size", "100"]
    said = submit({}, entrypoint="01_plain_ddp/ddp.py", args=args, nodes=2).finish()
    ranks = set(re.findall(r"node-(\d) \| \[w\d\] rank (\d) of 2 \| epoch 0", said))
    assert ranks == {("0", "0"), ("1", "1")}
    assert float(re.findall(r"test accuracy ([\d.]+)%", said)[0]) > 40


def test_a_preempted_job_comes_back_and_goes_on_from_its_checkpoint(submit: Submit, queue: Lab, tmp_path: Path) -> None:
    shutil.copy(RESUME, tmp_path)
    entrypoint = ["resume.py", str(tmp_path / "checkpoints"), "200", "0.2", str(tmp_path / "hurry")]
    job = submit({"partition": "low"}, entrypoint=entrypoint, nodes=2, resources={"cpu": 4})
    job.wait_size(2)
    until((tmp_path / "checkpoints").exists, lambda: job.said)
    queue.ask("sbatch", "-p", "high", "-N3", "--exclusive", "--output=/dev/null", "--wrap", "sleep 1")
    job.wait_said(r"SIGTERM: workers have 60 s to end")
    job.wait_said(r"back to the queue")
    (tmp_path / "hurry").touch()
    job.wait_said(r"going on from step [1-9]")
    said = job.finish()

    alone = run(sys.executable, RESUME, tmp_path / "alone", 200, 0, tmp_path / "hurry", folder=tmp_path)
    assert alone.returncode == 0, alone.stderr
    assert set(re.findall(r"digest (\w+) after 200 steps", said)) == set(re.findall(r"digest (\w+)", alone.stdout))
    assert not list((tmp_path / "runs").glob("*/*.requeues"))  # which count time limits alone


def test_a_job_whose_time_is_up_comes_back_so_often_and_no_more(submit: Submit, queue: Lab, tmp_path: Path) -> None:
    shutil.copy(RESUME, tmp_path)
    job = submit(
        {"time_requeues": 1, "signal_lead": "240s"},
        entrypoint=["resume.py", str(tmp_path / "checkpoints"), "100000", "0.05", str(tmp_path / "never")],
        time_limit="6m",  # counted as up from the first second on; Slurm itself would tell after two minutes
    )
    generation = 0
    for _ in range(2):
        before = len(job.said)
        generation = job.wait_size(1, after=generation)
        (native,) = queue.jobs(job.id, state="RUNNING")
        queue.ask("scancel", "--batch", "--signal=USR2", native.split()[0])  # as Slurm does when 240 s are left
        job.wait_said(r"signal USR2: the nodes leave in good order[\s\S]*w\d+ finished", after=before)
    job.type("watch", job.id, is_good=False)
    assert "its time was up 2 times; it is requeued 1 times at most" in job.type("list", "--json")


def test_a_drained_node_gives_its_place_to_another_while_training(submit: Submit, queue: Lab, tmp_path: Path) -> None:
    job = submit({"mode": "array"}, entrypoint=[*SLOW, str(tmp_path / "hurry")], nodes="1:2", resources={"cpu": 3})
    both = job.wait_size(2)
    (coordinator,) = [each.split()[-1] for each in queue.jobs(job.id) if "_" not in each.split()[0]]
    nodes = [each.split() for each in queue.jobs(job.id) if "_" in each.split()[0]]
    native, _, host = next(each for each in nodes if each[-1] != coordinator)
    queue.ask("scontrol", "update", f"nodename={host}", "state=drain", "reason=test")
    try:
        queue.ask("scontrol", "requeue", native)
        alone = job.wait_size(1, after=both)
        job.wait_size(2, after=alone)
        assert host not in {each.split()[-1] for each in queue.jobs(job.id)}
        (tmp_path / "hurry").touch()
        said = job.finish()
    finally:
        queue.ask("scontrol", "update", f"nodename={host}", "state=resume")
    assert set(re.findall(r"digest (\w+)", said)) == {digest_after(300)}


def test_a_host_crashes_and_the_others_go_on(submit: Submit, queue: Lab, tmp_path: Path) -> None:
    job = submit(
        {},
        entrypoint=[*SLOW, str(tmp_path / "hurry")],
        nodes="1:2",
        resources={"cpu": 4},
        health={"lease_s": 3},
    )
    both = job.wait_size(2)
    hosts = queue.ask("squeue", "-h", f"--name={job.id}", "-o", "%N")
    assert hosts == "h[2-3]"
    queue.crash("h3")
    job.wait_size(1, after=both)
    (tmp_path / "hurry").touch()
    said = job.finish()
    assert set(re.findall(r"digest (\w+)", said)) == {digest_after(300)}


def test_a_job_inside_an_allocation(queue: Lab, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(SCRIPT.read_bytes())
    (tmp_path / "job.yaml").write_text(
        f"entrypoint: {['train.py', *TRAINING]}\nnodes: 2\nenv: {ENV}\nplatform: {{slurm: {{mode: allocation}}}}\n"
    )
    command = ["salloc", "--nodes=2", "--quiet", *EVERSTEP, "run", "-f", "job.yaml", "--follow"]
    done = run(*command, folder=tmp_path, **queue.env(), EVERSTEP_HOME=str(tmp_path / "home"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(re.findall(r"digest (\w+)", done.stdout)) == {undisturbed()}


def test_a_login_node_needs_no_torch(queue: Lab, tmp_path: Path) -> None:
    """There `import torch` fails; the nodes' setup lines choose a Python that has it."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "bin" / "python").chmod(0o755)
    login = tmp_path / "login"
    login.mkdir()
    for name in ("torch", "numpy"):
        (login / f"{name}.py").write_text("raise ImportError('not on a login node')\n")
    (tmp_path / "train.py").write_bytes(SCRIPT.read_bytes())
    setup = [f"export PATH={tmp_path / 'bin'}:$PATH PYTHONPATH="]
    (tmp_path / "job.yaml").write_text(
        f"entrypoint: {['train.py', *TRAINING]}\nsetup: {setup}\nenv: {ENV}\nplatform: slurm\n"
    )
    here = {**queue.env(), "EVERSTEP_HOME": str(tmp_path / "home"), "PYTHONPATH": str(login)}
    done = everstep("run", "-f", "job.yaml", "--follow", folder=tmp_path, **here)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(re.findall(r"digest (\w+)", done.stdout)) == {undisturbed()}


def test_the_example_of_the_guide_runs(queue: Lab, tmp_path: Path) -> None:
    seen = follow("slurm.md", tmp_path, queue.env())
    assert {"node-0", "node-1"} == set(re.findall(r"^(\S+) \| \[w\d\] loss \d", seen, re.MULTILINE))
    assert re.search(r"first-\S+ succeeded: all 2 members left together", seen)
