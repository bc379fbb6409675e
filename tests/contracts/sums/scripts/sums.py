"""Stories of one step's sum, over the host and from device to device (with gloo in place of NCCL)."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from everstep import env
from everstep.engine import buckets, communicator, shared_memory, sockets
from everstep.engine.backend import Backend
from everstep.engine.buckets import lay_out, sum_dtype
from everstep.engine.device_link import DeviceLink
from everstep.engine.group import Group
from everstep.engine.level_sum import LevelSum
from everstep.engine.link_trial import try_link
from everstep.engine.module_buffers import ModuleBuffers
from everstep.engine.plan import Plan, plan_step
from everstep.engine.pulse import STEPS, Header, Pulse
from everstep.engine.reduction import Reduction
from everstep.engine.step_sum import Sum, Summed
from everstep.engine.swap import Swap
from everstep.errors import PeerLost
from lab.ranks import Rank, serve

WEIGHTS = (0.0, 3.0, 1.0, 0.0, 2.0, 5.0, 0.5)  # of the leaves: 11.5 in all, not a power of two
NUM_LEAVES = len(WEIGHTS)
CPU = torch.device("cpu")
SHAPES: tuple[tuple[torch.dtype, tuple[int, ...]], ...] = (
    (torch.float32, (37, 3)),
    (torch.float32, (40,)),
    (torch.float64, (3,)),
    (torch.bfloat16, (130,)),
    (torch.float16, (5, 7)),
    (torch.complex64, (9,)),
    (torch.float32, (4, 3, 2, 2)),
    (torch.bfloat16, (2,)),
    (torch.complex64, (1,)),
    (torch.float64, (1,)),
)  # in buckets of less than a kilobyte: several runs, and one of several buckets


class Mixed(nn.Module):
    def __init__(self, shapes: Sequence[tuple[torch.dtype, tuple[int, ...]]] = SHAPES) -> None:
        super().__init__()
        self.parts = nn.ParameterList(torch.zeros(shape, dtype=dtype) for dtype, shape in shapes)
        self.register_buffer("average", torch.zeros(5))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))


def gradients(parameters: Sequence[nn.Parameter], leaf: int) -> list[Tensor]:
    """Small and large numbers, so that another order of additions gives other bits."""
    random = torch.Generator().manual_seed(leaf)
    found = []
    for parameter in parameters:
        wide = torch.complex128 if parameter.is_complex() else torch.float64
        numbers = torch.randn(parameter.shape, generator=random, dtype=wide)
        sizes = torch.randint(-3, 3, parameter.shape, generator=random)
        found.append((numbers * 10.0**sizes).to(sum_dtype(parameter.dtype)))
    return found


def expected(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """The mean, added by one worker in the order of the tree."""

    def added(first: int, number: int) -> list[Tensor]:
        if number == 1:
            return gradients(parameters, first)
        left = added(first, number // 2)
        if first + number // 2 >= NUM_LEAVES:
            return left
        return [one + other for one, other in zip(left, added(first + number // 2, number // 2), strict=True)]

    return [_divided(total, sum(WEIGHTS)) for total in added(0, 8)]


def _divided(total: Tensor, weight: float) -> Tensor:
    wide = total.float() if total.dtype == torch.bfloat16 else total
    return (wide / torch.tensor(weight, dtype=wide.dtype)).to(total.dtype)


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def digest(tensors: Sequence[Tensor]) -> str:
    raws = [each.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for each in tensors]
    return hashlib.sha256(b"".join(raws)).hexdigest()[:16]


class Worker:
    """What one rank contributes to sums: its model, and the sum's memory."""

    def __init__(self, rank: Rank, *, is_exact: bool, model: Mixed | None = None, bucket_bytes: int = 400) -> None:
        self.rank, self.is_exact = rank, is_exact
        self.model = model or Mixed()
        self.parameters = list(self.model.parameters())
        self.layout = lay_out(self.parameters, bucket_bytes)
        self.sum = Sum(self.parameters, self.layout, num_leaves=NUM_LEAVES, is_exact=is_exact)
        self.buffers = ModuleBuffers([self.model])

    def compute(self, leaves: Sequence[int]) -> None:
        fold = self.sum.fold
        for leaf in leaves:
            target = fold.begin(leaf)
            for view, value in zip(target.flats.views, gradients(self.parameters, leaf), strict=True):
                view.add_(value) if target.is_sum else view.copy_(value)
            for first, second in target.carries:
                for one, other in zip(first.buffers, second.buffers, strict=True):
                    one.add_(other)
            if WEIGHTS[leaf]:
                self.model.average.fill_(leaf)
                self.model.count.fill_(10 * leaf)
                self.buffers.keep(leaf, fold.held)
            fold.done(target)

    def launch(self, group: Group, plan: Plan) -> None:
        mine = plan.micro_batches(group.world.rank)
        weights = tuple(weight if leaf in mine else -1.0 for leaf, weight in enumerate(WEIGHTS))
        header = Header(generation=group.world.generation, step=0, kind=STEPS, weights=weights)
        self.sum.launch(group, plan, None, header, self.buffers)

    def finish(self, group: Group) -> Summed:
        used = bytes(len(self.parameters))
        pulse = Pulse(generation=group.world.generation, step=0, wants_regroup=False, is_leaving=False, used=used)
        return self.sum.finish(pulse, is_closed=False)

    def forget(self) -> None:
        self.sum.forget()
        self.sum.fold.clear()
        self.buffers.commit()

    @property
    def brought(self) -> str:
        return digest([part for flats in self.sum.fold.sums(0, None).values() for part in flats.buffers])

    def told(self, summed: Summed) -> dict[str, Any]:
        """For the test."""
        means = summed.means.views
        self.buffers.adopt(summed.buffers)
        return {
            "bits": digest(means),
            "numbers": [_real(mean).double().flatten().tolist() for mean in means],
            "total": summed.total,
            "buffers": [self.model.average.tolist(), int(self.model.count)],
        }


# --- the contract -------------------------------------------------------------------------------------------


def plans(size: int) -> dict[str, Plan]:
    def dealt(owner: Callable[[int], int]) -> Plan:
        held = tuple(tuple(leaf for leaf in range(NUM_LEAVES) if owner(leaf) == rank) for rank in range(size))
        return Plan(held=held, todo=((),) * size)

    return {
        "in runs": plan_step(num_micro_batches=NUM_LEAVES, size=size),
        "scattered": dealt(lambda leaf: 3 * leaf % size),
        "the first brings nothing": dealt(lambda leaf: max(leaf % size, min(1, size - 1))),
        "the last brings all": dealt(lambda leaf: size - 1),
    }


def linked(group: Group, *, is_exact: bool) -> Group:
    group.take_link(DeviceLink(group, Backend.STAND_IN, CPU, is_exact=is_exact))
    return group


def ways(rank: Rank, *, is_exact: bool, first: int) -> Iterator[tuple[str, Group]]:
    yield "neighbors", rank.form(first)
    yield "gloo", rank.form(first + 1, has_neighbors=False)
    with on_node(rank.number // 2):
        group = rank.form(first + 2)
        assert (group.levels is not None) == (rank.size > 2)
        yield "levels in rows", group
    with on_node(rank.number % 2):
        group = rank.form(first + 3)
        assert (group.levels is not None) == (rank.size > 2)
        yield "levels crosswise", group
    yield "device", linked(rank.form(first + 4), is_exact=is_exact)


@contextmanager
def on_node(number: int) -> Iterator[None]:
    """Pretend that this rank is on that node: it has no neighbors elsewhere."""
    machine = shared_memory.machine
    shared_memory.machine = lambda: f"node {number}"
    try:
        yield
    finally:
        shared_memory.machine = machine


def sum_every_way(rank: Rank) -> dict[str, Any]:
    buckets.RUN_BYTES = 900
    model = Mixed()
    told: dict[str, Any] = {}
    for is_exact in (True, False):
        for way, group in ways(rank, is_exact=is_exact, first=1 if is_exact else 11):
            worker = Worker(rank, is_exact=is_exact, model=model)
            for name, plan in plans(rank.size).items():
                worker.compute(plan.micro_batches(rank.number))
                before = worker.brought
                worker.launch(group, plan)
                summed = worker.finish(group)
                said = {"mode": "exact" if is_exact else "fast", "way": way, "plan": name}
                told[" ".join(said.values())] = worker.told(summed) | said | {"is_unchanged": before == worker.brought}
                worker.forget()
            worker.sum.close()
            rank.close(group)
    layout = worker.layout
    return {
        "sums": told,
        "expected": digest(expected(worker.parameters)),
        "numbers": [_real(mean).double().flatten().tolist() for mean in expected(worker.parameters)],
        "buckets_by_run": [len(run.buckets) for run in layout.runs],
        "smallest_bucket": min(bucket.numel for bucket in layout.buckets),
    }


# --- deaths -------------------------------------------------------------------------------------------------

FEW = ((torch.float32, (50,)), (torch.bfloat16, (20,)))


def die(how: str) -> None:
    os.kill(os.getpid(), getattr(signal, how))
    signal.pause()  # the signal comes at once, or a moment later


def arm(at: str, how: str) -> None:
    """End this process at the nth operation from device to device, or at another place in a generation."""
    exchange, hold, post_pulse = communicator.StandIn.exchange, sockets.hold, Reduction._post_pulse
    number = at.split()[-1]
    num_left = [int(number) if number.isdigit() else 0]

    def die_there(self: Any, sends: communicator.Pieces, recvs: communicator.Pieces) -> communicator.QueuedWork:
        num_left[0] -= 1
        if num_left[0] == 0:
            if at.startswith("amid") and sends:  # one peer gets its part
                tensor, peer = next(piece for piece in sends if piece[0].numel())
                self._group.send(tensor, peer, communicator.TAG_BUCKETS + self._num_operations).wait()
            die(how)
        return exchange(self, sends, recvs)

    communicator.StandIn.exchange = die_there  # type: ignore[method-assign]
    if at == "before connecting":
        communicator.StandIn.__init__ = lambda *args: die(how)  # type: ignore[assignment]
    if at == "while connecting":
        sockets.hold = lambda own, peers: die(how) if own is not None else hold(own, peers)  # type: ignore[assignment]
    if at == "before the pulse":
        Reduction._post_pulse = lambda self: die(how) or post_pulse(self)  # type: ignore[method-assign]


def lose_one(rank: Rank, at: str, how: str, *, is_exact: bool, victim: int = 1) -> dict[str, Any]:
    """Three ranks connect, try the link, and sum; one is lost meanwhile, and the others sum again without it."""
    worker = Worker(rank, is_exact=is_exact, model=Mixed(FEW))
    plan, everyone = plan_step(num_micro_batches=NUM_LEAVES, size=3), (0, 1, 2)
    worker.compute(plan.micro_batches(rank.number))
    before = worker.brought
    group = rank.form(1)
    rank.when_lost(everyone, lambda: worker.sum.abort(1))
    if rank.number == victim:
        arm(at, how)
    try:
        linked(group, is_exact=is_exact)
        assert group.link is not None
        problem = try_link(group.link, group, f"w{rank.number}")
        assert not problem, problem
        worker.launch(group, plan)
        worker.finish(group)
    except PeerLost as lost:
        after_s, code = time.monotonic() - rank.lost_at if rank.lost_at else 0.0, lost.code
    else:
        return {"code": "committed"}
    rank.await_closed()
    worker.sum.drop()
    told = {"code": code, "after_s": after_s, "is_unchanged": before == worker.brought}
    group.close()
    left = tuple(number for number in everyone if number != victim)
    plan = plan_step(num_micro_batches=NUM_LEAVES, size=2, held=[plan.micro_batches(number) for number in left])
    worker.compute(plan.todo[left.index(rank.number)])
    group = linked(rank.form(2, left), is_exact=is_exact)
    worker.launch(group, plan)
    told |= worker.told(worker.finish(group)) | {"expected": digest(expected(worker.parameters))}
    return told


def lose_one_of_a_node(rank: Rank, at: str, how: str, victim: int) -> dict[str, Any]:
    """Two nodes of two ranks sum in levels; one rank is lost meanwhile, and the others sum again without it. Once its
    pulse is out, some already have the result, and the others would get it from them."""
    worker, everyone = Worker(rank, is_exact=True, model=Mixed(FEW)), (0, 1, 2, 3)
    plan = plan_step(num_micro_batches=NUM_LEAVES, size=4)
    worker.compute(plan.micro_batches(rank.number))
    before = worker.brought
    with on_node(rank.number // 2):
        group = rank.form(1)
        rank.when_lost(everyone, lambda: worker.sum.abort(1))
        if rank.number == victim:
            setattr(Swap if at == "_pass_on" else LevelSum, at, lambda *_: die(how))
        told: dict[str, Any] = {"after_s": 0.0, "expected": digest(expected(worker.parameters))}
        try:
            worker.launch(group, plan)
            summed = worker.finish(group)
            assert at == "collect"
        except PeerLost:
            told["after_s"] = time.monotonic() - rank.lost_at if rank.lost_at else 0.0
            summed = None
        rank.await_closed()
        told["is_unchanged"] = before == worker.brought
        if summed is not None:
            return told | worker.told(summed)
        worker.sum.drop()
        group.close()
        if at == "collect":
            return told | {"bits": told["expected"]}
        left = tuple(number for number in everyone if number != victim)
        plan = plan_step(num_micro_batches=NUM_LEAVES, size=3, held=[plan.micro_batches(number) for number in left])
        worker.compute(plan.todo[left.index(rank.number)])
        group = rank.form(2, left)
        assert group.levels is not None
        worker.launch(group, plan)
        told |= worker.told(worker.finish(group))
        group.gather(b"done")  # neighbors have read the results here
        return told


def form_with_levels_off(rank: Rank, off: Sequence[int]) -> bool:
    """Whether this rank has levels. Two nodes of two; `off`: the ranks that do not want levels."""
    os.environ[env.LEVELS] = "0" if rank.number in off else "1"
    with on_node(rank.number // 2):
        group = rank.form(1)
    has_levels = group.levels is not None
    rank.close(group)
    return has_levels


def swap_long_messages(rank: Rank, is_level: bool, num_bytes: int) -> bool:
    """Two nodes of two: messages that no socket between neighbors can hold."""
    os.environ[env.LEVELS] = "1" if is_level else "0"
    with on_node(rank.number // 2):
        group = rank.form(1)
    assert (group.levels is not None) == is_level
    is_right = True
    for turn in range(5):
        said = group.swap(bytes([rank.number + turn]) * num_bytes, [num_bytes] * rank.size, 77)
        is_right &= said == [bytes([each + turn]) * num_bytes for each in range(rank.size)]
    rank.close(group)
    return is_right


def say_something(rank: Rank, nodes: list[list[int]], among: list[int]) -> dict[str, Any]:
    """Two nodes gather long and empty messages, of all members and of some; and what this rank is connected to."""
    with on_node(next(number for number, node in enumerate(nodes) if rank.number in node)):
        group = rank.form(1)
    said = {}
    for name, members in (("all", list(range(rank.size))), ("some", among)):
        for length in (0, 100_000):
            own = bytes([rank.number + 1]) * length * rank.number
            right = [bytes([each + 1]) * length * each for each in members]
            if rank.number in members:
                said[f"{name} {length}"] = group.gather(own, members) == right
    told = {"is_right": all(said.values()), "lines": len(group.neighbors), "connections": len(group._held)}
    rank.close(group)
    return told


STORIES: Mapping[str, Callable[..., Any]] = {
    "every way": sum_every_way,
    "lose one": lose_one,
    "lose one of a node": lose_one_of_a_node,
    "levels off": form_with_levels_off,
    "say something": say_something,
    "swap long messages": swap_long_messages,
}

if __name__ == "__main__":
    serve(STORIES)
