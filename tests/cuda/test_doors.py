"""The other ways in, on a GPU over NCCL: the Trainer of a trial, the controller, and a plain DDP script."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from everstep.testing.tape import Event, is_match
from lab.device_stage import DeviceStage, check_backend
from lab.records_audit import END, audit
from lab.stage import SCRIPTS, Stage
from lab.terminal import Run

RESTART_S = 5.0  # in addition to the script's own start


def test_a_trial_has_the_bits_of_one_worker_through_a_death() -> None:
    with Stage("--gate-worker", "w1", script="trial.py", gates=[5], workers=3) as cluster:
        cluster.wait_at_gate(5, "w1")
        cluster.kill("w1")
        result = cluster.finish_undisturbed()
    check_backend(result, "nccl")


def test_the_controller_loses_and_repeats_no_record_through_a_death() -> None:
    with DeviceStage(device="cuda", script="controlled.py", gates=[9], workers=3) as cluster:
        cluster.wait_at_gate(9)
        cluster.kill("w1")
        cluster.open_gate(9)
        result = cluster.finish()
    audit((result, END))


def test_a_killed_worker_of_a_plain_ddp_script_restarts_all_at_once(tmp_path: Path) -> None:
    """NCCL itself would wait for ten minutes."""
    arguments = [SCRIPTS / "ddp.py", "checkpoint.pt", "--steps=20", "--device=cuda"]
    with Run("--nproc-per-node=2", "--max-restarts=1", *arguments, directory=tmp_path, GATES="15") as run:

        def events(name: str, **facts: Any) -> list[Event]:
            return [event for event in run.tape.read() if is_match(event, name, facts)]

        run.until(lambda: events("ddp.step", step=3), "step 3")
        start_s = events("ddp.step")[0]["t"] - events("worker.started")[0]["t"]
        killed_at = time.monotonic()
        run.kill("w1")
        run.until(lambda: events("ddp.formed", restarts=1), "the second start")
        run.until(lambda: events("ddp.step", t=lambda t: t > events("ddp.formed", restarts=1)[0]["t"]), "a step")
        formed_at = events("ddp.formed", restarts=1)[0]["t"]
        restart_s = events("ddp.step", t=lambda t: t > formed_at)[0]["t"] - killed_at
        (tmp_path / "gate-15").touch()
        run.finish()
        ends = events("result")
    print(f"start {start_s:.2f} s, from the kill to the next step {restart_s:.2f} s")
    assert restart_s <= start_s + RESTART_S
    assert len({event["weights_digest"] for event in ends}) == 1
    assert len(ends) == 2
