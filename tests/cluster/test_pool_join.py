"""`everstep pool join POOL --slots …`: which pool, and how many slots."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.launcher.machine import count_cpus, count_gpus
from lab.command import EVERSTEP, Command, everstep
from lab.pool_stage import PoolStage

PLAIN = {"EVERSTEP_NURSERY": "off"}
NOWHERE = ("--coordinator", "http://127.0.0.1:9")


@pytest.mark.parametrize(("slots", "number"), [("auto", count_gpus() or count_cpus()), ("cpu", count_cpus()), ("3", 3)])
def test_a_machine_joins_the_pool_with_its_slots(tmp_path: Path, slots: str, number: int) -> None:
    with PoolStage(tmp_path, **PLAIN) as stage:
        words = ("--coordinator", stage.url, "--token-file", stage.token_file, "--slots", slots)
        join = Command(*EVERSTEP, "pool", "join", "night", *words, folder=tmp_path, **PLAIN, **home(tmp_path))
        with join, stage.connect() as coordinator:
            join.wait_said(rf"{number} slots? in pool night of {stage.url}")
            join.until(lambda: coordinator.pool("night").num_slots == number, "its slots are there")
            assert not coordinator.pool("default").agents


def test_slots_that_this_machine_does_not_have_are_refused_with_a_way_out(tmp_path: Path) -> None:
    done = everstep(
        "pool", "join", *NOWHERE, "--slots", "gpu", folder=tmp_path, CUDA_VISIBLE_DEVICES="", **home(tmp_path)
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "--slots gpu: this machine has no GPU\n  HINT: --slots cpu, or --slots auto; " in done.stderr
    done = everstep("pool", "join", *NOWHERE, "--slots", "some", folder=tmp_path, **home(tmp_path))
    assert "--slots some\n  HINT: auto, gpu, cpu, or a whole number from 1 to " in done.stderr
    assert not (tmp_path / "home").exists()


def home(folder: Path) -> dict[str, str]:
    return {"EVERSTEP_HOME": str(folder / "home")}
