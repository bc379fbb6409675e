"""Which chunks of a log can hold a text: a filter of 4 KiB for each, with the three-byte pieces of its words.

Pure. May say yes where the text is not; never says no where it is."""

from __future__ import annotations

NUM_BITS = 1 << 15
FILTER_BYTES = NUM_BITS // 8
_MIX = 0x9E3779B1  # an odd number without a pattern: near pieces get bits far from each other


def build_filter(text: bytes) -> bytes:
    """By words, each taken once: a log repeats itself, and pieces across spaces are many and tell little."""
    bits = bytearray(FILTER_BYTES)
    pieces = {word[at : at + 3] for word in set(text.split()) for at in range(len(word) - 2)}
    for piece in pieces:
        bit = _bit(piece)
        bits[bit >> 3] |= 1 << (bit & 7)
    return bytes(bits)


def bits_of(needle: bytes) -> tuple[int, ...]:
    """Those that the filter of a chunk with this text must have; none if the text is too short to tell."""
    return tuple({_bit(word[at : at + 3]) for word in needle.split() for at in range(len(word) - 2)})


def may_hold(bits: tuple[int, ...], chunk_filter: bytes) -> bool:
    return all(chunk_filter[bit >> 3] & (1 << (bit & 7)) for bit in bits)


def _bit(piece: bytes) -> int:
    return (int.from_bytes(piece, "little") * _MIX & 0xFFFFFFFF) >> 17
