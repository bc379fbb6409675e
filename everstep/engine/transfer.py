"""Bring the leader's state to peers in the background: the leader copies it aside and computes on.

It travels over a connection of its own from machine to machine, so nothing of a step waits behind it; receivers on
one machine share what arrives there (state_routes.py). Nothing of a receiver changes until everything has arrived and
the checksums agree. All of it ends as soon as the group breaks."""

from __future__ import annotations

import secrets
import socket
import struct
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import torch

from everstep.addresses import listen
from everstep.engine import background
from everstep.engine.group import TAG_TRANSFER, Group
from everstep.engine.parcel import SUM_BYTES, Parcel
from everstep.engine.shared_memory import TOKEN_BYTES, open_block
from everstep.engine.state_routes import Route
from everstep.errors import PeerLost
from everstep.events import emit

T = TypeVar("T")

_TOLD_S = 1.0  # a receiver shows this often that bytes arrive
_CONNECT_S = 10.0
_KEY_BYTES = 16
_LENGTH = struct.Struct("<q")
_INLET = struct.Struct(f"<q{_KEY_BYTES}s64s")  # where a receiver takes its state: port, key, address
_SHOWN = struct.Struct(f"<{TOKEN_BYTES}sq{SUM_BYTES}s")  # where a reader finds it: block, length of the letter, sum


def send_state(state: Any, group: Group, route: Route, worker: str, on_failure: Callable[[str], None]) -> None:
    """Returns when the state is copied. `on_failure` is called in another thread if the state cannot be sent although
    the group is whole."""
    to = [*route.readers, *([] if route.following is None else [route.following])]
    parcel = Parcel.of(state, worker, is_shared=bool(route.readers))
    emit("transfer.started", to=to, bytes=parcel.num_bytes)

    def send() -> None:
        try:
            checksum: Future[bytes] = Future()
            passing = _pass_on(parcel, group, route, checksum)
            checksum.set_result(parcel.sum())
            _show(parcel, group, route, checksum.result())
            passing.result()
            emit("transfer.sent", to=to)
        except Exception as error:  # whatever it is: the receivers must not wait forever
            if not group.is_broken:
                on_failure(f"{worker} could not send its state: {error}")

    background.start("everstep-send-state", send, group.break_)


def receive_state(group: Group, route: Route, worker: str, on_progress: Callable[[], None] = lambda: None) -> Any:
    """The leader's state, when it has arrived and was checked. Raises PeerLost if the group breaks first."""
    take = _read if route.is_near else _take
    try:
        parcel = group.unless_broken(lambda: take(group, route, worker, on_progress))
    except OSError as error:
        raise PeerLost(f"{worker} could not receive the state: {error}", code="state-not-received") from None
    emit("transfer.received", sender=parcel.sender)
    return parcel.state()


def _begin(parcel: Parcel) -> None:
    """A state begins to arrive."""
    emit("transfer.receiving", sender=parcel.sender)


# --- to the next machine ----------------------------------------------------------------------------------


def _pass_on(parcel: Parcel, group: Group, route: Route, checksum: Future[bytes]) -> Future[None]:
    """Send it to the next machine, while it is being filled here."""
    if route.following is None:
        done: Future[None] = Future()
        done.set_result(None)
        return done
    following = route.following
    return _in_background("everstep-pass-state", lambda: _stream(parcel, group, following, checksum), group)


def _stream(parcel: Parcel, group: Group, peer: int, checksum: Future[bytes]) -> None:
    port, key, address = _INLET.unpack(_recv(group, peer, _INLET.size))
    with socket.create_connection((address.rstrip(b"\0").decode(), port), _CONNECT_S) as sock, group.cutting(sock):
        sock.settimeout(None)
        sock.sendall(key + _LENGTH.pack(len(parcel.letter)) + parcel.letter)
        for piece in parcel.filled_pieces():
            sock.sendall(piece)
        sock.sendall(checksum.result())
        if not sock.recv(1):
            raise PeerLost("a receiver has closed its connection", code="state-receiver-gone")


def _take(group: Group, route: Route, worker: str, on_progress: Callable[[], None]) -> Parcel:
    assert route.source is not None
    key = secrets.token_bytes(_KEY_BYTES)
    with listen(group.address) as inlet, group.cutting(inlet):
        where = _INLET.pack(inlet.getsockname()[1], key, group.address.encode())
        _send(group, route.source, where)
        sock = _accept(inlet, key)
    with sock, group.cutting(sock):
        (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size))
        parcel = Parcel(_exactly(sock, length), is_shared=bool(route.readers))
        _begin(parcel)
        checksum: Future[bytes] = Future()
        mine = None if route.readers else _in_background("everstep-sum-state", parcel.sum, group)
        passing = _pass_on(parcel, group, route, checksum)
        try:
            _fill(parcel, sock, on_progress)
            checksum.set_result(_exactly(sock, SUM_BYTES))
        except BaseException as error:
            parcel.give_up()
            checksum.set_exception(error)
            raise
        _show(parcel, group, route, checksum.result())
        own = parcel.private()
        own.check(mine.result() if mine is not None else own.sum(), checksum.result(), worker)
        sock.sendall(b"\0")
        passing.result()
    return own


def _accept(inlet: socket.socket, key: bytes) -> socket.socket:
    """The sender's connection; others may knock here, too."""
    while True:
        sock, _ = inlet.accept()
        sock.settimeout(_CONNECT_S)
        try:
            if secrets.compare_digest(_exactly(sock, _KEY_BYTES), key):
                sock.settimeout(None)
                return sock
        except OSError:
            pass
        sock.close()


def _fill(parcel: Parcel, sock: socket.socket, on_progress: Callable[[], None]) -> None:
    told_at = time.monotonic()
    for piece in parcel.pieces():
        _into(sock, piece)
        parcel.note_filled(len(piece))
        if time.monotonic() > told_at + _TOLD_S:
            told_at = time.monotonic()
            on_progress()


def _exactly(sock: socket.socket, num_bytes: int) -> bytes:
    data = bytearray(num_bytes)
    _into(sock, memoryview(data))
    return bytes(data)


def _into(sock: socket.socket, memory: memoryview) -> None:
    while memory:
        if not (num_bytes := sock.recv_into(memory, len(memory), socket.MSG_WAITALL)):
            raise ConnectionResetError("the sender has closed the connection")
        memory = memory[num_bytes:]


# --- on the same machine ----------------------------------------------------------------------------------


def _show(parcel: Parcel, group: Group, route: Route, checksum: bytes) -> None:
    """Let neighbors read it, and return when all have opened it."""
    if not route.readers:
        return
    assert parcel.block is not None
    shown = _SHOWN.pack(parcel.block.token, len(parcel.letter), checksum)
    for reader in route.readers:
        _send(group, reader, shown)
    for reader in route.readers:
        _recv(group, reader, 1)


def _read(group: Group, route: Route, worker: str, _: Callable[[], None]) -> Parcel:
    assert route.source is not None
    token, length, checksum = _SHOWN.unpack(_recv(group, route.source, _SHOWN.size))
    parcel = Parcel.in_block(open_block(group.neighbors[route.source].pid, token), length)
    _begin(parcel)
    _send(group, route.source, b"\0")
    own = parcel.private()
    own.check(own.sum(), checksum, worker)
    return own


# --- words and threads ------------------------------------------------------------------------------------


def _send(group: Group, peer: int, message: bytes) -> None:
    group.wait([group.send(torch.frombuffer(bytearray(message), dtype=torch.uint8), peer, TAG_TRANSFER)])


def _recv(group: Group, peer: int, num_bytes: int) -> bytes:
    inbox = torch.empty(num_bytes, dtype=torch.uint8)
    group.wait([group.recv(inbox, peer, TAG_TRANSFER)])
    return inbox.numpy().tobytes()


def _in_background(name: str, call: Callable[[], T], group: Group) -> Future[T]:
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except Exception as error:  # raised again where the result is asked for
            future.set_exception(error)

    background.start(name, work, group.break_)
    return future
