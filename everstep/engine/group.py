"""The connections of one generation: messages between ranks, and a way to end them at once.

Neighbors, the peers on this machine, read each other's memory and exchange messages over Unix sockets (neighbors.py).
gloo carries tensors to other machines, by `send` and `recv` with a tag; it connects only ranks that use the connection
(levels.py). A message is matched by (peer, tag), never by the order of calls. The memory given to an operation must
stay as it is until its work has ended or the group is still. A group is never reused: each generation forms its own.

When a connection breaks, gloo ends all operations but those in mid-message: waiting for one of these would never
end, and nothing wakes it. So waiting is done in threads that can be left behind, and `make_still` makes sure that gloo
touches no memory any more."""

from __future__ import annotations

import contextlib
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroupGloo

from everstep import env
from everstep.engine import background, sockets
from everstep.engine.cards import swap_cards
from everstep.engine.levels import Levels, Nodes, single
from everstep.engine.neighbors import Door, Neighbor
from everstep.engine.swap import Swap, gather
from everstep.engine.tcp_store import connect_store
from everstep.engine.world import World
from everstep.errors import PeerLost, UsageError

if TYPE_CHECKING:
    from everstep.engine.device_link import DeviceLink

FORM_S = 10.0  # a small group that is not formed by then is given up
LARGEST_WORLD = 128  # the largest that was shown to work
KNOCK_S = 1.0  # torch retries for up to twice as long where no one listens, and cannot be interrupted meanwhile
WAIT_S = 24 * 3600.0  # the coordinator decides which workers are alive, not gloo's timeout

# Tags below this belong to a step's buckets.
TAG_HEADER, TAG_PULSE, TAG_BUFFERS = 0, 1, 2
TAG_CANARY, TAG_BUCKETS = 9, 1 << 10  # 3 and 4: swap.py

T = TypeVar("T")

_GLOO_KEY = "0/{}"  # where gloo keeps a rank's address
_TRIES = 10
_listening = threading.Lock()  # groups for the engine, the devices and the script may form at the same time
_PLACE = re.compile(r"\[\S+:\d+\] |NCCL error in: \S+:\d+, |, NCCL version [\d.]+")


def form_s(size: int) -> float:
    """Time limit for a group of this size: all on one machine find each other, and its cores share that work. On two
    cores, 64 took 0.9 s and 128 took 2.2 s, with other programs beside them 5 s and 15 s (benchmarks/forming.py)."""
    return FORM_S + size**2 / 500


def check_size(size: int) -> None:
    if size > LARGEST_WORLD:
        raise UsageError(
            f"a generation of {size} workers: none larger than {LARGEST_WORLD} was ever shown to work",
            hint=f"start at most {LARGEST_WORLD} workers, or set micro_batches={LARGEST_WORLD} and the rest are spares",
            code="generation-too-large",
        )


class GroupForming:
    """The forming of a group, which can be given up from another thread: it then ends with an error, soon."""

    def __init__(self) -> None:
        self.is_given_up = False
        self._store: set[sockets.Endpoint] = set()

    @contextlib.contextmanager
    def connecting(self, world: World) -> Iterator[None]:
        if self.is_given_up:
            raise PeerLost(f"generation {world.generation} was closed", code="generation-closed")
        self._store = sockets.endpoints(world.store_address, world.store_port)
        try:
            yield
        finally:
            self._store = set()

    def give_up(self) -> None:
        """Most of the time is spent waiting for the keys of peers, without end for those of one that died meanwhile.
        May be repeated."""
        self.is_given_up = True
        if self._store:
            held = sockets.hold(None, self._store)
            sockets.cut(held)
            for sock in held:
                sock.close()


class Group:
    """Formed, used, broken or closed; all in the generation of its world."""

    def __init__(
        self,
        world: World,
        neighbors: Mapping[int, Neighbor] | None = None,
        nodes: Nodes = (),
        address: str = "127.0.0.1",
        purpose: str = "",
    ) -> None:
        self.world = world
        self.address, self.purpose = address, purpose  # where peers reach this worker, and what the group is for
        self._link: DeviceLink | None = None  # between the devices; None: gradients go through the host
        self.neighbors = neighbors or {}  # by rank
        levels = Levels(nodes, world.rank)
        self.levels = levels if levels.is_useful else None  # None: each rank talks to all others
        self.gloo: ProcessGroupGloo | None = None  # None: all peers are neighbors
        self.is_broken = False
        self._has_peer_ended = False  # set only if `watch_peers` was called
        self._changed = threading.Condition()
        self._held: list[socket.socket] = []  # gloo's connections
        self._others: list[socket.socket] = []  # other connections that end when the group breaks
        # A receive per connection that never gets a message, only the news that the connection is over.
        self._canaries: list[dist.Work] = []

    @classmethod
    def form_in_generation(
        cls, world: World, address: str, purpose: str, attempt: GroupForming, *, has_neighbors: bool = True
    ) -> Group:
        """For a world that the coordinator made: rank 0's store is up, or rank 0 is dead."""
        if world.size > 1:
            # TCPStore would retry all the time where no one listens.
            socket.create_connection((world.store_address, world.store_port), form_s(world.size)).close()
        return cls.form(world, address, purpose, attempt=attempt, has_neighbors=has_neighbors)

    @classmethod
    def form(
        cls,
        world: World,
        address: str,
        purpose: str,
        timeout_s: float | None = None,
        attempt: GroupForming | None = None,
        *,
        has_neighbors: bool = True,
    ) -> Group:
        """Connect to all peers of the generation. Blocks, until it is done or the attempt is given up. Without
        neighbors, everything goes over gloo."""
        if world.size == 1:
            return cls(world)
        attempt, timeout_s = attempt or GroupForming(), timeout_s or form_s(world.size)
        with attempt.connecting(world):
            return cls._connect(world, address, purpose, timeout_s, attempt, has_neighbors)

    @classmethod
    def _connect(
        cls, world: World, address: str, purpose: str, timeout_s: float, attempt: GroupForming, has_neighbors: bool
    ) -> Group:
        store = generation_store(world, purpose, timeout_s, attempt)
        neighbors: dict[int, Neighbor] = {}
        nodes = single(world.size)
        is_one_node = False
        if has_neighbors:
            with Door(world) as door:
                cards = swap_cards(store, world, "card", [door.card, env.has_levels()])
                neighbors, nodes = door.find(
                    [card for card, _ in cards], lambda seen: swap_cards(store, world, "seen", seen)
                )
            is_one_node = len(nodes) == 1
            if not all(wants_levels for _, wants_levels in cards):
                nodes = single(world.size)
        group = cls(world, neighbors, nodes, address, purpose)
        try:
            if not is_one_node:
                group._connect_others(store, timeout_s, attempt)
        except BaseException:
            group.close()
            raise
        return group

    def _connect_others(self, store: dist.Store, timeout_s: float, attempt: GroupForming) -> None:
        """Connect to the peers that this rank talks to over the network."""
        world = self.world
        device, own = _listening_device(self.address)
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # missing in torch's stub, like send and recv
        options._devices = [device]
        options._threads = 1  # messages only: sent and received by gloo's event loop
        options._timeout = timedelta(seconds=timeout_s)
        addresses = dist.HashStore()  # otherwise gloo asks rank 0's store for each peer's address in turn
        self.gloo = ProcessGroupGloo(addresses, world.rank, world.size, options)
        mine = addresses.get(_GLOO_KEY.format(world.rank)).hex()
        cards = swap_cards(store, world, "gloo", [own, mine])
        for rank in world.peers:
            addresses.set(_GLOO_KEY.format(rank), bytes.fromhex(cards[rank][1]))  # type: ignore[arg-type]
        self._use_connections(own, [tuple(card[0]) for card in cards], attempt)

    def _use_connections(
        self, own: sockets.Endpoint, all_of_them: Sequence[sockets.Endpoint], attempt: GroupForming
    ) -> None:
        """gloo connects two ranks once both have used the connection; the rank with the higher endpoint starts it. The
        connections that this rank starts come first, because it need not wait for those peers."""
        world, endpoints = self.world, [sockets.in_order(each) for each in all_of_them]
        partners = self.levels.partners if self.levels is not None else {*world.peers} - self.neighbors.keys()
        try:
            for peer in sorted(partners, key=lambda rank: (endpoints[rank] > endpoints[world.rank], rank)):
                if attempt.is_given_up:
                    raise PeerLost(f"generation {world.generation} was closed", code="generation-closed-forming")
                self._canaries.append(self.recv(torch.empty(1, dtype=torch.uint8), peer, TAG_CANARY))
        finally:
            self._held = sockets.hold(own, {all_of_them[rank] for rank in partners})
        if len(self._held) < len(partners):
            raise PeerLost(
                f"found {len(self._held)} of {len(partners)} connections of generation {world.generation}",
                code="connections-missing",
            )

    @property
    def link(self) -> DeviceLink | None:
        return self._link

    def take_link(self, link: DeviceLink | None) -> None:
        """Use this link; it is aborted when the group breaks."""
        with self._changed:
            self._link, is_over = link, self.is_broken or self._has_peer_ended
        if link is not None and is_over:
            link.abort()

    def ends(self) -> select.poll:
        """Polls for the first end of a connection to a peer, on either side."""
        connections = select.poll()
        lines: list[socket.socket | Neighbor] = [*self._held, *self.neighbors.values()]
        for line in lines:
            connections.register(line.fileno(), select.POLLRDHUP)
        return connections

    def watch_peers(self) -> None:
        """For worlds in which no coordinator reports deaths: when the first connection ends, abort the link between the
        devices, because a sum over NCCL would wait forever. Nothing else ends: a peer that is done may have left
        messages to be read."""
        ends = self.ends()

        def watch() -> None:
            ends.poll()  # `break_` ends this wait too
            with self._changed:
                self._has_peer_ended, link = True, self._link
            if link is not None:
                link.abort("a peer has ended")

        threading.Thread(target=watch, name="everstep-peers", daemon=True).start()

    @property
    def _open(self) -> ProcessGroupGloo:
        if (gloo := self.gloo) is None:  # closed by another thread
            raise PeerLost(f"generation {self.world.generation} was closed", code="group-closed")
        return gloo

    def send(self, tensor: Tensor, peer: int, tag: int) -> dist.Work:
        try:
            return self._open.send([tensor], peer, tag)  # type: ignore[attr-defined, no-any-return]
        except RuntimeError as error:
            raise self._lost(error) from None

    def recv(self, tensor: Tensor, peer: int, tag: int) -> dist.Work:
        try:
            return self._open.recv([tensor], peer, tag)  # type: ignore[attr-defined, no-any-return]
        except RuntimeError as error:
            raise self._lost(error) from None

    def swap(self, own: bytes, sizes: Sequence[int], tag: int) -> list[bytes]:
        """For the script's thread: all members' messages, by rank. The sizes are known; PeerLost as in `wait`."""

        def finish() -> list[bytes]:
            swap = Swap(self, own, sizes, tag)
            swaps.append(swap)
            return swap.arrived(self.wait_here)

        swaps: list[Swap] = []  # alive until the group is still
        return self._or_still(finish)

    def gather(self, payload: bytes, ranks: Sequence[int] | None = None) -> list[bytes]:
        """For the script's thread: all members' payloads, by rank; or those of these ranks, if only they come here."""
        those = ranks or range(self.world.size)
        if len(those) == 1:
            if self.is_broken:
                raise PeerLost(f"the group of generation {self.world.generation} is broken", code="group-broken")
            return [payload]
        return self._or_still(lambda: gather(self, payload, those))

    def wait(self, works: Sequence[dist.Work]) -> None:
        """For the script's thread: until all are done, or PeerLost as soon as one failed or the group is broken."""
        if works:
            self._or_still(lambda: self.wait_here(works))

    def _or_still(self, call: Callable[[], T]) -> T:
        try:
            return self.unless_broken(call)
        except (OSError, PeerLost) as error:  # OSError: a neighbor's end
            self.make_still()
            raise error if isinstance(error, PeerLost) else self._lost(error) from None

    def unless_broken(self, call: Callable[[], T]) -> T:
        """Make a call that waits inside gloo; PeerLost when the group is broken, the call is then left behind."""
        results: list[T] = []
        errors: list[Exception] = []

        def work() -> None:
            try:
                results.append(call())
            except Exception as error:  # raised again below, in the caller's thread
                errors.append(error)
            with self._changed:
                self._changed.notify_all()

        threading.Thread(target=work, name="everstep-wait", daemon=True).start()
        with self._changed:
            self._changed.wait_for(lambda: results or errors or self.is_broken)
        if errors:
            raise errors[0]
        if not results:
            raise PeerLost(f"generation {self.world.generation} was closed", code="generation-closed-waiting")
        return results[0]

    def wait_here(self, works: Sequence[dist.Work]) -> None:
        """For a thread that can be left behind. After a failure the group is still."""
        try:
            for work in works:
                work.wait(timedelta(seconds=WAIT_S))
        except RuntimeError as error:
            self.make_still()
            raise self._lost(error) from None

    def _lost(self, error: RuntimeError | OSError) -> PeerLost:
        return PeerLost(f"generation {self.world.generation} is broken: {gloo_words(error)}", code="generation-broken")

    def break_(self, why: str = "") -> None:
        """End the connections, for the peers too. Safe from any thread."""
        with self._changed:
            self.is_broken = True
            self._changed.notify_all()
            link, others = self._link, list(self._others)
        if link is not None:
            link.abort(why)
        sockets.cut(self._held + others)
        for neighbor in self.neighbors.values():
            neighbor.cut()

    @contextlib.contextmanager
    def cutting(self, sock: socket.socket) -> Iterator[None]:
        """If the group breaks meanwhile, this connection or listener ends too."""
        with self._changed:
            self._others.append(sock)
            is_over = self.is_broken
        if is_over:
            sockets.cut([sock])
        try:
            yield
        finally:
            with self._changed:
                self._others.remove(sock)

    def make_still(self) -> None:
        """Break it, and return when gloo touches no memory any more. Safe from any thread."""
        self.break_()
        with self._changed:
            for canary in self._canaries:
                try:
                    canary.wait(timedelta(milliseconds=1))  # never succeeds: that makes gloo close all its connections
                except RuntimeError:
                    pass
            self._canaries = []

    def close(self) -> None:
        """Give the group up. Destroying blocks while operations end, so it is done in the background."""
        self.break_()
        self._link = None  # it refers to its group: the cycle would keep sockets open until garbage collection
        for sock in self._held:
            sock.close()
        for neighbor in self.neighbors.values():
            neighbor.close()
        self._held = []
        gloo, self.gloo = self.gloo, None
        if gloo is not None:
            box = [gloo]
            del gloo
            background.start("everstep-destroy", box.clear)


def generation_store(
    world: World, purpose: str, timeout_s: float | None = None, attempt: GroupForming | None = None
) -> dist.Store:
    """Keys of this job, generation and purpose alone, in rank 0's store; a key is never used twice."""
    if world.size == 1:
        return dist.HashStore()
    timeout_s = timeout_s or form_s(world.size)
    server = _knock(world, timeout_s, attempt or GroupForming())
    server.set_timeout(timedelta(seconds=timeout_s))
    return dist.PrefixStore(f"everstep/{world.job}/{world.generation}/{purpose}", server)


def _knock(world: World, timeout_s: float, attempt: GroupForming) -> dist.TCPStore:
    """Again and again for a short time: an attempt that is given up must end before the interpreter does."""
    deadline, knock_s = time.monotonic() + timeout_s, min(KNOCK_S * (1 + world.size / 32), timeout_s)
    while True:
        try:
            store = connect_store(world.store_address, world.store_port, knock_s)
        except dist.DistNetworkError:
            if attempt.is_given_up or time.monotonic() > deadline:
                raise
            continue
        if attempt.is_given_up:  # before there was a connection to cut
            raise PeerLost(f"generation {world.generation} was closed", code="generation-closed-connecting")
        return store


def gloo_words(error: Exception) -> str:
    """The message of gloo, NCCL, or a store, without source locations, advice, and stack frames."""
    return _PLACE.sub("", str(error)).split("\n", 1)[0].split(". ", 1)[0]


def _listening_device(address: str) -> tuple[Any, sockets.Endpoint]:
    """gloo's device, and where it listens. Retries if another thread, such as NCCL's, opens a listener meanwhile."""
    found: set[sockets.Endpoint] = set()
    for _ in range(_TRIES):
        with _listening:
            before = sockets.listeners()
            device = ProcessGroupGloo.create_device(hostname=address, lazy_init=True)
            found = sockets.listeners() - before
        if len(found) == 1:
            return device, found.pop()
    raise PeerLost(f"could not identify gloo's listener among {sorted(found)}", code="gloo-listener-unknown")
