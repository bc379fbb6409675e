"""Two buffers in turn: the last state stays whole in memory while the next one is copied.

A buffer that is being written to storage is busy and not filled before that has ended. The memory grows with the state,
and its pages are touched before they are used, once `expect` gives the size. Knows nothing of torch."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from everstep.checkpoint import state_block
from everstep.checkpoint.memory import GrowingBlock, Memory, decide_room, look_for_memory

log = logging.getLogger("everstep")

_HEAD_BYTES = 64 << 10  # for the description, when only the image's size is known
_GIVE_BACK_SHARE = 0.5  # of a buffer is in use, or less: the rest is given back


@dataclass(frozen=True, slots=True)
class Filling:
    """A buffer that was begun. Fill `image`, then `commit` it: without that, the state does not exist."""

    index: int
    sequence: int
    block: GrowingBlock
    image: memoryview
    offset: int  # of the image in the block


class DoubleBuffer:
    """`reserve` a buffer, `begin` it, fill it, `commit`; from any thread."""

    def __init__(
        self,
        blocks: Sequence[GrowingBlock] = (),
        *,
        busy: Sequence[int] = (),
        prepare: Callable[[GrowingBlock], None] = lambda block: None,
        look: Callable[[], Memory] = look_for_memory,
    ) -> None:
        """`blocks` are two, private ones if none are given. `busy` are those still being written for a worker that has
        died. `prepare` is called for a block whose pages have been touched."""
        self._blocks = list(blocks) or [GrowingBlock(), GrowingBlock()]
        self._prepare, self._look = prepare, look
        self._usable = list(range(len(self._blocks)))
        self._last_warning = ""
        self._changed = threading.Condition()
        self._busy = set(busy)  # being written
        self._reserved: set[int] = set()  # being filled
        self._sequence = max(state_block.sequence_of(block.view) for block in self._blocks)
        self._expected_bytes = 0
        self._toucher: threading.Thread | None = None
        self._is_on_disk = False
        self._is_closed = False

    @property
    def is_shared(self) -> bool:
        """Whether another process can write these states."""
        return not self._is_on_disk and all(block.is_shared for block in self._blocks)

    def expect(self, image_bytes: int) -> None:
        """A state of about this size will come: have the memory ready, in the background."""
        with self._changed:
            if image_bytes <= self._expected_bytes or self._is_closed:
                return
            self._expected_bytes = image_bytes
            if self._toucher is None:
                self._toucher = threading.Thread(target=self._touch, name="everstep buffers", daemon=True)
                self._toucher.start()

    def reserve(self, *, may_wait: bool = True) -> int | None:
        """The buffer with the oldest state, to be filled. Waits for copies under way, which are quick, and for writes
        only if it may. None: all free buffers are being written."""
        with self._changed:
            while (index := self._next()) is None:
                if not may_wait and not self._reserved:
                    return None
                self._changed.wait()
            self._reserved.add(index)
            return index

    def begin(self, index: int, step: int, *, description: bytes, image_bytes: int) -> Filling:
        """The buffer's last state is gone."""
        used = state_block.needed_bytes(description, image_bytes)
        with self._changed:
            self._make_room(used, index)
            self._sequence += 1
            block = self._blocks[index]
            state_block.begin(
                block, sequence=self._sequence, step=step, description=description, image_bytes=image_bytes
            )
            if used < block.size_bytes * _GIVE_BACK_SHARE:
                block.give_back(max(used, self._expected_bytes + _HEAD_BYTES))
            offset = used - image_bytes
            return Filling(index, self._sequence, block, block.view[offset:used], offset)

    def commit(self, filling: Filling, *, will_be_written: bool) -> None:
        """The state is whole. If it will be written, the buffer is busy from now on."""
        state_block.commit(filling.block.view)
        with self._changed:
            self._reserved.discard(filling.index)
            if will_be_written:
                self._busy.add(filling.index)
            self._changed.notify_all()

    def release(self, index: int) -> None:
        """It was written, or will not be filled or written."""
        with self._changed:
            self._reserved.discard(index)
            self._busy.discard(index)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            toucher = self._toucher
        if toucher is not None:
            toucher.join()
        for block in self._blocks:
            block.close()

    # --- which buffer -----------------------------------------------------------------------------------

    def _next(self) -> int | None:
        taken = self._busy | self._reserved
        if len(self._usable) > 1 and (newest := self._newest()) is not None:
            taken |= {newest}
        free = [index for index in self._usable if index not in taken]
        return min(free, key=lambda index: state_block.sequence_of(self._blocks[index].view), default=None)

    def _newest(self) -> int | None:
        states = {index: state_block.read(block.view) for index, block in enumerate(self._blocks)}
        whole = {index: state.sequence for index, state in states.items() if state is not None}
        return max(whole, key=lambda index: whole[index], default=None)

    # --- memory ---------------------------------------------------------------------------------------

    def _make_room(self, needed: int, index: int) -> None:
        """Where two buffers do not fit, use this one alone; where that does not fit either, a file."""
        if all(self._blocks[each].size_bytes >= needed for each in self._usable):
            return
        room = decide_room(needed, self._look(), held_bytes=sum(block.size_bytes for block in self._blocks))
        if room.num_buffers == 2:
            return
        if room.reason != self._last_warning:
            self._last_warning = room.reason
            log.warning("checkpoints: %s", room.reason)
        if self._busy or self._reserved - {index}:  # the other buffer is in use
            return
        self._usable = [index]
        for each, block in enumerate(self._blocks):
            if each != index or room.num_buffers == 0:
                state_block.clear(block.view)
                block.give_back(0)
        if room.num_buffers == 0 and not self._is_on_disk:
            self._blocks[index], self._is_on_disk = GrowingBlock(_file_on_disk()), True

    def _touch(self) -> None:
        done = 0
        while True:
            with self._changed:
                wanted = self._expected_bytes + _HEAD_BYTES
                if wanted <= done or self._is_closed:
                    self._toucher = None
                    return
                if not self._reserved and not self._busy:
                    self._make_room(wanted, self._usable[0])
                    for block in (self._blocks[index] for index in self._usable):
                        # A private block loses its content when it grows: it must not hold a state.
                        if block.is_shared or state_block.read(block.view) is None:
                            block.grow(wanted)
                blocks = [] if self._is_on_disk else [self._blocks[index] for index in self._usable]
            for block in blocks:
                block.touch(wanted)
                self._prepare(block)
            done = wanted


def _file_on_disk() -> int:
    with tempfile.TemporaryFile(prefix="everstep-") as file:
        return os.dup(file.fileno())
