"""`everstep e create --platform local`: nodes for one experiment, made with the demand, and gone with it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.pool.local_service import LocalFiles, ServiceState
from everstep.process import process_state, wait_for_end
from lab.command import everstep, until
from lab.platform_pool import PlatformPool, lose_a_node_and_finish


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[PlatformPool]:
    made = PlatformPool(tmp_path, "local", ("--nodes", "2"), EVERSTEP_NURSERY="off")
    made.write_file()
    yield made
    made.shell.type("pool", "stop")
    assert not pids(made)


def pids(pool: PlatformPool) -> list[int]:
    """Of its nodes that are alive."""
    found = [int(path.read_text().split()[0]) for path in pool.place.glob("*/nodes/*/*/pid")]
    return [pid for pid in found if process_state(pid) != "ended"]


def test_a_search_has_nodes_of_its_own_until_it_ends(pool: PlatformPool) -> None:
    with pool.command() as command:
        command.until(lambda: len(pool.starts) == 2, "two trials train")
        assert len(pids(pool)) == 2
        agents = json.loads(pool.shell.type("agent", "list", "--pool", pool.pools[0], "--json"))
        assert len(agents) == 2
        pool.let_go()
        said = command.finish()
    assert said.startswith("local: up to 2 nodes for this experiment; slots: 1 per node\n")
    assert "is not used" not in said, "what the file says of machines is for the nodes"
    assert "best: trial" in said and "loss 0 after 10" in said
    pool.wait_released()
    assert not pids(pool)
    forked = pool.shell.type("e", "fork", "1", "--config", "searcher={name: single, metric: loss}")
    assert "experiment 2 COMPLETED" in forked, "a changed fork has the same pool"
    pool.wait_released()
    assert len(pool.pools) == 1


def test_a_killed_node_is_replaced_and_ctrl_c_releases_all(pool: PlatformPool) -> None:
    lose_a_node_and_finish(pool, lambda: os.killpg(pids(pool)[0], signal.SIGKILL))
    assert not pids(pool)


def test_a_canceled_experiment_leaves_no_node(pool: PlatformPool) -> None:
    with pool.command() as command:
        command.until(lambda: len(pool.starts) == 2, "two trials train")
        pool.shell.type("e", "cancel", "1")
        command.finish(is_good=False)
    pool.wait_released()
    assert not pids(pool)


def test_nodes_that_a_killed_service_has_left_are_found_again(pool: PlatformPool) -> None:
    with pool.command() as command:
        command.until(lambda: len(pool.starts) == 2, "two trials train")
        nodes = pids(pool)
        state = ServiceState.read(LocalFiles(folder=pool.folder / "home/local"))
        assert state is not None
        command.process.kill()
        os.kill(state.pid, signal.SIGKILL)
        wait_for_end(state.pid, 60.0)
    assert pids(pool) == nodes, "they outlive it"
    pool.let_go()
    with pool.command() as command:
        assert "Continuing experiment 1" in command.finish()
    assert [each[:2] for each in pool.results()] == [("COMPLETED", 0)] * 3
    assert sorted(each["trial"] for each in pool.starts) == [1, 2, 3], "none was started twice"
    pool.wait_released()


def test_the_end_of_the_service_releases_nodes_and_the_next_one_makes_new_ones(pool: PlatformPool) -> None:
    with pool.command() as command:
        command.until(lambda: len(pool.starts) == 2, "two trials train")
        command.process.kill()
    pool.shell.type("pool", "stop")
    assert not pids(pool)
    pool.let_go()
    assert "experiment 1 COMPLETED" in pool.shell.type("e", "activate", "1")
    until(lambda: pool.are_released, pool.story)
    assert [each[:2] for each in pool.results()] == [("COMPLETED", 0)] * 3


@pytest.mark.parametrize(
    ("words", "file", "told"),
    [
        (
            ("--platform", "pbs"),
            {},
            "--platform pbs: cannot create nodes for an experiment\n  HINT: one of local, kub",
        ),
        (("--platform", "local", "--local"), {}, "--platform creates a pool at its own coordinator"),
        (
            ("--platform", "local", "--coordinator", "http://x"),
            {},
            "--platform creates a pool at its own coordinator",
        ),
        (("--nodes", "2"), {}, "it needs --platform"),
        (
            ("--platform", "local"),
            {"resources": {"pool": "gpus"}},
            "resources.pool is gpus, but --platform local creates",
        ),
        (("--platform", "local", "--nodes", "2"), {"workers_per_node": None}, "workers_per_node: N in the file"),
        (("--platform", "kubernetes"), {}, "image is missing: a pod has no other Python"),
        (("--platform", "slurm"), {}, "reach this machine: scontrol not found"),
    ],
)
def test_mistakes_are_found_before_anything_starts(
    tmp_path: Path, words: tuple[str, ...], file: dict[str, object], told: str
) -> None:
    pool = PlatformPool(tmp_path, "local")
    pool.write_file(**file)
    env = {"EVERSTEP_HOME": str(tmp_path / "home"), "PATH": str(tmp_path)}
    done = everstep("e", "create", "exp.yaml", "code", *words, folder=tmp_path, **env)
    assert (done.returncode, told in " ".join(done.stderr.split("\n")) or told in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "home").exists()
