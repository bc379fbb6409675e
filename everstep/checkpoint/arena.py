"""The arena: two slots in turn, so that the last state stays whole in memory while the next one is being copied.

A slot that is being written to storage is busy and not filled before that has ended. The memory grows with the state
and is at hand before it is used, as soon as somebody says how much will be needed (`expect`). Knows nothing of torch."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from everstep.checkpoint import slot
from everstep.checkpoint.memory import Block
from everstep.checkpoint.room import Memory, Room, decide_room, look_for_memory
from everstep.errors import TemporaryError

log = logging.getLogger("everstep")

_HEAD_BYTES = 64 << 10  # for what a slot holds beside the image, when only the image's size is known
_GIVE_BACK_SHARE = 0.5  # of a slot is in use, or less: the rest is given back


class Busy(TemporaryError):
    """Every slot that may be filled is still being written."""


@dataclass(frozen=True, slots=True)
class Filling:
    """A slot that was begun. `image` is where the bytes go; then `commit`. Without it, it never was."""

    index: int
    sequence: int
    block: Block
    image: memoryview
    _done: Callable[[int, bool], None]

    def commit(self) -> None:
        slot.commit(self.block.view)
        self._done(self.index, True)

    def abandon(self) -> None:
        self._done(self.index, False)


class Arena:
    """For one thread that fills; `release` and `expect` may be called from any."""

    def __init__(
        self,
        blocks: Sequence[Block] = (),
        *,
        busy: Sequence[int] = (),
        prepare: Callable[[Block], None] = lambda block: None,
        look: Callable[[], Memory] = look_for_memory,
    ) -> None:
        """`blocks` are two, private ones if none are given. `busy` are those still being written for somebody who has
        died. `prepare` is called for a block whose pages have been touched."""
        self._blocks = list(blocks) or [Block(), Block()]
        self._prepare, self._look = prepare, look
        self._num_slots = len(self._blocks)
        self._told = ""
        self._changed = threading.Condition()
        self._busy = set(busy)
        self._filling: int | None = None
        self._sequence = max(slot.sequence_of(block.view) for block in self._blocks)
        self._expected_bytes = 0
        self._toucher: threading.Thread | None = None
        self._is_closed = False

    @property
    def num_slots(self) -> int:
        return self._num_slots

    @property
    def is_shared(self) -> bool:
        """Whether another process can write what is here."""
        return all(block.is_shared for block in self._blocks)

    def expect(self, image_bytes: int) -> None:
        """A state of about this size will come: have the memory ready, in the background."""
        with self._changed:
            if image_bytes <= self._expected_bytes or self._is_closed:
                return
            self._expected_bytes = image_bytes
            if self._toucher is None:
                self._toucher = threading.Thread(target=self._touch, name="everstep arena", daemon=True)
                self._toucher.start()

    def is_free(self) -> bool:
        with self._changed:
            return self._next() is not None

    def wait_free(self, timeout_s: float | None = None) -> bool:
        """Until there is a slot to fill; whether there is one in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while self._next() is None:
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return False
                self._changed.wait(left_s)
        return True

    def begin(self, *, generation: int, step: int, description: bytes, image_bytes: int) -> Filling:
        """Take the slot whose state is the oldest. What it held is gone. Busy if it cannot be had now."""
        with self._changed:
            self._make_room(slot.needed_bytes(description, image_bytes))
            index = self._next()
            if index is None:
                raise Busy("the last checkpoint is still being written", hint="save less often, or to a faster storage")
            self._filling = index
            self._sequence += 1
            block = self._blocks[index]
            slot.begin(
                block,
                sequence=self._sequence,
                generation=generation,
                step=step,
                description=description,
                image_bytes=image_bytes,
            )
            used = slot.needed_bytes(description, image_bytes)
            if used < block.size_bytes * _GIVE_BACK_SHARE:
                block.give_back(max(used, self._expected_bytes + _HEAD_BYTES))
            return Filling(index, self._sequence, block, slot.image_view(block.view), self._end_filling)

    def hold(self, index: int) -> None:
        """It is being written."""
        with self._changed:
            self._busy.add(index)

    def release(self, index: int) -> None:
        """It is written, or will not be."""
        with self._changed:
            self._busy.discard(index)
            self._changed.notify_all()

    def newest(self) -> int | None:
        """The slot of the newest whole state."""
        with self._changed:
            return self._newest()

    def state(self, index: int) -> tuple[slot.State, memoryview] | None:
        view = self._blocks[index].view
        found = slot.read(view)
        return (found, view) if found is not None else None

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            toucher = self._toucher
        if toucher is not None:
            toucher.join()
        for block in self._blocks:
            block.close()

    # --- which slot -----------------------------------------------------------------------------------

    def _next(self) -> int | None:
        usable = range(self._num_slots)
        keep = self._newest() if self._num_slots > 1 else None
        free = [index for index in usable if index not in self._busy and index not in (keep, self._filling)]
        return min(free, key=lambda index: slot.sequence_of(self._blocks[index].view), default=None)

    def _newest(self) -> int | None:
        states = {index: slot.read(block.view) for index, block in enumerate(self._blocks)}
        whole = {index: state.sequence for index, state in states.items() if state is not None}
        return max(whole, key=lambda index: whole[index], default=None)

    def _end_filling(self, index: int, is_whole: bool) -> None:
        with self._changed:
            self._filling = None
            self._changed.notify_all()

    # --- memory ---------------------------------------------------------------------------------------

    def _make_room(self, needed: int) -> None:
        """Where there is too little for two slots, one must do; where there is too little for that, a file."""
        held = sum(block.size_bytes for block in self._blocks)
        if all(block.size_bytes >= needed for block in self._blocks[: self._num_slots]):
            return
        room = decide_room(needed, self._look(), held_bytes=held)
        self._tell(room)
        if room.num_slots == 2 or not self._may_drop():
            return
        self._num_slots = 1
        for block in self._blocks[1:]:
            block.give_back(0)
        if room.num_slots == 0:
            self._blocks[0].give_back(0)
            self._blocks = [Block(_file_on_disk())]

    def _may_drop(self) -> bool:
        """Slots that somebody still reads or fills stay."""
        return self._num_slots > 1 and not self._busy and self._filling is None

    def _tell(self, room: Room) -> None:
        if room.num_slots < 2 and room.reason != self._told:
            self._told = room.reason
            log.warning("checkpoints: %s", room.reason)

    def _touch(self) -> None:
        done = 0
        while True:
            with self._changed:
                wanted = self._expected_bytes + _HEAD_BYTES
                if wanted <= done or self._is_closed:
                    self._toucher = None
                    return
                if self._filling is None and not self._busy:
                    self._make_room(wanted)
                    for block in self._blocks[: self._num_slots]:
                        self._enlarge(block, wanted)
                blocks = self._blocks[: self._num_slots]
            for block in blocks:
                block.touch(wanted)
                self._prepare(block)
            done = wanted

    def _enlarge(self, block: Block, wanted: int) -> None:
        """A private block loses what it held when it grows: its state must not be the newest."""
        if block.is_shared or slot.read(block.view) is None:
            block.grow(wanted)


def _file_on_disk() -> int:
    with tempfile.TemporaryFile(prefix="everstep-") as file:
        return os.dup(file.fileno())
