"""What a node tells of itself, and what is checked before it gets trials."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from everstep.errors import Refused
from lab.command import EVERSTEP, environment, run, until
from lab.pool_nodes import PoolFileStage
from lab.pool_stage import SCRIPT, PoolStage
from lab.refused import refused

PLAIN = {"EVERSTEP_NURSERY": "off"}


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_a_node_with_a_full_disk_offers_no_slots(tmp_path: Path) -> None:
    with PoolStage(tmp_path, **PLAIN) as stage:
        (disk := tmp_path / "disk").mkdir()
        join = " ".join([*EVERSTEP, "pool", "join", "--coordinator", stage.url, "--token-file", str(stage.token_file)])
        command = f"mount -t tmpfs -o size=1m tmpfs {disk} && exec {join} --folder {disk}/agent"
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", command], env=environment(**PLAIN), capture_output=True, text=True
        )
        assert done.returncode == 2, done.stderr
        assert "this node cannot run trials: disk: " in done.stderr and "--folder DIR" in done.stderr
        assert not stage.trials.pool().agents


def test_a_node_tells_its_environment_and_another_image_is_refused(tmp_path: Path) -> None:
    with PoolStage(tmp_path, EVERSTEP_IMAGE="train:1", **PLAIN) as stage:
        stage.join(slots=2)
        (agent,) = stage.trials.pool().agents
        assert (agent.environment.image, agent.environment.slot_cpus >= 1) == ("train:1", True)
        assert agent.environment.slot_memory_bytes > 0 and agent.environment.torch
        with refused("image-not-in-pool", Refused):
            stage.trials.create(1, config={"image": "train:2"})
        experiment = stage.trials.create(1, config={"environment": {"image": "train:1"}})
        assert stage.trials.wait_state(experiment, "COMPLETED", "ERROR").state == "COMPLETED"
        until(lambda: stage.trials.starts)
        (start,) = stage.trials.starts
        assert start["slot_memory"] == str(agent.environment.slot_memory_bytes)


def test_code_arrives_once_for_all_trials_of_a_node(tmp_path: Path) -> None:
    with PoolStage(tmp_path, **PLAIN) as stage:
        stage.join(slots=1)
        experiment = stage.trials.create(2, "--hold")
        stage.trials.wait_starts(1)
        (kept,) = (tmp_path / "kept-code").iterdir()
        kept.unlink()
        stage.trials.let_go()
        assert stage.trials.wait_state(experiment, "COMPLETED", "ERROR").state == "COMPLETED"
        first, second = stage.trials.starts
        assert (first["trial"], second["trial"]) == (1, 2)
        assert first["code"] == second["code"], "both are links to one copy"
        assert [each.num_restarts for each in stage.trials.trials(experiment)] == [0, 0]


def test_a_node_on_which_trials_of_three_experiments_fail_is_set_aside_and_replaced(tmp_path: Path) -> None:
    """The first node, whose folder is called 0, is broken."""
    pool = {
        "platform": "local",
        "max_nodes": 2,
        "slots_per_node": 3,
        "idle": "5s",
        "setup": ['[ "${PWD##*/}" != 0 ] || export BROKEN=1'],
    }
    script = SCRIPT.read_text().replace("if options.fail:", 'if options.fail or "BROKEN" in os.environ:')
    with PoolFileStage(tmp_path, pool, **PLAIN) as stage:
        experiments = [stage.trials.create(1, script=script) for _ in range(3)]
        until(
            lambda: any(each.state == "disabled" for each in stage.trials.pool().agents),
            lambda: str(stage.trials.pool()),
        )
        words = ("agent", "list", "--coordinator", stage.url, "--token-file", stage.token_file, "--json")
        bad = json.loads(run(*EVERSTEP, *words, folder=tmp_path).stdout)[0]
        assert bad["agent"] == "default-0"
        assert bad["state_reason"].startswith("trials of 3 experiments failed here in a row (e"), bad
        for each in experiments:
            assert stage.trials.wait_state(each, "COMPLETED", "ERROR").state == "COMPLETED"
        assert stage.num_made() == 2
