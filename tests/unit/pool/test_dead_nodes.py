"""What is taken for a proof that no process of a node is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.coordinator.pool.agents import KnownAgent
from everstep.coordinator.pool.dead_nodes import DeadNodes, decide_death
from everstep.pool.left_processes import are_processes_left
from everstep.pool.node_folders import MadeNode, NodeFolders
from everstep.pool.slurm_nodes import is_in_touch
from everstep.process import started_at

USES = {
    "works there": "import os, sys; os.chdir(sys.argv[1])",
    "maps a file": "import mmap, sys; file = open(sys.argv[1] + '/board', 'w+b'); file.truncate(64);"
    "memory = mmap.mmap(file.fileno(), 64)",
}


def agent(called_at: float = 100.0, *, is_heard: bool = False, hung_up_at: float | None = None) -> KnownAgent:
    return KnownAgent("default", "a", is_heard=is_heard, called_at=called_at, hung_up_at=hung_up_at)


def test_a_node_is_dead_if_its_agent_is_silent_and_its_platform_says_so() -> None:
    assert decide_death(agent(), told_at=101.0).is_certain
    assert decide_death(agent(is_heard=True, hung_up_at=100.5), told_at=101.0).is_certain
    assert not decide_death(agent(is_heard=True), told_at=101.0).is_certain, "its connection is open"
    assert not decide_death(agent(called_at=101.5), told_at=101.0).is_certain, "another node has its name"


def test_the_first_word_of_the_platform_counts_and_only_as_long_as_it_says_so() -> None:
    dead, agents = DeadNodes(), {("default", "a"): agent(called_at=105.0)}
    dead.note("default", ["a"], 101.0)
    dead.note("default", ["a"], 110.0)
    assert dead.find(agents) == []
    dead.note("other", [], 111.0)
    dead.note("default", [], 112.0)
    dead.note("default", ["a"], 113.0)
    assert [each.agent for each, _ in dead.find(agents)] == ["a"]


@pytest.mark.parametrize("use", USES)
def test_a_process_that_uses_the_folders_of_a_nodes_trials_is_left(use: str, tmp_path: Path) -> None:
    since = int(started_at(os.getpid()))
    assert not are_processes_left(tmp_path, since)
    script = f"{USES[use]}; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        assert are_processes_left(tmp_path, since)
        assert not are_processes_left(tmp_path, int(started_at(process.pid)) + 1), "it began before"
        process.kill()
        process.wait()
    assert not are_processes_left(tmp_path, since)


def test_a_nodes_folder_keeps_that_it_is_dead(tmp_path: Path) -> None:
    folders = NodeFolders(tmp_path)
    folders.make(MadeNode(number=0, name="default-0", made_at=1.0))
    folders.note_end(0, "killed")
    assert list(folders.ended(since=2.0)) == [0]
    folders.note_dead(0)
    assert list(folders.ended(since=2.0)) == []
    (found,) = NodeFolders(tmp_path).nodes(now=3.0)
    assert (found.is_over, found.is_dead, found.reason) == (True, True, "default-0: killed")


def test_a_slurm_node_is_in_touch_if_its_controller_hears_it() -> None:
    assert all(map(is_in_touch, ("idle", "mixed", "allocated", "completing")))
    assert not any(map(is_in_touch, ("down", "down*", "idle*", "unknown", "drained", "powered_down", "")))
