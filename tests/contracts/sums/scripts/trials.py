"""Stories of whole workers that try to sum from device to device; the stand-in plays NCCL's part."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimizers import it at their first step: better once, here
import torch.distributed as dist
from sums import CPU, digest, linked
from torch import Tensor, nn

import everstep
from everstep import env
from everstep.engine import backend_use, background, communicator, device_link, link_trial
from everstep.engine.backend import Backend, BackendChoice, BackendFacts, decide_backend
from everstep.engine.fixed_world import Fixed
from everstep.engine.step import Engine
from everstep.errors import JobStopped, StateMismatch
from everstep.ipc.progress_page import ProgressPage
from lab.command import until
from lab.generations import Generations
from lab.ranks import Rank, serve

MICRO_BATCHES = 5


def as_if_on_gpus(facts: Sequence[BackendFacts]) -> BackendChoice:
    """The real choice of workers that each have a GPU; the stand-in takes NCCL's place."""
    choice = decide_backend([replace(each, device="cuda", gpu=each.worker, nccl="2.28.9") for each in facts])
    return replace(choice, backend=Backend.STAND_IN) if choice.backend is Backend.NCCL else choice


def spoil_one_number(rank: Rank) -> None:
    right = link_trial.sum_over

    def wrong(*args: Any, **settings: Any) -> Tensor:
        total = right(*args, **settings)
        total[7] += rank.number == 1
        return total

    link_trial.sum_over = wrong


def connect_too_late(rank: Rank) -> None:
    link_trial.FORM_S = 0.5
    if rank.number == 1:
        device_link.StandIn = lambda *args: threading.Event().wait(link_trial.FORM_S * 4)  # type: ignore[misc]


def fail_in_each_sum(rank: Rank) -> None:
    """Fail after the operations that connect and that try the link."""
    exchange = communicator.StandIn.exchange

    def fail(self: Any, sends: communicator.Pieces, recvs: communicator.Pieces) -> communicator.QueuedWork:
        if rank.number == 1 and self._num_operations >= (4 if self._group.world.generation == 1 else 2):
            raise RuntimeError("NCCL error: unhandled system error. Last error:\nframes")
        return exchange(self, sends, recvs)

    communicator.StandIn.exchange = fail  # type: ignore[method-assign]


HARMS: Mapping[str, Callable[[Rank], None]] = {
    "": lambda rank: None,
    "one number is wrong": spoil_one_number,
    "not connected in time": connect_too_late,
    "each sum fails": fail_in_each_sum,
}


def train(rank: Rank, *, backend: str = "", harm: str = "") -> dict[str, Any]:
    """`backend`: requested by the environment; "": workers with GPUs, and nothing requested."""
    events = Path(tempfile.mkdtemp()) / "events"
    os.environ[env.EVENTS] = str(events)
    if backend:
        os.environ[env.BACKEND] = backend
    else:
        backend_use.decide_backend = as_if_on_gpus
    HARMS[harm](rank)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    store = dist.TCPStore("127.0.0.1", rank.port, is_master=False)
    engine = Engine(
        lambda board, closed: Generations(f"w{rank.number}", lambda after: rank.form(after + 1), store), ProgressPage()
    )
    trainer = everstep.ElasticTrainer(model, micro_batches=MICRO_BATCHES, engine=engine)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    refusal = ""
    try:
        for micro_batch in trainer.micro_batches(steps=3):
            with trainer.step(weight=1 + micro_batch.index):
                random = torch.Generator().manual_seed(100 * micro_batch.step + micro_batch.index)
                model(torch.randn(4, 8, generator=random)).square().mean().backward()
                optimizer.step()
    except (StateMismatch, JobStopped) as refused:
        refusal = f"{refused.code}: {refused.message}"
    told = [json.loads(line) for line in events.read_text().splitlines()]
    return {
        "digest": digest(list(model.state_dict().values())),
        "steps": trainer.num_steps,
        "refusal": refusal,
        "chosen": [
            [each["generation"], each["backend"], each["reason"]] for each in told if each["event"] == "backend.chosen"
        ],
        "has_link": engine.regrouping.group is not None and engine.regrouping.group.link is not None,
    }


def many_generations(rank: Rank, *, number: int) -> dict[str, Any]:
    """Each generation connects and ends. Returns threads and descriptors after the third one and after the last."""
    found: list[list[int]] = []
    tried: list[str] = []
    link_trial.NUMBERS = 1 << 12  # large messages make gloo spin where others need the processor

    def count() -> list[int]:
        return [len(os.listdir(f"/proc/self/{kind}")) for kind in ("task", "fd")]

    for generation in range(1, number + 1):
        group = linked(rank.form(generation), is_exact=generation % 2 == 0)
        assert group.link is not None and group.link.device == CPU
        tried.append(link_trial.try_link(group.link, group, f"w{rank.number}"))
        link = group.link
        rank.close(group)
        if generation in (3, number):
            until(lambda: link.is_ended, timeout_s=20.0)  # noqa: B023 (called at once)
            del group, link
            background.wait(20.0)
            if generation == number:
                try:
                    until(lambda: all(map(int.__le__, count(), found[0])), timeout_s=5.0)
                except AssertionError:
                    pass  # the test says so
            found.append(count())
    return {"found": found, "problems": [problem for problem in tried if problem]}


def die_in_a_fixed_world(rank: Rank) -> dict[str, Any]:
    """Rank 1 dies while no one sends or waits, as in an NCCL kernel, which never learns of the death."""
    os.environ |= {"RANK": str(rank.number), "WORLD_SIZE": str(rank.size), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(rank.port)}
    group = linked(Fixed(None).next_group(0), is_exact=True)
    link = group.link
    assert link is not None
    problem = link_trial.try_link(link, group, f"w{rank.number}")
    group.gather(b"connected")
    if rank.number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    until(lambda: link.is_ended, timeout_s=20.0)
    is_broken = group.is_broken
    group.close()
    return {"problem": problem, "is_group_broken": is_broken, "error": link.error}


STORIES: Mapping[str, Callable[..., Any]] = {
    "train": train,
    "many generations": many_generations,
    "die in a fixed world": die_in_a_fixed_world,
}

if __name__ == "__main__":
    serve(STORIES)
