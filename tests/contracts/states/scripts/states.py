"""Rank 0 brings its state to the others, as if they were on several machines. Stories for lab/ranks.py."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import signal
import socket
import threading
from typing import Any

import torch

from everstep.engine import transfer
from everstep.engine.group import Group
from everstep.engine.inlet import Inlet
from everstep.engine.parcel import Outgoing, Parcel
from everstep.engine.state_routes import Route, find_routes
from everstep.engine.transfer import receive_state, send_state
from everstep.errors import PeerLost, StateMismatch
from lab.command import until
from lab.ranks import Rank, serve

LARGE = 3_000_000  # numbers: several pieces on the way
WAIT_S = 60.0


def make_state() -> dict[str, Any]:
    numbers = torch.Generator().manual_seed(5)
    return {
        "step": 7,
        "small": [torch.arange(3), torch.tensor(True), torch.tensor(1 + 2j), torch.empty(0)],
        "large": [torch.randn(LARGE, generator=numbers), torch.randn(500, 500, generator=numbers).bfloat16()],
    }


def digest(state: dict[str, Any]) -> str:
    words = hashlib.sha256(str(state["step"]).encode())
    for tensor in (*state["small"], *state["large"]):
        words.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        words.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return words.hexdigest()


def route_of(group: Group, machines: list[list[int]]) -> Route:
    """Pretend that these ranks are on separate machines."""
    neighbors = [next(each for each in machines if number in each) for number in range(group.world.size)]
    return find_routes(0, range(1, group.world.size), neighbors)[group.world.rank]


def bring(group: Group, machines: list[list[int]], *, is_copied: bool = False) -> str:
    """Bring rank 0's state to all."""
    route, worker = route_of(group, machines), f"w{group.world.rank}"
    with Inlet(group.address) as inlet:
        inlets = [json.loads(raw) for raw in group.gather(json.dumps(inlet.card).encode())]
        if group.world.rank:
            return take(receive_state(group, route, worker, inlet, inlets))
    state = make_state()
    told = digest(state)
    sent.append(send_state(Outgoing(state, worker, is_copied=is_copied), group, route, inlets, failures.append))
    if is_copied:
        state["large"][0].zero_()  # from now on it may change
    return told


def take(received: Any) -> str:
    alone = io.BytesIO()
    torch.save(received["large"][1], alone)
    assert alone.tell() < 2 * 500 * 500 * 2  # it shares its memory with no other tensor
    return digest(received)


failures: list[Exception] = []
sent: list[threading.Event] = []  # set when one is over


def await_sent() -> None:
    """The last byte that a sender hears may come after all have the state."""
    assert all(each.wait(WAIT_S) for each in sent)


def brings(rank: Rank, machines: list[list[int]]) -> list[str]:
    """Twice in one generation."""
    group = rank.form(1)
    told = [bring(group, machines), bring(group, machines, is_copied=True)]
    group.gather(b"all have it")
    await_sent()
    assert not failures
    rank.close(group)
    return told


def flips(rank: Rank, machines: list[list[int]], is_copied: bool) -> list[str]:
    """Flip a bit of what the second machine receives."""
    group = rank.form(1)
    into, told = transfer._into, []

    def take_in(sock: socket.socket, memory: memoryview) -> None:
        into(sock, memory)
        if len(memory) > 1 << 20 and rank.number == machines[1][0]:
            memory[5] ^= 4

    transfer._into = take_in
    try:
        bring(group, machines, is_copied=is_copied)
        if rank.number == 0:
            until(lambda: bool(failures), timeout_s=WAIT_S)
    except (StateMismatch, PeerLost) as error:
        told += [type(error).__name__, error.message]
    group.break_()
    return told + [type(error).__name__ for error in failures]


def goes_on(rank: Rank, machines: list[list[int]], victim: int) -> str:
    """One rank is killed as soon as one of the receivers begins; the others start over."""
    group = rank.form(1)
    pids = [int(raw) for raw in group.gather(str(os.getpid()).encode())]

    def begin(parcel: Parcel) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[victim], signal.SIGKILL)

    tell, transfer._begin = transfer._begin, begin
    with contextlib.suppress(PeerLost):
        bring(group, machines)
    rank.await_closed()
    group.close()
    transfer._begin = tell
    left = tuple(number for number in range(rank.size) if number != victim)
    group = rank.form(2, left)
    told = bring(group, [[left.index(each) for each in machine if each != victim] for machine in machines])
    group.gather(b"all have it")
    await_sent()
    rank.close(group)
    return told


if __name__ == "__main__":
    serve({"brings": brings, "flips": flips, "goes_on": goes_on})
