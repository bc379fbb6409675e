"""Pools whose nodes are jobs of a real Slurm: they come with the demand, one dies, and all are let go."""

from __future__ import annotations

import json
from pathlib import Path

from lab.command import until
from lab.platform_pool import PlatformPool, lose_a_node_and_finish
from lab.pool_nodes import PoolFileStage
from lab.pool_platform_story import lose_a_node_and_let_go
from lab.slurm.hosts import Lab

HERE = "10.83.0.1"  # as the lab's hosts reach this machine
POOL = {
    "platform": {"slurm": {"partition": "low"}},
    "max_nodes": 3,
    "slots_per_node": 1,
    "idle": "5s",
    "grace": "10s",
    "time_limit": "1h",
    "resources": {"cpu": 4},
}


def test_nodes_are_jobs_of_slurm_that_come_and_go(queue: Lab, tmp_path: Path) -> None:
    with PoolFileStage(tmp_path, POOL, HERE, EVERSTEP_NURSERY="off", **queue.env()) as stage:
        crashed = []

        def crash(node: str) -> None:
            number = node.rpartition("-")[2]
            crashed.append(number)
            hosts = {name.rpartition("-")[2]: host for name, host in _hosts(queue)}
            queue.crash(hosts[number])

        def shown() -> str:
            numbers = queue.ask("squeue", "-h", "-o", "%i").split()
            jobs = [queue.ask("scontrol", "show", "-dd", "job", each) for each in numbers]
            scripts = [queue.ask("scontrol", "write", "batch_script", each, "-") for each in numbers]
            logs = [each.read_text() for each in stage.nodes_folder.glob("*/node.log")]
            return "\n".join([*jobs, *scripts, *logs])

        lose_a_node_and_let_go(stage, crash, shown)
        until(lambda: not queue.jobs(), lambda: str(queue.jobs()))
        dead = {each.parent.name for each in stage.nodes_folder.glob("*/ended.json") if _is_dead(each)}
        assert dead == {each.name for each in stage.nodes_folder.glob("[0-9]*")} - {*crashed}, (
            "only these were seen to end"
        )


def _is_dead(end: Path) -> bool:
    return bool(json.loads(end.read_text())["is_dead"])


def _hosts(queue: Lab) -> list[tuple[str, str]]:
    """Names of the jobs that run, and where."""
    lines = queue.ask("squeue", "-h", "-t", "RUNNING", "-o", "%j %N").splitlines()
    return [(name, host) for name, host in (line.split() for line in lines)]


def test_a_search_for_which_slurm_makes_the_nodes(queue: Lab, tmp_path: Path) -> None:
    pool = PlatformPool(tmp_path, "slurm", ("--nodes", "2"), EVERSTEP_NURSERY="off", **queue.env())
    pool.write_file(platform={"slurm": {"partition": "low"}}, resources={"cpu": 4}, checkpoint={"grace": "10s"})
    try:
        lose_a_node_and_finish(pool, lambda: queue.crash(_hosts(queue)[0][1]))
        assert not queue.jobs()
    finally:
        pool.shell.type("pool", "stop")
