"""What a worker is started with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from everstep import env
from everstep.errors import UsageError
from everstep.launcher.machine import count_cpus, count_gpus, gpu_names
from everstep.launcher.node import NodeSpec, WorkerRanks, worker_command, worker_environment
from everstep.launcher.node_saver import NodeSaver
from everstep.wire import AttemptOrder

NODE = NodeSpec(
    job="j",
    coordinator_url="http://c:1",
    token_file=Path("/t"),
    command=("true",),
    num_workers=2,
    directory=Path("/d"),
    agent="a",
    address="10.0.0.1",
)
ORDER = AttemptOrder(
    number=2, workers=["w4", "w5"], first_rank=2, size=4, node_rank=1, num_nodes=2, master_address="10.0.0.9",
    master_port=4567, num_restarts=3, max_restarts=5, max_workers=8,
)  # fmt: skip
PLACE = WorkerRanks.of(ORDER, 1)


def test_workers_get_torchruns_names_and_ours() -> None:
    given = worker_environment(NODE, PLACE, {"HOME": "/h", "EVERSTEP_TOKEN": "secret"})
    assert (
        given.items()
        >= {
            "HOME": "/h",
            "RANK": "3",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "4",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "1",
            "GROUP_WORLD_SIZE": "2",
            "MASTER_ADDR": "10.0.0.9",
            "MASTER_PORT": "4567",
            "TORCHELASTIC_RESTART_COUNT": "3",
            "OMP_NUM_THREADS": "1",
            "EVERSTEP_WORKER": "w5",
            "EVERSTEP_TOKEN_FILE": "/t",
            "EVERSTEP_EVENTS": "/d/events.jsonl",
            "EVERSTEP_BOARD": "/d/w5/board",
            "TORCHELASTIC_ERROR_FILE": "/d/w5/error.json",
            "TORCHELASTIC_RUN_ID": "j",
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
            "ROLE_NAME": "default",
        }.items()
    )
    assert "EVERSTEP_TOKEN" not in given
    assert "EVERSTEP_ADDRESS" not in given


def test_what_the_user_set_is_kept() -> None:
    given = worker_environment(NODE, PLACE, {"OMP_NUM_THREADS": "4", "EVERSTEP_EVENTS": "/e"})
    assert given["OMP_NUM_THREADS"] == "4"
    assert given["EVERSTEP_EVENTS"] == "/e"
    assert (
        worker_environment(NODE, PLACE, {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"})["TORCH_NCCL_ASYNC_ERROR_HANDLING"]
        == "3"
    )


def test_a_virtual_local_rank_sees_one_gpu() -> None:
    node = replace(NODE, is_local_rank_virtual=True)
    assert worker_environment(node, PLACE, {})["CUDA_VISIBLE_DEVICES"] == "1"
    given = worker_environment(node, PLACE, {"CUDA_VISIBLE_DEVICES": "4, 7"})
    assert (given["LOCAL_RANK"], given["RANK"], given["CUDA_VISIBLE_DEVICES"]) == ("0", "3", "7")
    with pytest.raises(UsageError, match="no device for local rank 1"):
        worker_environment(node, PLACE, {"CUDA_VISIBLE_DEVICES": "4"})


def test_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_EXEC", "/opt/python")
    assert worker_command("train.py", [])[0] == "/opt/python"
    with pytest.raises(UsageError, match="exclude each other"):
        worker_command("x", [], is_module=True, is_program=True)
    assert worker_command("train.py", ["-x"])[1:] == ["-u", "train.py", "-x"]
    assert worker_command("pkg.train", [], is_module=True)[1:] == ["-u", "-m", "pkg.train"]
    assert worker_command("bash", ["-c", "true"], is_program=True) == ["bash", "-c", "true"]


def test_gpus_are_counted_as_far_as_they_may_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert count_gpus(tmp_path) == 3
    for visible, number in {"0,2": 2, "": 0, "-1": 0, "0,1,2,3": 3}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert count_gpus(tmp_path) == number
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", " GPU-a, GPU-b")
    assert gpu_names(tmp_path) == ["GPU-a", "GPU-b"]
    assert count_cpus() >= 1


@pytest.mark.parametrize("is_for_buckets", [True, False])
def test_a_worker_finds_the_savers_that_may_write_for_it(is_for_buckets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node's saver lacks the trial's own variables: then a bucket is written by the saver of its agent."""
    shared = NodeSaver(path=Path("/p/node.saver"), owner="e1-t2", is_for_buckets=is_for_buckets)
    outer = {"EVERSTEP_NODE_SAVER": "/another", "EVERSTEP_SAVER": "/another", "EVERSTEP_NODE_DATA": "/another"}
    own = None if is_for_buckets else Path("/d/a.saver")
    given = worker_environment(replace(NODE, node_saver=shared), PLACE, outer, saver=own)
    assert given["EVERSTEP_SAVER_OWNER"] == "e1-t2" and "EVERSTEP_NODE_DATA" not in given
    for name in ("EVERSTEP_SAVER", "EVERSTEP_NODE_SAVER"):
        monkeypatch.delenv(name, raising=False)
        if name in given:
            monkeypatch.setenv(name, given[name])
    assert env.saver(is_for_bucket=False) == shared.path
    assert env.saver(is_for_bucket=True) == (shared.path if is_for_buckets else own)
