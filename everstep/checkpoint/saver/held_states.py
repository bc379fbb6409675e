"""Whole states in the saver's memory, as a storage that is read like any other.

Only checkpoints with all their shares in this memory are found. Memory has no checksums: those of the same checkpoint
on storage are used if it was written, else those of the bytes as they are found. A buffer that was overwritten while it
was read is noticed at the end. Runs without torch."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from everstep.checkpoint import state_block
from everstep.checkpoint.image import STATE_FILE, Description, unpack
from everstep.checkpoint.manifest import CheckpointKey, FileRecord, Manifest
from everstep.checkpoint.policy import Found
from everstep.checkpoint.write import checksums
from everstep.errors import CheckpointBroken

_Share = tuple[Description, state_block.WholeState, memoryview]
_File = tuple[int, int, int]  # descriptor, offset, bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldFile:
    """A buffer with a whole state."""

    descriptor: int
    is_written: bool  # to storage


class HeldStates:
    """Storage's reading calls, over the buffers of a node. It closes the files that it gets."""

    def __init__(self, uri: str, files: Sequence[HeldFile]) -> None:
        self.uri = f"the memory of this node, for {uri}"
        self._descriptors = [file.descriptor for file in files]
        self._written: set[tuple[CheckpointKey, str]] = set()
        self._shares: dict[tuple[CheckpointKey, str], dict[int, _Share]] = {}
        self._files: dict[str, _File] = {}
        for file in files:
            self._add(file)

    def find(self, stored: Sequence[Found] = ()) -> list[Found]:
        """Whole states that are on storage too, or were not written yet and are newer than all on storage: others were
        deleted."""
        known = {each.key: each.manifest for each in stored if each.manifest is not None}
        newest = max((each.key for each in stored if each.is_whole), default=None)
        found = []
        for (key, save), shares in self._shares.items():
            twin = known.get(key)
            is_whole = len(shares) == next(iter(shares.values()))[0].share.size
            if is_whole and twin is not None and twin.save == save:
                found.append(Found(key=key, manifest=twin))
            elif is_whole and twin is None and (key, save) not in self._written and (newest is None or key > newest):
                found.append(Found(key=key, manifest=self._manifest(shares)))
        return found

    def check(self, key: CheckpointKey) -> None:
        """Call it after reading: CheckpointBroken if the state was overwritten meanwhile."""
        for (its_key, _), shares in self._shares.items():
            if its_key == key and not all(state_block.is_still(view, state) for _, state, view in shares.values()):
                raise CheckpointBroken(
                    f"{self.uri}: {key.folder} was overwritten while it was read", code="state-overwritten"
                )

    def read(self, name: str, start: int = 0, size_bytes: int | None = None) -> bytes:
        descriptor, offset, size = self._file(name)
        wanted = size - start if size_bytes is None else min(size_bytes, size - start)
        return os.pread(descriptor, max(0, wanted), offset + start)

    def read_into(self, name: str, start: int, buffers: Sequence[memoryview]) -> int:
        """By the kernel, without the GIL."""
        (descriptor, offset, size), done = self._file(name), 0
        for buffer in buffers:
            piece = buffer[: max(0, size - start - done)]
            while len(piece) and (got := os.preadv(descriptor, [piece], offset + start + done)):
                piece, done = piece[got:], done + got
        return done

    def close(self) -> None:
        self._files.clear()
        self._shares.clear()
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _add(self, held: HeldFile) -> None:
        file = held.descriptor
        size = os.fstat(file).st_size
        if not size:
            return
        view = memoryview(mmap.mmap(file, size, prot=mmap.PROT_READ))
        if (state := state_block.read(view)) is None:
            return
        try:
            what = unpack(state.description)
        except CheckpointBroken:
            return
        key, save = what.manifest.key, what.manifest.save
        self._shares.setdefault((key, save), {})[what.share.rank] = (what, state, view)
        if held.is_written:
            self._written.add((key, save))
        for each in what.files:
            self._files[f"{key.folder}/{save}/{each.name}"] = (file, state.image_offset + each.offset, each.size_bytes)

    def _manifest(self, shares: dict[int, _Share]) -> Manifest:
        first = shares[0][0].manifest
        records = []
        for rank in sorted(shares):
            what, state, view = shares[rank]
            image = state.image(view)
            for each in what.files:
                sums = checksums(image[each.offset : each.offset + each.size_bytes])
                records.append(FileRecord(name=f"{first.save}/{each.name}", size_bytes=each.size_bytes, crc32=sums))
        return replace(first, files=tuple(records), state=f"{first.save}/{STATE_FILE}")

    def _file(self, name: str) -> _File:
        try:
            return self._files[name]
        except KeyError:
            raise FileNotFoundError(name) from None
