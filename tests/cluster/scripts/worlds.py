"""The same training in fixed worlds of 1 to 5 workers, forked from one process that has imported torch once.

A world of each size does all runs one after the other. Prints a JSON line per run: its settings, and what each rank
ended with."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import product
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch._dynamo  # optimizers import it at their first step: better once, here
import torch.distributed as dist
from torch import nn
from train import batch, build, digest, make_optimizer, optimizer_state

import everstep
from everstep.engine import process_engine
from everstep.engine.fixed_world import Fixed
from everstep.engine.group import Group
from everstep.engine.host_sum import QUICK_S, HostSum
from everstep.engine.step import Engine
from everstep.engine.world import World
from everstep.errors import PermanentError, StateMismatch
from everstep.ipc.progress_page import ProgressPage
from everstep.process import STOPPED, process_state
from everstep.waiting import wait_until
from lab.generations import Generations

SIZES = (3, 0, 5, 1, 2, 4, 1)  # samples of each micro-batch; one is empty


def train_small(micro_batches: int, optimizer_name: str) -> str:
    """train.py's job: the digest of all it trained."""
    model = everstep.DistributedDataParallel(build(hidden=32))
    trainer = everstep.ElasticTrainer(model, micro_batches=micro_batches, seed=7)
    optimizer = trainer.prepare(make_optimizer(optimizer_name, model))
    for micro_batch in trainer.micro_batches(steps=6):
        with trainer.step():
            inputs, targets = batch(micro_batch.step, micro_batch.index)
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    return digest(model.module.state_dict(), optimizer_state(optimizer))


def train_weighted(micro_batches: int, dtype: str) -> list[float]:
    """One step of gradient descent over micro-batches of different sizes: the mean is over samples, not over
    micro-batches."""
    torch.manual_seed(0)
    model = nn.Linear(16, 4).to(getattr(torch, dtype))
    trainer = everstep.ElasticTrainer(model, micro_batches=micro_batches)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=1.0))
    for micro_batch in trainer.micro_batches(steps=1):
        samples = SIZES[micro_batch.index]
        with trainer.step(weight=samples):
            inputs, targets = batch(micro_batch.step, micro_batch.index, samples)
            nn.functional.cross_entropy(model(inputs.to(model.weight.dtype)), targets).backward()
            optimizer.step()
    return model.weight.detach().flatten().tolist()


class Averaging(nn.Module):
    """Puts another tensor into its buffer each time."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(16), nn.Linear(16, 4)
        self.register_buffer("average", torch.zeros(16))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.average = 0.9 * self.average + 0.1 * inputs.mean(dim=0)
        return self.linear(self.norm(inputs))


def train_with_buffers(*weights: float) -> str:
    """Micro-batches without weight in between; the second step has none at all. The digest of model and buffers."""
    torch.manual_seed(0)
    model = Averaging()
    trainer = everstep.ElasticTrainer(model, micro_batches=len(weights))
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    for micro_batch in trainer.micro_batches(steps=3):
        with trainer.step(weight=weights[micro_batch.index] * (micro_batch.step != 1)):
            inputs, targets = batch(micro_batch.step, micro_batch.index)
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    return digest(model.state_dict())


def full_batch(micro_batches: int) -> list[float]:
    """What train_weighted must come to: plain torch on all samples at once."""
    torch.manual_seed(0)
    model = nn.Linear(16, 4).double()
    parts = [batch(0, micro_batch, SIZES[micro_batch]) for micro_batch in range(micro_batches)]
    inputs, targets = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    nn.functional.cross_entropy(model(inputs.double()), targets).backward()
    return (model.weight - model.weight.grad).detach().flatten().tolist()


def exchange_notes(*sizes: int) -> list[int]:
    """What each rank has to say in a step, by the number of its bytes: all hear all of it."""
    model = nn.Linear(1, 1)
    trainer = everstep.ElasticTrainer(model, micro_batches=len(sizes))
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=1.0))
    heard: list[bytes] = []
    rank = int(os.environ["RANK"])
    trainer.hand_over(lambda: bytes([rank]) * sizes[rank], lambda decision: heard.extend(decision.notes))
    for _ in trainer.micro_batches(steps=1):
        with trainer.step():
            model(torch.ones(1)).sum().backward()
            optimizer.step()
    return [len(note) if note == bytes([number]) * len(note) else -1 for number, note in enumerate(heard)]


def lose_a_peer_at_the_end() -> str:
    """Rank 1 dies when the last step is done, before all have said so: what the others are told."""
    model = nn.Linear(1, 1)
    trainer = everstep.ElasticTrainer(model, micro_batches=3)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=1.0))
    if os.environ["RANK"] == "1":
        trainer.hand_over(bytes, lambda decision: os._exit(1))
    try:
        for _ in trainer.micro_batches(steps=1):
            with trainer.step():
                model(torch.ones(1)).sum().backward()
                optimizer.step()
    except PermanentError as error:
        return error.message
    return "nothing"


def come_back_too_late(is_last: bool) -> int:
    """Rank 1 is frozen when all is summed and it has not read the result; rank 0 ends its connections. If this is not
    the last generation, it goes on without rank 1, and writes to that memory again. The steps that each has
    committed."""
    form = Fixed._form

    def form_one_of_several(membership: Fixed) -> Group:
        group = form(membership)
        group.world = replace(group.world, is_fixed=is_last)
        return group

    Fixed._form = form_one_of_several  # type: ignore[method-assign]
    model = nn.Linear(1, 1)
    trainer = everstep.ElasticTrainer(model, micro_batches=2)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=1.0))
    engine, rank, steps = process_engine.current(), os.environ["RANK"], [0]
    take_result = HostSum._take_result

    def freeze_first(reduction: HostSum, *args: Any) -> None:
        if steps[0] == 1:
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # at once: it runs no further
        take_result(reduction, *args)

    def go_on_without(decision: Any) -> None:
        steps[0] += 1
        if rank == "0" and steps[0] == 2:
            group, block = engine.regrouping.group, engine.work.sum._host.block
            assert group is not None and block is not None
            while process_state(group.neighbors[1].pid) != STOPPED:
                time.sleep(0.01)
            group.break_()
            time.sleep(2 * QUICK_S)  # such things take a while
            if not is_last:
                block.bytes.fill_(0xFF)
            os.kill(group.neighbors[1].pid, signal.SIGCONT)

    if rank == "1":
        HostSum._take_result = freeze_first  # type: ignore[method-assign]
    trainer.hand_over(bytes, go_on_without)
    try:
        for _ in trainer.micro_batches(steps=3):
            with trainer.step():
                model(torch.ones(1)).sum().backward()
                optimizer.step()
    except PermanentError:
        pass  # in a fixed world
    return steps[0]


def drift_apart(kind: str) -> str:
    """Rank 1 does something else than rank 0; what each is told."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    trainer = everstep.ElasticTrainer(model, micro_batches=3)
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    try:
        for micro_batch in trainer.micro_batches(steps=4):
            with trainer.step():
                model(torch.ones(1, 2)).sum().backward()
                if kind == "rate" and trainer.rank == 1 and micro_batch.step == 2:
                    optimizer.param_groups[0]["lr"] = 0.2
                optimizer.step()
            if kind == "weights" and trainer.rank == 1 and trainer.num_steps == 4:
                model.bias.data += 1.0
    except StateMismatch as mismatch:
        return mismatch.message
    return "nothing"


def planned(*generations: Sequence[int]) -> Generations:
    """The ranks of each generation, in order; a worker takes part in those that name it."""
    me, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
    worlds = iter(
        World(generation=n, rank=ranks.index(me), size=len(ranks), store_address="127.0.0.1", store_port=port)
        for n, ranks in enumerate(generations, start=1)
        if me in ranks
    )
    membership = Generations(f"w{me}", lambda after: Group.form(next(worlds), "127.0.0.1", "engine"))
    if me == 0:
        membership.store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    return membership


def in_planned_world(
    micro_batches: int, *generations: Sequence[int]
) -> tuple[Engine, everstep.ElasticTrainer, nn.Module]:
    torch.manual_seed(0)
    engine, model = Engine(lambda board, closed: planned(*generations), ProgressPage()), nn.Linear(2, 1)
    return engine, everstep.ElasticTrainer(model, micro_batches=micro_batches, engine=engine), model


def has_sent() -> bool:
    return all(thread.name != "everstep-send-state" for thread in threading.enumerate())


def come_back_into_the_same_step() -> list[Any]:
    """Rank 1 waits in backward with its micro-batch; rank 0 goes through a generation without it, and both meet again
    before the step is done: rank 1 gets the state, and the micro-batch once more. What rank 1 computed, and the
    weights."""
    engine, trainer, model = in_planned_world(2, (0, 1), (0,), (0, 1))
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    computed: list[list[int]] = []
    rank = os.environ["RANK"]
    for micro_batch in trainer.micro_batches(steps=2):
        if engine.world.generation == 2:
            engine.regrouping.membership.report_broken(2, "rank 1 is back")
            continue
        with trainer.step():
            computed += [] if micro_batch.is_ghost else [[micro_batch.step, micro_batch.index]]
            if rank == "0" and engine.world.generation == 1:
                wait_until(has_sent, 10.0, "rank 1 has its state")
                engine.regrouping.membership.report_broken(1, "rank 1 is cut off")
            model(torch.full((1, 2), 1.0 + micro_batch.step + micro_batch.index)).sum().backward()
            optimizer.step()
    engine.close()
    return [computed, model.weight.tolist()]


def fail_after_the_commit(*victims: int) -> list[Any]:
    """The body of these ranks fails once, between optimizer.step() and scheduler.step(), and the script goes on."""
    size = int(os.environ["WORLD_SIZE"])
    engine, trainer, model = in_planned_world(2, *[range(size)] * 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    trainer.prepare(optimizer, scheduler)
    victims = tuple(victims) if size > 1 else ()
    for micro_batch in trainer.micro_batches(steps=5):
        with suppress(ValueError), trainer.step():
            model(torch.full((1, 2), 1.0 + micro_batch.step + micro_batch.index)).sum().backward()
            optimizer.step()
            if int(os.environ["RANK"]) in victims and micro_batch.step == 2 and trainer.is_last_micro_batch:
                victims = ()
                raise ValueError("the disk with the logs is full")
            scheduler.step()
    engine.close()
    return [optimizer.param_groups[0]["lr"], model.weight.tolist()]


Job = tuple[Callable[..., Any], tuple[Any, ...]]  # what to run, and its settings


def worker(rank: int, size: int, ports: list[int], jobs: Sequence[Job], out: Connection) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1")
    for port, (run, settings) in zip(ports, jobs, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        out.send(run(*settings))
        process_engine.close()


def in_world(size: int, *jobs: Job) -> list[list[Any]]:
    """For each job, one after the other, what each rank of a world of this size returns; None: it died."""
    with ExitStack() as stack:
        ports = [reserve_port(stack) for _ in jobs]
        fork = multiprocessing.get_context("fork")
        pipes = [fork.Pipe(duplex=False) for _ in range(size)]
        ranks = [fork.Process(target=worker, args=(rank, size, ports, jobs, pipes[rank][1])) for rank in range(size)]
        for each in ranks:
            each.start()
        for _, end in pipes:
            end.close()
        told = [[_receive(pipe) for pipe, _ in pipes] for _ in jobs]
        for each in ranks:
            each.join(60)
            each.kill()
    return told


def _receive(pipe: Connection) -> Any:
    try:
        return pipe.recv() if pipe.poll(60) else None
    except EOFError:  # it has died
        return None


def reserve_port(stack: ExitStack) -> int:
    """One at which rank 0 will listen: until then nobody else is given it."""
    holder = stack.enter_context(socket.socket())
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return int(holder.getsockname()[1])


def main() -> None:
    torch.set_num_threads(1)
    notes = (10, 20_000, 300_000)
    (ends,) = in_world(3, (exchange_notes, notes))
    print(json.dumps({"run": "notes", "sizes": notes, "ends": ends}), flush=True)
    (ends,) = in_world(3, (lose_a_peer_at_the_end, ()))
    print(json.dumps({"run": "a lost peer", "ends": ends}), flush=True)
    for is_last in (False, True):
        (ends,) = in_world(2, (come_back_too_late, (is_last,)))
        print(json.dumps({"run": "too late", "is_last": is_last, "ends": ends}), flush=True)
    for kind, ends in zip(
        ("rate", "weights"), in_world(2, (drift_apart, ("rate",)), (drift_apart, ("weights",))), strict=True
    ):
        print(json.dumps({"run": f"other {kind}", "ends": ends}), flush=True)
    (ends,) = in_world(2, (come_back_into_the_same_step, ()))
    print(json.dumps({"run": "the same step", "ends": ends}), flush=True)
    for victims in ((1,), (0,), (0, 1)):
        print(json.dumps({"run": "after the commit", "victims": victims, "ends": [
            *in_world(1, (fail_after_the_commit, victims))[0], *in_world(2, (fail_after_the_commit, victims))[0],
        ]}), flush=True)  # fmt: skip
    for size in (1, 2, 3, 5):
        (ends,) = in_world(size, (train_with_buffers, (0.0, 0.0, 3.0, 1.0, 0.0)))
        print(json.dumps({"run": "buffers", "size": size, "ends": ends}), flush=True)
    small = list(product((5, 6, 7), ("sgd", "adam")))
    weighted = list(product((5, 7), ("float32", "float64")))
    for size in range(1, 6):
        ends = in_world(size, *((train_small, each) for each in small), *((train_weighted, each) for each in weighted))
        for (micro_batches, optimizer), found in zip(small, ends, strict=False):
            print(
                json.dumps({"run": f"{micro_batches} micro-batches, {optimizer}", "size": size, "ends": found}),
                flush=True,
            )
        for (micro_batches, dtype), found in zip(weighted, ends[len(small) :], strict=True):
            told = {
                "run": f"{micro_batches} weighted micro-batches, {dtype}",
                "size": size,
                "full_batch": full_batch(micro_batches),
            }
            print(json.dumps(told | {"ends": found}), flush=True)


if __name__ == "__main__":
    main()
