"""Nodes of a pool come with the demand and go without it: processes of this machine, made by `everstep serve`."""

from __future__ import annotations

import re
import time
from pathlib import Path

from lab.command import EVERSTEP, run, until
from lab.pool_nodes import PoolFileStage
from lab.processes import are_gone

PLAIN = {"EVERSTEP_NURSERY": "off"}
LOCAL = {"platform": "local", "max_nodes": 2, "slots_per_node": 1, "idle": "1s", "grace": "5s"}


def test_a_pool_grows_with_the_demand_shrinks_to_nothing_and_grows_back(tmp_path: Path) -> None:
    with PoolFileStage(tmp_path, LOCAL, **PLAIN) as stage:
        until(lambda: stage.reason() == "0 nodes; 0 slots wanted", lambda: stage.reason())
        first = stage.trials.create(3)
        assert stage.trials.wait_state(first, "COMPLETED", "ERROR").state == "COMPLETED"
        stage.wait_present()
        until(lambda: not stage.pids())
        assert 1 <= stage.num_made() <= 2
        before = stage.num_made()
        second = stage.trials.create(1)
        assert stage.trials.wait_state(second, "COMPLETED", "ERROR").state == "COMPLETED"
        assert stage.num_made() == before + 1, "its number is a new one"
        stage.wait_present()
        assert all(each.num_restarts == 0 for each in stage.trials.trials(first))


def test_a_killed_node_is_replaced_and_its_trial_has_not_failed(tmp_path: Path) -> None:
    with PoolFileStage(tmp_path, LOCAL, **PLAIN) as stage:
        experiment = stage.trials.create(1, "--hold")
        (start,) = stage.trials.wait_starts(1)
        stage.kill_node("default-0")
        until(lambda: are_gone([start["pid"]]))
        stage.trials.wait_starts(2)
        (held,) = [each.agent for each in stage.trials.pool().agents if any(slot.assignment for slot in each.slots)]
        assert held == "default-1"
        stage.trials.let_go()
        assert stage.trials.wait_state(experiment, "COMPLETED", "ERROR").state == "COMPLETED"
        assert stage.trials.trials(experiment)[0].num_restarts == 0


def test_nodes_survive_the_death_of_serve_and_none_is_made_twice(tmp_path: Path) -> None:
    with PoolFileStage(tmp_path, LOCAL, **PLAIN) as stage:
        experiment = stage.trials.create(2, "--hold")
        starts = stage.trials.wait_starts(2)
        nodes = stage.pids()
        for _ in range(2):
            stage.kill_coordinator()
            stage.start_coordinator()
            until(lambda: stage.told() is not None and "default-0" in stage.present(), lambda: stage.reason())
        stage.trials.let_go()
        assert stage.trials.wait_state(experiment, "COMPLETED", "ERROR").state == "COMPLETED"
        assert stage.trials.starts == starts
        assert (len(nodes), stage.num_made()) == (2, 2)
        stage.wait_present()


def test_a_node_whose_time_ends_is_emptied_before(tmp_path: Path) -> None:
    pool = {**LOCAL, "time_limit": "35s", "grace": "10s"}
    with PoolFileStage(tmp_path, pool, **PLAIN) as stage:
        experiment = stage.trials.create(1, "--hold")
        stage.trials.wait_starts(1)
        stage.trials.wait_starts(2)
        assert (tmp_path / "saved-1").exists(), "it had time to save"
        stage.trials.let_go()
        assert stage.trials.wait_state(experiment, "COMPLETED", "ERROR").state == "COMPLETED"
        assert stage.trials.trials(experiment)[0].num_restarts == 0


def test_nodes_that_end_at_once_are_made_ever_more_slowly_and_the_pool_says_why(tmp_path: Path) -> None:
    with PoolFileStage(tmp_path, {**LOCAL, "max_nodes": 1, "setup": ["echo no module; exit 3"]}, **PLAIN) as stage:
        experiment = stage.trials.create(1)
        told = "the last 3 nodes ended within 60 s: default-2: no module; the next node starts after a pause of 15 s"
        until(lambda: stage.reason() == told, lambda: stage.reason())
        words = ("pool", "list", "--coordinator", stage.url, "--token-file", stage.token_file)
        shown = (
            r"the last \d+ nodes ended within 60 s: default-\d+: no module; the next node starts after a pause of \d+ s"
        )
        # On a busy machine, the command may come only after that pause, and after a further node.
        until(lambda: re.search(shown, " ".join(run(*EVERSTEP, *words, folder=tmp_path).stdout.split())))
        stage.pool = LOCAL  # mended
        stage.coordinator.end()
        stage.start_coordinator()
        assert stage.trials.wait_state(experiment, "COMPLETED", "ERROR").state == "COMPLETED"


def test_a_node_leaves_when_its_coordinator_has_been_away_for_long(tmp_path: Path) -> None:
    with PoolFileStage(tmp_path, {**LOCAL, "min_nodes": 1, "patience": "2s"}, **PLAIN) as stage:
        stage.wait_present("default-0")
        stage.kill_coordinator()
        began = time.monotonic()
        until(lambda: not stage.pids())
        assert time.monotonic() - began >= 1.0


def test_a_pool_file_is_checked_and_its_nodes_are_shown(tmp_path: Path) -> None:
    (tmp_path / "pools.yaml").write_text("pools:\n  gpus:\n    platform: local\n    max_node: 2\n")
    done = run(*EVERSTEP, "pool", "check", "pools.yaml", folder=tmp_path)
    assert done.returncode == 2
    assert "line 4: pools.gpus.max_node is not a key of pools.gpus (did you mean max_nodes?)" in done.stderr
    done = run(*EVERSTEP, "serve", "--pools", "pools.yaml", folder=tmp_path)
    assert (done.returncode, (tmp_path / "everstep.token").exists()) == (2, False)
    (tmp_path / "pools.yaml").write_text("pools: {gpus: {platform: local, max_nodes: 1}}\n")
    done = run(*EVERSTEP, "pool", "check", "pools.yaml", "--show", folder=tmp_path)
    assert done.stdout.startswith(
        "pool gpus: 0 to 1 nodes from local, one slot per GPU (or per CPU without GPUs); released after 10m"
    )
    assert "everstep pool join" in done.stdout


def test_a_node_and_its_trials_see_neither_the_stores_password_nor_a_token(tmp_path: Path) -> None:
    password = "password-of-the-store"
    env = {**PLAIN, "EVERSTEP_STORE": f"postgresql://everstep:{password}@db/everstep"}
    with PoolFileStage(tmp_path, LOCAL, **env) as stage:
        experiment = stage.trials.create(1, "--hold")
        (start,) = stage.trials.wait_starts(1)
        serve = stage.coordinator.process.pid
        assert password in Path(f"/proc/{serve}/environ").read_text(), "the coordinator has it"
        tokens = [each.rpartition(":")[2] for each in stage.token_file.read_text().split()]
        assert len(tokens) > 1
        for pid in (*stage.pids().values(), start["pid"]):
            seen = Path(f"/proc/{pid}/environ").read_text() + Path(f"/proc/{pid}/cmdline").read_text()
            assert "EVERSTEP_" in seen
            assert not [secret for secret in (password, *tokens) if secret in seen]
        stage.trials.let_go()
        assert stage.trials.wait_state(experiment, "COMPLETED", "ERROR").state == "COMPLETED"
