"""Whole states in the vault's memory, as a storage that is read like any other.

Only checkpoints all of whose shares are here are found. Memory has no checksums of its own: those of the same
checkpoint on storage are used where it was written, else those of the bytes as they are found. A slot that was begun
anew while it was read is noticed at the end. Runs without torch."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType

from everstep.checkpoint import slot
from everstep.checkpoint.catalog import Found
from everstep.checkpoint.description import Description, unpack
from everstep.checkpoint.image import STATE_FILE
from everstep.checkpoint.manifest import FileRecord, Key, Manifest
from everstep.checkpoint.write import checksums
from everstep.errors import CheckpointBroken

_Share = tuple[Description, slot.State, memoryview]


class HeldStates:
    """Storage's reading calls, over the slots of a node. It closes the files that it is given."""

    file_bytes = 1 << 62

    def __init__(self, uri: str, files: Sequence[int]) -> None:
        self.uri = f"the memory of this node, for {uri}"
        self._shares: dict[tuple[Key, str], dict[int, _Share]] = {}
        self._files: dict[str, memoryview] = {}
        for file in files:
            try:
                self._add(file)
            finally:
                os.close(file)

    def find(self, stored: Sequence[Found] = ()) -> list[Found]:
        """The whole ones, oldest first. `stored` is what is on storage."""
        known = {each.key: each.manifest for each in stored if each.manifest is not None}
        found = []
        for (key, save), shares in sorted(self._shares.items(), key=lambda each: each[0]):
            size = next(iter(shares.values()))[0].layout.share.size
            if len(shares) == size:
                twin = known.get(key)
                found.append(Found(key=key, manifest=self._manifest(shares, twin if _is_of(twin, save) else None)))
        return found

    def check(self, key: Key) -> None:
        """To be called after reading: CheckpointBroken if it has been overwritten meanwhile."""
        for (its_key, _), shares in self._shares.items():
            if its_key == key and not all(slot.is_still(view, state) for _, state, view in shares.values()):
                raise CheckpointBroken(f"{self.uri}: {key.folder} was overwritten while it was read")

    def read(self, name: str, start: int = 0, size_bytes: int | None = None) -> bytes:
        data = self._file(name)
        return bytes(data[start : len(data) if size_bytes is None else start + size_bytes])

    def read_into(self, name: str, start: int, buffers: Sequence[memoryview]) -> int:
        data, at = self._file(name), start
        for buffer in buffers:
            piece = data[at : at + len(buffer)]
            buffer[: len(piece)] = piece
            at += len(piece)
        return at - start

    def list(self, folder: str = "") -> dict[str, int | None]:
        inside = f"{folder}/" if folder else ""
        return {name[len(inside) :]: len(data) for name, data in self._files.items() if name.startswith(inside)}

    def put(self, name: str, data: memoryview | bytes) -> None:
        raise PermissionError(f"{self.uri} is only read")

    def delete(self, name: str) -> None:
        raise PermissionError(f"{self.uri} is only read")

    def close(self) -> None:
        self._files.clear()
        self._shares.clear()

    def __enter__(self) -> HeldStates:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _add(self, file: int) -> None:
        size = os.fstat(file).st_size
        if not size:
            return
        view = memoryview(mmap.mmap(file, size, prot=mmap.PROT_READ))
        if (state := slot.read(view)) is None:
            return
        try:
            what = unpack(state.description)
        except CheckpointBroken:
            return
        key, save = what.manifest.key, what.manifest.save
        self._shares.setdefault((key, save), {})[what.layout.share.rank] = (what, state, view)
        image = state.image(view)
        for each in what.layout.files:
            name = f"{key.folder}/{save}/{each.name}"
            self._files[name] = image[each.offset : each.offset + each.size_bytes]

    def _manifest(self, shares: dict[int, _Share], twin: Manifest | None) -> Manifest:
        if twin is not None:
            return twin
        what = shares[0][0]
        save = what.manifest.save
        records = []
        for rank in sorted(shares):
            for each in shares[rank][0].layout.files:
                data = self._files[f"{what.manifest.key.folder}/{save}/{each.name}"]
                records.append(
                    FileRecord(name=f"{save}/{each.name}", size_bytes=each.size_bytes, crc32=checksums(data))
                )
        return replace(what.manifest, files=tuple(records), state=f"{save}/{STATE_FILE}")

    def _file(self, name: str) -> memoryview:
        try:
            return self._files[name]
        except KeyError:
            raise FileNotFoundError(name) from None


def _is_of(manifest: Manifest | None, save: str) -> bool:
    return manifest is not None and manifest.save == save
