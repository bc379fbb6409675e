"""Whether the nodes of a job reach each other: each agent listens on a port of its own and tries the others'.

A silent cut between two nodes breaks no connection and no heartbeat; only trying finds it. A few peers are tried at a
time, all in turn; one that did not answer twice in a row is unreachable until it answers."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence

from everstep.addresses import listen
from everstep.wire import Peer

EVERY_S = 1.0
TRY_S = 1.0
TRIES = 2
AT_A_TIME = 8
PAUSE_S = 0.1


class Probe:
    """Listens and tries in threads of its own, from `open` to `close`."""

    def __init__(self, address: str) -> None:
        self._listener = listen(address)
        self.port: int = self._listener.getsockname()[1]
        self._peers: list[Peer] = []
        self._failures: dict[str, int] = {}
        self._is_closed = threading.Event()

    def open(self) -> None:
        for duty in (self._answer, self._try):
            threading.Thread(target=duty, name=f"probe {duty.__name__}", daemon=True).start()

    def close(self) -> None:
        self._is_closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes who accepts
        self._listener.close()

    def follow(self, peers: Sequence[Peer]) -> None:
        self._peers = list(peers)
        self._failures = {peer.agent: self._failures.get(peer.agent, 0) for peer in peers}

    @property
    def unreachable(self) -> list[str]:
        return sorted(agent for agent, failures in self._failures.items() if failures >= TRIES)

    def _answer(self) -> None:
        while not self._is_closed.is_set():
            try:
                self._listener.accept()[0].close()
            except OSError:  # closed; or a caller that has gone again, or no file left for it
                self._is_closed.wait(PAUSE_S)

    def _try(self) -> None:
        following = 0
        while not self._is_closed.wait(EVERY_S):
            peers = self._peers
            chosen = [peers[(following + n) % len(peers)] for n in range(min(AT_A_TIME, len(peers)))]
            following += len(chosen)
            # Side by side: one that does not answer must not make the others look slow.
            tries = [threading.Thread(target=self._try_one, args=(peer,), daemon=True) for peer in chosen]
            for each in tries:
                with contextlib.suppress(RuntimeError):  # no thread left for it now
                    each.start()
            for each in tries:
                if each.ident is not None:
                    each.join()

    def _try_one(self, peer: Peer) -> None:
        try:
            socket.create_connection((peer.address, peer.probe_port), TRY_S).close()
        except OSError as error:
            # Refused is an answer: the way is there, and whether the agent is, the coordinator knows.
            is_reached = isinstance(error, ConnectionError)
        else:
            is_reached = True
        if peer.agent in self._failures:
            self._failures[peer.agent] = 0 if is_reached else self._failures[peer.agent] + 1
