"""`everstep run -f` with a coordinator that has a pool: the job is one trial there, and the command ends as it does."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lab.command import EVERSTEP, Command, run
from lab.pool_stage import PoolStage

SCRIPT = """
import sys, time
from pathlib import Path
print("hello from the pool", flush=True)
while "hold" in sys.argv and not Path(sys.argv[-1]).exists():
    time.sleep(0.05)
sys.exit(3 if "fail" in sys.argv else 0)
"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[PoolStage]:
    with PoolStage(tmp_path) as stage:
        yield stage


def write(folder: Path, *args: str, **more: object) -> str:
    (folder / "src").mkdir(exist_ok=True)
    (folder / "src" / "train.py").write_text(SCRIPT)
    (folder / "job.yaml").write_text(
        yaml.safe_dump({"entrypoint": "train.py", "args": list(args), "workdir": "src", "restarts": 0, **more})
    )
    return "job.yaml"


def variables(stage: PoolStage) -> dict[str, str]:
    return {
        "EVERSTEP_HOME": str(stage.folder / "home"),
        "EVERSTEP_COORDINATOR": stage.url,
        "EVERSTEP_TOKEN_FILE": str(stage.token_file),
    }


def test_a_job_runs_on_slots_of_the_pool_and_its_command_ends_as_it_does(stage: PoolStage) -> None:
    stage.join()
    done = run(*EVERSTEP, "run", "-f", write(stage.folder), folder=stage.folder, **variables(stage))
    assert done.returncode == 0, done.stderr
    assert "hello from the pool" in done.stdout
    told = yaml.safe_load(done.stdout.partition("[")[0])
    assert (told["experiment"], told["job"], told["pool"]) == (1, "e1-t1", "default")
    assert stage.trials.view(1).state == "COMPLETED"

    failed = run(*EVERSTEP, "run", "-f", write(stage.folder, "fail"), folder=stage.folder, **variables(stage))
    assert failed.returncode == 1, failed.stderr
    assert "experiment 2 ERROR" in failed.stderr


def test_ctrl_c_leaves_the_job_running(stage: PoolStage) -> None:
    stage.join()
    file = write(stage.folder, "hold", str(stage.folder / "go"))
    with Command(*EVERSTEP, "run", "-f", file, folder=stage.folder, **variables(stage)) as command:
        command.wait_said("hello from the pool")
        command.signal(signal.SIGINT)
        assert command.exit_code() == 130
        assert "experiment 1 continues" in command.said
    assert stage.trials.view(1).state == "ACTIVE"
    stage.trials.let_go()
    stage.trials.wait_state(1, "COMPLETED")


def test_without_a_pool_the_job_runs_as_it_always_did(stage: PoolStage) -> None:
    file = write(stage.folder)
    done = run(*EVERSTEP, "run", "-f", file, "--follow", folder=stage.folder, **variables(stage))
    assert done.returncode == 0, done.stderr
    assert "the job runs without a pool" in done.stderr and "hello from the pool" in done.stdout

    asked = run(*(*EVERSTEP, "run", "-f", file, "--coordinator", stage.url), folder=stage.folder, **variables(stage))
    assert asked.returncode == 2
    assert "pool default has no nodes" in asked.stderr and "everstep pool join" in asked.stderr


def test_a_platform_goes_before_a_pool_that_only_the_environment_names(stage: PoolStage) -> None:
    stage.join()
    file = write(stage.folder, platform="local")
    shown = run(*EVERSTEP, "run", "-f", file, "--dry-run", folder=stage.folder, **variables(stage))
    assert shown.returncode == 0 and "the file names a platform" in shown.stderr
    both = ("--platform", "local", "--coordinator", stage.url)
    refused = run(*EVERSTEP, "run", "-f", file, *both, folder=stage.folder, **variables(stage))
    assert refused.returncode == 2 and "give one of them" in refused.stderr
