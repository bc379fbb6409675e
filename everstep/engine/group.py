"""The connections of one generation: messages between ranks, and a way to end them at once.

Everything on top (sums, state, pulse) is made of `send` and `recv` of tensors with a tag, over gloo. A message is
matched by (peer, tag), never by the order of calls. The memory given to an operation must stay as it is until its
work has ended; `break_` makes every work end. A group is never reused: each generation forms its own."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroupGloo

from everstep.engine import sockets
from everstep.engine.world import World
from everstep.errors import PeerLost

FORM_S = 10.0  # a group that is not formed by then is given up
WAIT_S = 24 * 3600.0  # who is alive is decided by the coordinator, not by gloo's time-out

# Tags below this belong to a step's buckets.
TAG_HEADER, TAG_PULSE, TAG_BUFFERS, TAG_GATHER, TAG_TRANSFER, TAG_BUCKETS = 0, 1, 2, 3, 5, 1 << 10

_PLACE = re.compile(r"\[\S+:\d+\] ")


class Group:
    """Formed, used, broken or closed; all in the generation of its world."""

    def __init__(self, world: World, gloo: ProcessGroupGloo | None, held: list[Any]) -> None:
        self.world = world
        self.gloo = gloo
        self.is_broken = False
        self._held = held

    @classmethod
    def form(cls, world: World, address: str, purpose: str, form_s: float = FORM_S) -> Group:
        """Connect to all peers of the generation. Blocks: call it in a thread that can be abandoned."""
        if world.size == 1:
            return cls(world, None, [])
        store = generation_store(world, purpose, form_s)
        before = sockets.listeners()
        device = ProcessGroupGloo.create_device(hostname=address)
        own = _new_listener(sockets.listeners() - before)
        store.set(f"listener/{world.rank}", json.dumps(own))
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # missing in torch's stub, like send and recv
        options._devices = [device]
        options._threads = 1  # messages only: sent and received by gloo's event loop
        options._timeout = timedelta(seconds=form_s)
        gloo = ProcessGroupGloo(store, world.rank, world.size, options)
        peers = {tuple(json.loads(store.get(f"listener/{rank}"))) for rank in world.peers}
        held = sockets.hold(own, peers)
        if len(held) < len(world.peers):
            raise PeerLost(f"found {len(held)} of {len(world.peers)} connections of generation {world.generation}")
        return cls(world, gloo, held)

    def send(self, tensor: Tensor, peer: int, tag: int) -> dist.Work:
        assert self.gloo is not None
        return self.gloo.send([tensor], peer, tag)  # type: ignore[attr-defined, no-any-return]

    def recv(self, tensor: Tensor, peer: int, tag: int) -> dist.Work:
        assert self.gloo is not None
        return self.gloo.recv([tensor], peer, tag)  # type: ignore[attr-defined, no-any-return]

    def gather(self, payload: bytes) -> list[bytes]:
        """Everybody's payload, by rank. Two rounds: lengths first."""
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world.size)]
        own = torch.tensor([len(payload)], dtype=torch.int64)
        self._swap(own, lengths, TAG_GATHER)
        texts = [torch.empty(int(length), dtype=torch.uint8) for length in lengths]
        self._swap(torch.frombuffer(bytearray(payload), dtype=torch.uint8), texts, TAG_GATHER + 1)
        return [payload if r == self.world.rank else bytes(texts[r].numpy()) for r in range(self.world.size)]

    def _swap(self, own: Tensor, theirs: Sequence[Tensor], tag: int) -> None:
        works = [self.recv(theirs[peer], peer, tag) for peer in self.world.peers]
        works += [self.send(own, peer, tag) for peer in self.world.peers]
        wait_all(works, self.world.generation)

    def break_(self) -> None:
        """End every operation of this group, here and at the peers, with an error. Safe from any thread."""
        self.is_broken = True
        sockets.cut(self._held)

    def close(self) -> None:
        """Give the group up. Destroying blocks while operations end, so it is done behind our back."""
        self.break_()
        for sock in self._held:
            sock.close()
        self._held = []
        gloo, self.gloo = self.gloo, None
        if gloo is not None:
            threading.Thread(target=_destroy, args=([gloo],), name="everstep-destroy", daemon=True).start()
            del gloo


def generation_store(world: World, purpose: str, timeout_s: float = FORM_S) -> dist.Store:
    """Keys of this generation and purpose alone, in rank 0's store; a key is never used twice."""
    if world.size == 1:
        return dist.HashStore()
    timeout = timedelta(seconds=timeout_s)
    server = dist.TCPStore(
        world.store_address, world.store_port, is_master=False, wait_for_workers=False, timeout=timeout, use_libuv=True
    )
    return dist.PrefixStore(f"everstep/{world.generation}/{purpose}", server)


def wait_all(works: Sequence[dist.Work], generation: int) -> None:
    """Wait for every work, also after one failed: only then may their memory be used again."""
    failed: RuntimeError | None = None
    for work in works:
        try:
            work.wait(timedelta(seconds=WAIT_S))
        except RuntimeError as error:
            failed = failed or error
    if failed is not None:
        raise PeerLost(f"generation {generation} is broken: {gloo_words(failed)}") from failed


def gloo_words(error: Exception) -> str:
    """What gloo has to say, without the place in its source before it and the advice after it."""
    return _PLACE.sub("", str(error)).split(". ", 1)[0]


def _new_listener(found: set[sockets.Endpoint]) -> sockets.Endpoint:
    if len(found) != 1:
        # Another thread opened a listener in the same instant; the caller forms the group anew.
        raise PeerLost(f"could not tell gloo's listener among {sorted(found)}")
    return found.pop()


def _destroy(box: list[ProcessGroupGloo]) -> None:
    box.clear()
