"""OCI, emulated: the stories that every platform passes, and what only this one does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.command import EVERSTEP, ROOT, Command, Shell, until
from lab.contract import FamilyContract
from lab.oci.tenancy import OciLab, make_user
from lab.seeds import snippet


class TestOci(FamilyContract):
    @pytest.fixture
    def place(self, lab: OciLab) -> OciLab:
        return lab


class Terminal(Shell):
    """Of a user of the lab."""

    def __init__(self, lab: OciLab, folder: Path) -> None:
        super().__init__(folder, **lab.env())
        self.lab, self.started = lab, list[str]()

    def submit(self, *entrypoint: str, options: dict[str, Any] | None = None, **more: Any) -> str:
        """A small program as a job: its id."""
        job = {**self.lab.job(), "entrypoint": list(entrypoint), "name": "small", **more}
        job["platform"] = {"oci": {**job["platform"]["oci"], **(options or {})}}
        (self.folder / "job.yaml").write_text(yaml.safe_dump(job))
        self.started.append(str(yaml.safe_load(self.type("run", "-f", "job.yaml"))["everstep"]["id"]))
        return self.started[-1]

    def refused(self, *words: str) -> str:
        """The error of a command that must end with code 2."""
        self.type(*words, is_good=False)
        assert self.last.returncode == 2, self.last
        return self.last.stderr

    def close(self) -> None:
        for job in self.started:
            self.type("cancel", job)


@pytest.fixture
def terminal(lab: OciLab, tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(lab, tmp_path)
    yield terminal
    terminal.close()


def test_the_seeds_own_file_and_script_run_are_watched_and_shown(terminal: Terminal, lab: OciLab) -> None:
    (terminal.folder / "train.yaml").write_text(snippet(2, "kind: distributed"))
    (terminal.folder / "train.py").write_text(snippet(2, "import torchvision"))
    local = {"image": "iad.ocir.io/tenancy/everstep:1", "platform.oci.endpoint": lab.url}
    quick = ["--data-dir", "data", "--epochs", "1", "--batch-size", "64", "--workers", "0", "--timeout", "5"]
    changes = [f"--set={key}={value}" for key, value in {**local, "args": f"[{', '.join(quick)}]"}.items()]

    dry = yaml.safe_load(terminal.type("run", "-f", "train.yaml", "--dry-run"))
    assert [run["displayName"] for run in dry["jobRuns"]][::2] == [
        "PyTorch-Distributed-main",
        "PyTorch-Distributed-worker-1",
    ]
    info = terminal.type("run", "-f", "train.yaml", *changes)
    (terminal.folder / "info.yaml").write_text(info)
    told = yaml.safe_load(info)
    terminal.started.append(told["everstep"]["id"])
    main_run = told["mainJobRunId"]["PyTorch-Distributed-main"]
    said = terminal.type("watch", main_run)

    assert (
        told["jobId"].startswith("ocid1.datasciencejob.")
        and told["workDir"] == "oci://my-bucket@my-namespace/path/to/dir/"
    )
    assert [name for run in told["otherJobRunIds"] for name in run] == [
        "PyTorch-Distributed-worker-0",
        "PyTorch-Distributed-worker-1",
    ]
    for rank in range(3):
        assert f"Rank {rank}: Finished Training" in said
    assert said.count("Accuracy of the network on the 10000 test images: ") == 1
    shown = yaml.safe_load(terminal.type("show-config", "-f", "info.yaml"))
    assert shown["jobId"] == told["jobId"] and shown["job"]["nodes"] == 3


def test_one_run_for_all_nodes_is_made_by_the_service_itself(terminal: Terminal, lab: OciLab) -> None:
    job = terminal.submit("sh", "-c", "echo node $NODE_RANK here", nodes=2, options={"mode": "multinode"})
    said = terminal.type("watch", job)

    assert {"0", "1"} == set(re.findall(r"node (\d) here", said))
    (run,) = lab.state()["runs"]
    assert run["lifecycleState"] == "SUCCEEDED"


def test_each_node_reads_secrets_from_the_vault_and_others_from_the_bucket(terminal: Terminal, lab: OciLab) -> None:
    lab.keep_secret(**{"ocid1.vaultsecret.oc1.iad.key": "opensesame"})
    (terminal.folder / "password").write_text("hunter2")
    secrets = {"KEY": "oci:ocid1.vaultsecret.oc1.iad.key", "PASSWORD": f"file:{terminal.folder / 'password'}"}
    job = terminal.submit(
        "sh", "-c", "echo ${#KEY} and ${#PASSWORD}", nodes=2, secrets=secrets, options={"log": ""}
    )  # each run has a log of its own
    told = terminal.last.stderr
    said = terminal.type("watch", job)

    assert said.count("10 and 7") == 2
    assert "hunter2" not in str(lab.state()) and "opensesame" not in str(lab.state())
    assert "secrets.json, not into the job's definition" in told and "KEY: each node reads them from the vault" in told
    assert not [name for name in lab.state()["objects"] if name.endswith("secrets.json")]  # gone with the job


def test_calls_that_fail_are_made_again_and_nothing_is_made_twice(terminal: Terminal, lab: OciLab) -> None:
    lab.break_("POST", "/jobs$", status=429, code="TooManyRequests", retry_after_s=0.3)
    lab.break_("POST", "/jobRuns$", status=500, is_late=True)  # made, but the answer is lost
    lab.break_("GET", "/jobRuns$", status=503, times=2)
    job = terminal.submit("sh", "-c", "echo here", nodes=2)
    terminal.type("watch", job)

    assert len(lab.state()["jobs"]) == 1 and len(lab.state()["runs"]) == 2


def test_a_job_of_which_one_run_is_refused_leaves_nothing_behind(terminal: Terminal, lab: OciLab) -> None:
    lab.change(accept_s=600.0)
    lab.break_("POST", "/jobRuns$", status=400, code="LimitExceeded", is_late=True)
    (terminal.folder / "job.yaml").write_text(yaml.safe_dump({**lab.job(), "entrypoint": "true", "nodes": 2}))

    assert "LimitExceeded" in terminal.refused("run", "-f", "job.yaml")
    state = lab.state()
    assert (state["jobs"], state["runs"], state["objects"]) == ([], [], [])


def test_a_run_that_is_slow_to_begin_and_slow_to_end_is_waited_for(terminal: Terminal, lab: OciLab) -> None:
    lab.change(accept_s=600.0, cancel_hangs=True)
    job = terminal.submit("sleep", "100")
    assert '"pending"' in terminal.type("list", "--json")

    with Command(*EVERSTEP, "cancel", job, folder=terminal.folder, are_errors_apart=True, **terminal.env) as cancel:
        until(lambda: "small-main is CANCELING" in cancel.errors, cancel.story)
        assert cancel.process.wait(0) is None  # it waits
        lab.change(cancel_hangs=False)
        cancel.finish()
    assert '"canceled"' in terminal.type("list", "--json")


def test_records_that_come_late_and_twice_are_shown_once(terminal: Terminal, lab: OciLab) -> None:
    lab.change(log_late_s=4.0, log_twice=True)
    said = terminal.type("watch", terminal.submit("sh", "-c", "for i in 1 2 3; do echo line $i; done"))

    assert re.findall(r"line \d", said) == ["line 1", "line 2", "line 3"]


def test_a_key_that_the_service_does_not_know_is_told_as_such(terminal: Terminal, lab: OciLab, tmp_path: Path) -> None:
    make_user(tmp_path / "stranger", fingerprint=":".join(["cd"] * 16))
    terminal.env["HOME"] = str(tmp_path / "stranger")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**lab.job(), "entrypoint": "true"}))
    told = terminal.refused("run", "-f", "job.yaml")
    assert "401 NotAuthenticated" in told and "fingerprint, user and tenancy" in told
    terminal.env["HOME"] = str(tmp_path)
    told = terminal.refused("run", "-f", "job.yaml")
    assert "Could not find config file" in told and "oci setup config" in told


def test_a_dry_run_needs_no_sdk_and_a_run_says_how_to_get_it(tmp_path: Path, lab: OciLab) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['oci'] = sys.modules['ocifs'] = None\n")
    shell = Shell(tmp_path, PYTHONPATH=f"{tmp_path}:{ROOT}")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**lab.job(), "entrypoint": "true"}))

    assert "jobRuns:" in shell.type("run", "-f", "job.yaml", "--dry-run")
    shell.type("run", "-f", "job.yaml", is_good=False)
    assert shell.last.returncode == 2 and "pip install 'everstep[oci]'" in shell.last.stderr
