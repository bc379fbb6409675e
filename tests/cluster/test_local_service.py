"""The local service: started by the first command that needs it, kept alive, kept after kill -9, ended if idle."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from everstep.storage import private_file
from lab.command import EVERSTEP, Command, run, until
from lab.local_stage import LocalStage
from lab.processes import are_gone

FILE = """
name: waits
entrypoint: train.py
args: [--folder, ., --lr, "0.5"]
hyperparameters: {lr: 0.5}
searcher: {name: single, metric: loss, max_length: {batches: 8}}
"""


@pytest.fixture
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalStage]:
    with LocalStage(tmp_path, getattr(request, "param", 600.0), EVERSTEP_NURSERY="off") as made:
        yield made


def test_two_commands_at_once_start_one_service_which_is_private_and_stops_when_told(stage: LocalStage) -> None:
    with ThreadPoolExecutor(2) as threads:
        urls = {each.result() for each in [threads.submit(stage.connect) for _ in range(2)]}
    assert len(urls) == 1
    pid = stage.pid
    assert stage.connect() in urls
    assert stage.pid == pid
    for path in (stage.files.folder, stage.files.coordinator.directory, stage.files.agent):
        until(path.is_dir)
        assert path.stat().st_mode & 0o077 == 0
    for path in (stage.files.log, stage.files.coordinator.token, stage.files.coordinator.store, stage.files.state):
        assert path.stat().st_mode & 0o077 == 0
    until(lambda: stage.trials.pool().num_slots > 0)
    assert "local" in stage.type("pool", "list")
    parts = [stage.part("serve"), stage.part("join"), pid]
    stage.type("pool", "stop")
    assert not stage.is_running
    assert are_gone(parts)
    assert "not running" in stage.type("pool", "stop")


def test_modules_in_the_users_folder_are_not_imported_by_the_service(stage: LocalStage) -> None:
    for name in ("queue", "secrets", "everstep"):
        (stage.folder / f"{name}.py").write_text("raise RuntimeError('the user's own module')")
    done = run(Path(sys.executable).with_name("everstep"), "e", "list", folder=stage.folder, **stage.env)
    assert done.returncode == 0, done.stderr + stage.log
    assert "no experiments" in done.stdout


def test_a_killed_coordinator_and_a_killed_agent_come_back_and_trials_end(stage: LocalStage) -> None:
    stage.connect()
    experiment = stage.trials.create(1, "--hold")
    (start,) = stage.trials.wait_starts(1)
    os.kill(stage.part("serve"), signal.SIGKILL)
    until(lambda: stage.connect() == stage.url)
    assert not are_gone([start["pid"]]), "the trial does not need the coordinator to go on"
    os.kill(stage.part("join"), signal.SIGKILL)
    stage.trials.wait_starts(2)
    stage.trials.let_go()
    assert stage.trials.wait_state(experiment, "COMPLETED", "ERROR").state == "COMPLETED"
    assert stage.trials.trials(experiment)[0].num_restarts == 0


def test_after_kill_9_of_everything_the_next_command_continues(stage: LocalStage) -> None:
    url = stage.connect()
    experiment = stage.trials.create(1, "--hold")
    (start,) = stage.trials.wait_starts(1)
    parts = [stage.part("serve"), stage.part("join"), start["pid"]]
    os.kill(stage.pid, signal.SIGKILL)
    until(lambda: are_gone(parts), lambda: "a part outlives the service")
    until(lambda: not stage.is_running)
    stage.trials.let_go()
    logs = [stage.files.log, stage.files.agent_log, stage.files.coordinator.log]
    for log in logs:
        os.truncate(log, private_file.MOST_LOG_BYTES + 1)
    assert stage.connect() == url, "at the same address"
    for log in logs:
        until(lambda log=log: log.with_name(f"{log.name}.old").exists() and log.exists())
        assert log.stat().st_size < private_file.MOST_LOG_BYTES
    assert stage.trials.wait_state(experiment, "COMPLETED", "ERROR").state == "COMPLETED"
    assert len(stage.trials.starts) == 2


@pytest.mark.parametrize("stage", [1.0], indirect=True)
def test_it_ends_by_itself_when_no_experiment_is_active_and_no_command_uses_it(stage: LocalStage) -> None:
    with stage.in_use():
        stage.connect()
        experiment = stage.trials.create(1, "--hold")
        stage.trials.wait_starts(1)
    parts = [stage.part("serve"), stage.part("join"), stage.pid]
    looked_at = len(stage.log)
    until(lambda: stage.trials.view(experiment).num_slots == 1)
    assert stage.is_running and stage.log[looked_at:] == "", "an active experiment keeps it"
    stage.trials.let_go()
    until(lambda: not stage.is_running, lambda: stage.log)
    until(lambda: are_gone(parts))


@pytest.mark.parametrize("stage", [1.0], indirect=True)
def test_a_command_that_waits_for_slots_says_why_there_are_none(stage: LocalStage) -> None:
    private_file.make_folder(stage.files.agent)
    (stage.files.agent / "trials").write_text("no folder can be made here")
    (stage.folder / "exp.yaml").write_text(FILE)
    stage.trials.code()
    words = (*EVERSTEP, "e", "create", "exp.yaml", "code")
    with Command(*words, folder=stage.folder, **stage.env) as command:
        command.wait_said(r"waiting for slots: .* could not start 3 trials in a row, .*Errno.*trials")
        (stage.files.agent / "trials").unlink()
        assert "COMPLETED" in command.finish()
