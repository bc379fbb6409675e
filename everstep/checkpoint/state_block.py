"""One state in a block of memory, with a description that is enough to write it after the death of its worker.

The first page says which state it is; then comes the description, then the image. A state is whole if its two sequence
numbers are equal: the first is set before the filling begins, the second after it has ended. Knows nothing of torch."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from everstep.checkpoint.memory import PAGE_BYTES, GrowingBlock

_HEAD = struct.Struct("<8sQQQQQQ")  # magic, begun, ended, bytes of the description, image's offset, step, its bytes
_MAGIC = b"evrstep1"
_BEGUN, _ENDED = 8, 16  # offsets of the two numbers
_NUMBER = struct.Struct("<Q")


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeState:
    """A whole state. Of two, the one with the larger sequence number is the newer."""

    sequence: int
    step: int
    description: bytes
    image_offset: int
    image_bytes: int

    def image(self, view: memoryview) -> memoryview:
        return view[self.image_offset : self.image_offset + self.image_bytes]


def needed_bytes(description: bytes, image_bytes: int) -> int:
    return _image_offset(description) + image_bytes


def begin(block: GrowingBlock, *, sequence: int, step: int, description: bytes, image_bytes: int) -> None:
    """From now on the block holds no whole state, even if this process dies."""
    block.grow(needed_bytes(description, image_bytes))
    view, offset = block.view, _image_offset(description)
    _HEAD.pack_into(view, 0, _MAGIC, sequence, 0, len(description), offset, step, image_bytes)
    view[PAGE_BYTES : PAGE_BYTES + len(description)] = description


def commit(view: memoryview) -> None:
    """All of the image is copied."""
    view[_ENDED : _ENDED + 8] = view[_BEGUN : _BEGUN + 8]


def clear(view: memoryview) -> None:
    if len(view) >= PAGE_BYTES:
        _NUMBER.pack_into(view, _BEGUN, 0)
        _NUMBER.pack_into(view, _ENDED, 0)


def read(view: memoryview) -> WholeState | None:
    """The whole state in this memory, if there is one."""
    if len(view) < PAGE_BYTES:
        return None
    magic, begun, ended, description_bytes, offset, step, image_bytes = _HEAD.unpack_from(view)
    is_whole = magic == _MAGIC and begun == ended != 0
    if not is_whole or offset + image_bytes > len(view) or PAGE_BYTES + description_bytes > offset:
        return None
    return WholeState(
        sequence=begun,
        step=step,
        description=bytes(view[PAGE_BYTES : PAGE_BYTES + description_bytes]),
        image_offset=offset,
        image_bytes=image_bytes,
    )


def sequence_of(view: memoryview) -> int:
    """The number of the last state begun here, whole or not."""
    if len(view) < PAGE_BYTES or bytes(view[:8]) != _MAGIC:
        return 0
    (number,) = _NUMBER.unpack_from(view, _BEGUN)
    return int(number)


def is_still(view: memoryview, state: WholeState) -> bool:
    """Whether no other state was begun here since; ask after reading."""
    found = _HEAD.unpack_from(view)
    return bool(found[0] == _MAGIC and found[1] == found[2] == state.sequence)


def _image_offset(description: bytes) -> int:
    return PAGE_BYTES + -(-len(description) // PAGE_BYTES) * PAGE_BYTES
