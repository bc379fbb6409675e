"""The page on Kubernetes: its example runs as it is printed, on a real cluster; and other ways to the same end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lab.command import Shell, everstep, until
from lab.kubernetes.cluster import REPOSITORY, Lab

PAGE = (REPOSITORY / "docs" / "guides" / "kubernetes.md").read_text()


@pytest.fixture
def shell(lab: Lab, tmp_path: Path) -> Iterator[Shell]:
    """With the page's files, and a volume for the page's claim."""
    for name, kind in (("train.py", "python"), ("job.yaml", "yaml")):
        (content,) = re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)
        (tmp_path / name).write_text(content)
    lab.volume("first", tmp_path / "store")
    shell = Shell(tmp_path, KUBECONFIG=lab.kubeconfig)
    yield shell
    everstep("cancel", "first", folder=tmp_path, **shell.env)
    lab.remove_volume("first")


def changes(lab: Lab, **options: Any) -> list[str]:
    """What this cluster needs beyond the page's job file."""
    job = lab.job()
    given = {**job.pop("platform")["kubernetes"], "store": "1Gi", **options}
    return [f"--set={key}={json.dumps(value)}" for key, value in {"platform.kubernetes": given, **job}.items()]


def test_the_pages_example_runs(lab: Lab, shell: Shell) -> None:
    (script,) = [each for each in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) if "--dry-run" in each]
    commands = [line.partition("#")[0].split() for line in script.splitlines()]
    said = {}
    for program, command, *words in commands:
        assert program == "everstep"
        words, pipe, kept = words, "|" in words, words[-1]
        words = words[: words.index("|")] if pipe else words
        said[" ".join((command, *words))] = shown = shell.type(
            command, *words, *(changes(lab) if command == "run" else [])
        )
        if pipe:
            (shell.folder / kept).write_text(shown)

    assert {each["kind"] for each in yaml.safe_load_all(said["run -f job.yaml --dry-run"])} >= {"Job", "Role"}
    assert re.search(r"first-worker-\d+ \| \[w\d\] loss \d", said["watch first"])
    assert "succeeded" in said["status first"]
    assert lab.look("jobs,pods,configmaps,secrets,pvc", "app.kubernetes.io/instance=first") == []


def test_a_dry_run_can_be_applied_with_an_account_that_somebody_else_made(lab: Lab, shell: Shell) -> None:
    account = (REPOSITORY / "docs" / "guides" / "kubernetes-rbac.yaml").read_text()
    lab.kubectl("apply", "-f", "-", text=account)
    given = changes(lab, service_account="everstep")
    manifest = shell.type("run", "-f", "job.yaml", "--dry-run", *given)
    assert "RoleBinding" not in manifest

    lab.kubectl("apply", "-f", "-", text=manifest)
    try:
        lab.kubectl("wait", "--for=condition=complete", "job/first-coordinator", "--timeout=600s", deadline_s=250)
        assert "loss" in lab.kubectl("logs", "-l", "app.kubernetes.io/component=worker", "--tail=-1")
    finally:
        lab.kubectl("delete", "-f", "-", "--wait=false", text=manifest)
        lab.kubectl("delete", "-f", "-", "--wait=false", text=account)
    until(lambda: lab.look("pods", "app.kubernetes.io/instance=first") == [], lambda: lab.kubectl("get", "pods"))


def test_an_indexed_job_needs_no_rights(lab: Lab, shell: Shell) -> None:
    given = changes(lab, mode="indexed", store="node")
    shell.type("run", "-f", "job.yaml", *given, "--set=nodes=2")
    said = shell.type("watch", "first")
    assert len(re.findall(r"\[w\d\] loss", said)) == 2
    assert lab.look("roles,serviceaccounts", "app.kubernetes.io/instance=first") == []


def test_a_running_job_is_asked_through_the_clusters_api(lab: Lab, shell: Shell) -> None:
    script = (shell.folder / "train.py").read_text().replace("optimizer.step()", "optimizer.step(); time.sleep(0.5)")
    script = script.replace("torch.randn(640, 8)", "torch.randn(64_000, 8)")  # for hours: it is canceled
    assert "64_000" in script
    (shell.folder / "train.py").write_text(f"import time\n{script}")
    shell.type("run", "-f", "job.yaml", *changes(lab, store="node"))

    def status() -> str:
        return shell.type("status", "first")

    until(lambda: re.search(r"w\d+ +│ member", status()), status)
    shell.type("run", "-f", "job.yaml", *changes(lab), is_good=False)
    assert shell.last.returncode == 2
    assert "namespace default already has a job first, running" in shell.last.stderr
