"""`everstep convert` and `everstep schema`, as people and scripts call them; and the page that describes the file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.job_file.load import load, load_file
from everstep.job_file.schema import Job
from lab import command
from lab.command import ROOT
from tools.docs_tables import job_keys

FILES = Path(__file__).parent / "files"
PAGE = (ROOT / "docs" / "job_file.md").read_text()


def everstep(*args: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return command.everstep(*args, folder=ROOT, text=stdin)


# --- commands ---


def test_the_native_form_goes_to_stdout_and_what_was_left_out_to_stderr(tmp_path: Path) -> None:
    file = tmp_path / "det.yaml"
    file.write_text((FILES / "determined.yaml").read_text() + "workspace: team\n")

    done = everstep("convert", file, "--set", "nodes=2", "--set", "workers_per_node=4")

    assert done.returncode == 0
    assert load(done.stdout).job == load_file(file, ["nodes=2", "workers_per_node=4"]).job
    assert "everstep: workspace (line 11) was not carried over" in done.stderr


def test_a_command_of_elasticdl_is_converted_as_it_is() -> None:
    words = ["elasticdl", "train", "--image_name=mnist:1", "--job_name=m", "--distribution_strategy=AllreduceStrategy"]
    done = everstep("convert", "--set", "nodes=3", "--", *words, "--job_command=python train.py --title 'a b'")

    assert done.returncode == 0, done.stderr
    job = load(done.stdout).job
    assert (job.args, job.image, str(job.nodes)) == (("--title", "a b"), "mnist:1", "3")


def test_a_file_may_come_by_a_pipe() -> None:
    assert everstep("convert", "-", stdin="entrypoint: [train.py]").stdout == "entrypoint: train.py\n"


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["convert", "nowhere.yaml"], "nowhere.yaml: No such file or directory"),
        (["convert", "-"], "stdin:2: resources.gpus is not a key of resources\n  HINT: did you mean gpu?"),
        (["convert", "elasticdl"], "everstep convert -- elasticdl train"),
        (["convert", "a.yaml", "b.yaml"], "a.yaml: not a supported command"),
    ],
)
def test_an_error_is_a_line_and_a_way_out_and_nothing_on_stdout(args: list[str], told: str) -> None:
    done = everstep(*args, stdin="entrypoint: a.py\nresources: {gpus: 1}")
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_script_that_nothing_can_bring_is_not_submitted(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("entrypoint: nowhere.py\n")
    home = {"EVERSTEP_HOME": str(tmp_path / "home")}
    done = command.everstep("run", "-f", "job.yaml", folder=tmp_path, **home)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"entrypoint: there is no nowhere.py in {tmp_path}\n  HINT: " in done.stderr


def test_the_schema_is_json() -> None:
    schema = json.loads(everstep("schema").stdout)
    assert schema["required"] == ["entrypoint"]
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(Job.model_fields)


# --- the page ---


def test_each_key_has_a_meaning() -> None:
    assert [key for key, _, meaning in job_keys(Job) if not meaning] == []


@pytest.mark.parametrize("example", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_each_file_of_the_page_is_one(example: str) -> None:
    assert load(example).notes == ()


def test_each_command_of_the_page_runs(tmp_path: Path) -> None:
    longer = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1]
    (tmp_path / "job.yaml").write_text(longer)
    (tmp_path / "train.yaml").write_text((FILES / "ads.yaml").read_text())
    lines = "\n".join(re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL))
    assert lines.count("everstep ") == 3
    ours = f"everstep() {{ '{sys.executable}' -m everstep \"$@\"; }}\nset -e\n"
    done = command.run("bash", "-c", ours + lines, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert load_file(tmp_path / "job.yaml").job.platform.oci is not None
