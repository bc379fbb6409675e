"""Bring the leader's state to peers in the background while the leader computes (parcel.py).

The state travels from receiver to receiver (state_routes.py) over separate connections, so no message of a step waits
behind it. A receiver changes nothing until everything has arrived and the checksums agree. The transfer ends as soon as
the group breaks."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from everstep.engine import background
from everstep.engine.group import Group
from everstep.engine.inlet import Inlet, connect
from everstep.engine.page_sender import PageSender
from everstep.engine.parcel import SUM_BYTES, Outgoing, Parcel, StatePiece
from everstep.engine.state_room import StateRoom, room
from everstep.engine.state_routes import Route
from everstep.errors import PeerLost, StateMismatch
from everstep.events import emit
from everstep.wire import COMPUTING, WAITING

T = TypeVar("T")
Inlets = Sequence[list[Any]]  # the cards of all members' inlets, by rank

_TOLD_S = 1.0  # a receiver reports this often that bytes arrive
_GOOD, _CHANGED = b"\0", b"\1"  # what a receiver says about the bytes
_LENGTH = struct.Struct("<q")


class StateChanged(PeerLost):
    """What arrived is not what the sender held: its script may have changed the state meanwhile."""


def send_state(
    parcel: Outgoing, group: Group, route: Route, inlets: Inlets, on_failure: Callable[[Exception], None]
) -> threading.Event:
    """To the first receiver. Returns when the checksum is taken; the bytes are on their way meanwhile. The event is set
    when it is over, well or not. If the state cannot be sent although the group is whole, `on_failure` is called in
    another thread, and the group breaks."""
    assert route.following is not None
    to, is_over = route.following, threading.Event()

    def send() -> None:
        try:
            _stream(parcel.letter, parcel.pieces(), parcel.await_checksum, group, inlets[to])
            emit("transfer.sent", to=to)
        except Exception as error:  # of any kind: the receivers must not wait forever
            if not group.is_broken or isinstance(error, StateChanged):
                try:
                    on_failure(error)
                finally:
                    group.break_()
        finally:
            is_over.set()

    emit("transfer.started", to=to, bytes=parcel.num_bytes)
    background.start("everstep-send-state", send, group.break_)
    parcel.sum_up()
    return is_over


def receive_state(
    group: Group,
    route: Route,
    worker: str,
    inlet: Inlet,
    inlets: Inlets,
    show: Callable[[str], None] = lambda phase: None,
    place: StateRoom | None = None,
) -> Any:
    """The leader's state, when it has arrived and was checked. Raises PeerLost if the group breaks first. `inlet`: this
    worker's own. `show`: says which phase this worker is in; it computes, as soon as it waits for no other worker.
    `place`: memory to use."""
    try:
        parcel = group.unless_broken(lambda: _take(group, route, worker, inlet, inlets, show, place))
    except OSError as error:
        raise PeerLost(f"{worker} could not receive the state: {error}", code="state-not-received") from None
    emit("transfer.received", sender=parcel.sender)
    return parcel.state()


# --- from receiver to receiver ----------------------------------------------------------------------------


def _stream(
    letter: bytes, pieces: Iterable[StatePiece], checksum: Callable[[], bytes], group: Group, inlet: list[Any]
) -> None:
    """Send to the next receiver."""
    with connect(inlet) as sock, group.cutting(sock):
        sock.sendall(_LENGTH.pack(len(letter)) + letter)
        with PageSender(sock) as pages:
            for memory, is_lasting in pieces:
                if is_lasting:
                    pages.send(memory)
                else:
                    sock.sendall(memory)
        sock.sendall(checksum())
        _heed(_exactly(sock, len(_GOOD)))


def _take(
    group: Group,
    route: Route,
    worker: str,
    inlet: Inlet,
    inlets: Inlets,
    show: Callable[[str], None],
    place: StateRoom | None,
) -> Parcel:
    """Receive, and pass on what arrives."""
    sock = inlet.accept(group)
    with sock, group.cutting(sock):
        (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size))
        parcel = Parcel(_exactly(sock, length), place.take if place is not None else room)
        if place is not None:
            place.give_back()
        _begin(parcel)
        theirs: Future[bytes] = Future()
        passing = _pass_on(parcel, group, route, inlets, theirs)
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


def _pass_on(parcel: Parcel, group: Group, route: Route, inlets: Inlets, checksum: Future[bytes]) -> Future[None]:
    following = route.following
    if following is None:
        done: Future[None] = Future()
        done.set_result(None)
        return done
    return _in_background(
        "everstep-pass-state",
        lambda: _stream(parcel.letter, parcel.filled_pieces(), checksum.result, group, inlets[following]),
        group,
    )


def _begin(parcel: Parcel) -> None:
    """Called when a state begins to arrive."""
    emit("transfer.receiving", sender=parcel.sender)


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


def _in_background(name: str, call: Callable[[], T], group: Group) -> Future[T]:
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except Exception as error:  # raised again where the result is asked for
            future.set_exception(error)

    background.start(name, work, group.break_)
    return future
