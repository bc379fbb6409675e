"""A new project runs as it is, and nothing that was there is lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from everstep import Checkpointer
from everstep.job_file.load import load_file
from everstep.job_file.platform_options import PLATFORMS
from lab.command import everstep


def test_a_new_project_runs_at_once(tmp_path: Path) -> None:
    written = everstep("init", "circle", folder=tmp_path)
    assert {Path(line).name for line in written.stdout.splitlines()} == {
        ".dockerignore", "Dockerfile", "README.md", "docker-compose.yaml", "job.yaml", "requirements.txt", "train.py",
    }  # fmt: skip
    folder = tmp_path / "circle"
    home = {"EVERSTEP_HOME": str(tmp_path / "home")}
    done = everstep("run", "-f", "job.yaml", "--follow", folder=folder, **home)
    assert done.returncode == 0, done.stdout + done.stderr
    # On data that was not trained on; both classes are about equally frequent.
    assert re.search(r"\[w\d\] epoch 5: loss 0\.[01]\d*, accuracy 0\.9\d* on 1024 held-out points", done.stdout)
    assert (folder / "model.pt").exists()
    with Checkpointer(folder / "runs" / "checkpoints") as checkpointer:
        assert [each.step for each in checkpointer.list() if each.is_whole] == [64, 80]  # 16 steps an epoch

    again = everstep("run", "-f", "job.yaml", "--set", "args=[--epochs,6]", "--follow", folder=folder, **home)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "continuing after step 80" in again.stdout and "epoch 6:" in again.stdout
    assert "epoch 5:" not in again.stdout


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_job_file_names_its_platform(platform: str, tmp_path: Path) -> None:
    assert everstep("init", "--platform", platform, folder=tmp_path).returncode == 0
    job = load_file(tmp_path / ("train.yaml" if platform == "oci" else "job.yaml")).job
    assert job.platform.chosen == platform
    for path in tmp_path.rglob("*.yaml"):
        assert yaml.safe_load(path.read_text()), path


def test_a_job_file_for_another_platform_is_not_passed_off_as_this_ones(tmp_path: Path) -> None:
    assert everstep("init", "a b", folder=tmp_path).returncode == 0
    done = everstep("init", "a b", "--platform", "compose", folder=tmp_path)
    assert done.returncode == 1
    assert "job.yaml is not the requested one: --force overwrites it" in done.stderr
    assert "now:" not in done.stderr
    done = everstep("init", "a b", "--platform", "compose", "--force", folder=tmp_path)
    assert done.returncode == 0
    assert "now: cd 'a b' && everstep build && everstep run -f job.yaml" in done.stderr


def test_what_is_there_stays_unless_it_is_forced(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('mine')\n")
    done = everstep("init", folder=tmp_path)
    assert "train.py exists already, with other content, and was kept" in done.stderr
    assert "train.py" not in done.stdout.split()
    assert (tmp_path / "train.py").read_text() == "print('mine')\n"
    everstep("init", "--force", folder=tmp_path)
    assert "ElasticTrainer" in (tmp_path / "train.py").read_text()
