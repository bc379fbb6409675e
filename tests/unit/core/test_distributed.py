"""Who a worker is, and plain data between workers: alone, in torch's group, and in a world that changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep.core.distributed import DistributedContext
from everstep.errors import UsageError
from lab.refused import refused

ROOT = Path(everstep.__file__).parents[1]


class Alone(DistributedContext):
    """Without other workers."""

    rank, size, local_rank, local_size = 0, 1, 0, 1

    def _gather(self, value: Any) -> list[Any]:
        return [value]


def test_one_process_alone_is_the_chief_of_itself() -> None:
    context = Alone()

    assert (context.rank, context.size, context.local_rank, context.local_size) == (0, 1, 0, 1)
    assert (context.cross_rank, context.cross_size, context.get_num_agents()) == (0, 1, 1)
    assert (context.get_rank(), context.get_size(), context.get_local_rank()) == (0, 1, 0)
    assert context.is_chief and context.is_local_chief
    assert context.allgather({"a": [1, 2.5, None, "x", True]}) == [{"a": [1, 2.5, None, "x", True]}]
    assert context.gather(3) == context.gather_local(3) == context.allgather_local(3) == [3]
    assert context.broadcast("x") == context.broadcast_local("x") == "x"


class Changing(DistributedContext):
    """The third of four workers on two nodes, that becomes the second of two on one."""

    rank, size, local_rank, local_size = 2, 4, 0, 2

    def _gather(self, value: Any) -> list[Any]:
        return [value] * self.size


def test_rank_and_size_are_those_of_now() -> None:
    context = Changing(chief_ip="10.0.0.1")
    assert (context.rank, context.size, context.cross_rank, context.cross_size) == (2, 4, 1, 2)
    assert context.gather(1) is None
    assert context.chief_ip == "10.0.0.1"

    context.rank, context.size = 1, 2

    assert (context.rank, context.size, context.cross_rank, context.cross_size) == (1, 2, 0, 1)
    assert "rank 1 of 2" in repr(context)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({1: 2}, r"the value has the key 1, which is not a string"),
        ([{"a": {2, 3}}], r"the value\[0\]\['a'\] is of type set"),
        (b"bytes", "the value is of type bytes"),
        (object, "the value is of type type"),
    ],
)
def test_what_would_not_arrive_as_it_was_sent_is_refused(value: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Alone().allgather(value)


def test_alone_a_tuple_becomes_a_list_too() -> None:
    assert Alone().broadcast((1, (2, 3))) == [1, [2, 3]]


def test_numbers_that_json_has_not_arrive() -> None:
    nan, infinite = Alone().broadcast([float("nan"), float("inf")])
    assert nan != nan and infinite == float("inf")


@pytest.mark.parametrize("name", ["from_horovod", "from_deepspeed", "from_tf_config"])
def test_other_backends_are_an_error_with_a_way_out(name: str) -> None:
    with refused("backend-not-supported", UsageError):
        getattr(DistributedContext, name)("hvd", chief_ip="localhost")


def test_without_torchs_group_the_error_says_how_to_make_one() -> None:
    with refused("no-process-group", UsageError):
        everstep.core.DistributedContext.from_torch_distributed(chief_ip="localhost")


SCRIPT = """
import json, os, sys
import torch.distributed as dist
from everstep import core

dist.init_process_group("gloo")
context = core.DistributedContext.from_torch_distributed(chief_ip="localhost")
rank = context.rank
print(json.dumps({
    "place": [rank, context.size, context.local_rank, context.local_size, context.chief_ip],
    "allgather": context.allgather({"rank": rank, "text": "ä" * rank * 1000}) == [
        {"rank": each, "text": "ä" * each * 1000} for each in range(3)
    ],
    "gather": context.gather(rank),
    "broadcast": context.broadcast(["from", rank]),
    "local": [context.gather_local(rank), context.allgather_local(rank), context.broadcast_local(rank)],
}))
dist.destroy_process_group()
"""


def test_three_processes_of_torchrun_tell_each_other(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    outer = {name: value for name, value in os.environ.items() if not name.startswith("EVERSTEP_")}
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", "--log-dir=logs", "--redirects=1"]
    done = subprocess.run(
        [sys.executable, *command, "script.py"],
        cwd=tmp_path,
        env=outer | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("logs/*/attempt_0/*/stdout.log"))]

    assert [each["place"] for each in told] == [[rank, 3, rank, 3, "localhost"] for rank in range(3)]
    assert all(each["allgather"] for each in told)
    assert [each["gather"] for each in told] == [[0, 1, 2], None, None]
    assert [each["broadcast"] for each in told] == [["from", 0]] * 3
    assert [each["local"] for each in told] == [[[0, 1, 2], [0, 1, 2], 0], [None, [0, 1, 2], 0], [None, [0, 1, 2], 0]]
