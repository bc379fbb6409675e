"""Bring the leader's state to peers in the background while the leader computes (parcel.py).

The state travels from receiver to receiver (state_routes.py) over separate connections, so no message of a step waits
behind it. A receiver changes nothing until everything has arrived and the checksums agree. The transfer ends as soon as
the group breaks."""

from __future__ import annotations

import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

import torch

from everstep.addresses import listen
from everstep.engine import background
from everstep.engine.group import TAG_TRANSFER, Group
from everstep.engine.page_sender import PageSender
from everstep.engine.parcel import SUM_BYTES, Outgoing, Parcel, Piece
from everstep.engine.state_room import StateRoom, room
from everstep.engine.state_routes import Route
from everstep.errors import PeerLost, StateMismatch
from everstep.events import emit
from everstep.wire import COMPUTING, WAITING

T = TypeVar("T")

_TOLD_S = 1.0  # a receiver reports this often that bytes arrive
_CONNECT_S = 10.0
_KEY_BYTES = 16
_GOOD, _CHANGED = b"\0", b"\1"  # what a receiver says about the bytes
_LENGTH = struct.Struct("<q")
_INLET = struct.Struct(f"<q{_KEY_BYTES}s256s")  # where a receiver accepts its state: port, key, address


class StateChanged(PeerLost):
    """What arrived is not what the sender held: its script may have changed the state meanwhile."""


def send_state(parcel: Outgoing, group: Group, peer: int, on_failure: Callable[[Exception], None]) -> None:
    """Returns when the checksum is taken; the bytes are on their way meanwhile. If the state cannot be sent although
    the group is whole, `on_failure` is called in another thread, and the group breaks."""

    def send() -> None:
        try:
            _stream(parcel.letter, parcel.pieces(), parcel.await_checksum, group, peer)
            emit("transfer.sent", to=peer)
        except Exception as error:  # of any kind: the receivers must not wait forever
            if not group.is_broken or isinstance(error, StateChanged):
                try:
                    on_failure(error)
                finally:
                    group.break_()

    emit("transfer.started", to=peer, bytes=parcel.num_bytes)
    background.start("everstep-send-state", send, group.break_)
    parcel.sum_up()


def receive_state(
    group: Group,
    route: Route,
    worker: str,
    show: Callable[[str], None] = lambda phase: None,
    place: StateRoom | None = None,
) -> Any:
    """The leader's state, when it has arrived and was checked. Raises PeerLost if the group breaks first. `show`: says
    which phase this worker is in; it computes, as soon as it waits for no other worker. `place`: memory to use."""
    try:
        parcel = group.unless_broken(lambda: _take(group, route, worker, show, place))
    except OSError as error:
        raise PeerLost(f"{worker} could not receive the state: {error}", code="state-not-received") from None
    emit("transfer.received", sender=parcel.sender)
    return parcel.state()


# --- from receiver to receiver ----------------------------------------------------------------------------


def _stream(letter: bytes, pieces: Iterable[Piece], checksum: Callable[[], bytes], group: Group, peer: int) -> None:
    """Send to the next receiver."""
    port, key, address = _INLET.unpack(_recv(group, peer, _INLET.size))
    with socket.create_connection((address.rstrip(b"\0").decode(), port), _CONNECT_S) as sock, group.cutting(sock):
        sock.settimeout(None)
        sock.sendall(key)
        _send(group, peer, _GOOD)  # only now: if this side ends before, the receiver's wait for it breaks the group
        sock.sendall(_LENGTH.pack(len(letter)) + letter)
        with PageSender(sock) as pages:
            for memory, is_lasting in pieces:
                if is_lasting:
                    pages.send(memory)
                else:
                    sock.sendall(memory)
        sock.sendall(checksum())
        _heed(_exactly(sock, len(_GOOD)))


def _take(group: Group, route: Route, worker: str, show: Callable[[str], None], place: StateRoom | None) -> Parcel:
    """Receive, and pass on what arrives."""
    assert route.source is not None
    key = secrets.token_bytes(_KEY_BYTES)
    with listen(group.address) as inlet, group.cutting(inlet):
        inlet.settimeout(None)  # whatever the script has set for all sockets
        source = route.source
        _send(group, source, _INLET.pack(inlet.getsockname()[1], key, group.address.encode()))
        # If the sender dies before it connects, this wait breaks the group, which ends the inlet.
        connected = _in_background("everstep-await-state", lambda: _recv(group, source, len(_GOOD)), group)
        sock = _accept(inlet, key)
        connected.result()
    with sock, group.cutting(sock):
        (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size))
        parcel = Parcel(_exactly(sock, length), place.take if place is not None else room)
        if place is not None:
            place.give_back()
        _begin(parcel)
        theirs: Future[bytes] = Future()
        passing = _pass_on(parcel, group, route, theirs)
        mine = _in_background("everstep-sum-state", parcel.checksum, group)
        try:
            _fill(parcel, sock, show)
            show(COMPUTING)
            theirs.set_result(_exactly(sock, SUM_BYTES))
        except BaseException as error:
            parcel.give_up()
            theirs.set_exception(error)
            raise
        try:
            _check(parcel, mine.result(), theirs.result(), worker)
            passing.result()
        except StateChanged:
            sock.sendall(_CHANGED)
            raise
        sock.sendall(_GOOD)
    return parcel


def _pass_on(parcel: Parcel, group: Group, route: Route, checksum: Future[bytes]) -> Future[None]:
    following = route.following
    if following is None:
        done: Future[None] = Future()
        done.set_result(None)
        return done
    return _in_background(
        "everstep-pass-state",
        lambda: _stream(parcel.letter, parcel.filled_pieces(), checksum.result, group, following),
        group,
    )


def _begin(parcel: Parcel) -> None:
    """Called when a state begins to arrive."""
    emit("transfer.receiving", sender=parcel.sender)


def _accept(inlet: socket.socket, key: bytes) -> socket.socket:
    """The sender's connection; strangers may connect here too."""
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


def _fill(parcel: Parcel, sock: socket.socket, show: Callable[[str], None]) -> None:
    told_at = time.monotonic()
    for piece in parcel.pieces():
        _into(sock, piece)
        parcel.note_filled(len(piece))
        if time.monotonic() > told_at + _TOLD_S:
            told_at = time.monotonic()
            show(WAITING)


def _exactly(sock: socket.socket, num_bytes: int) -> bytes:
    data = bytearray(num_bytes)
    _into(sock, memoryview(data))
    return bytes(data)


def _into(sock: socket.socket, memory: memoryview) -> None:
    while memory:
        if not (num_bytes := sock.recv_into(memory, len(memory), socket.MSG_WAITALL)):
            raise ConnectionResetError("the other side has closed the connection")
        memory = memory[num_bytes:]


def _check(parcel: Parcel, mine: bytes, theirs: bytes, worker: str) -> None:
    if mine == theirs:
        return
    sentence = (
        f"{worker} received a state with checksum {mine[:16].decode()}, but {parcel.sender} sent "
        f"{theirs[:16].decode(errors='replace')}"
    )
    if not parcel.is_copied:
        raise StateChanged(sentence, code="state-changed")
    raise StateMismatch(
        sentence,
        hint="nothing was loaded; check the memory and network of both machines",
        code="transfer-checksum-differs",
    )


def _heed(verdict: bytes) -> None:
    if verdict != _GOOD:
        raise StateChanged("the state changed on its way", code="state-changed-on-its-way")


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
