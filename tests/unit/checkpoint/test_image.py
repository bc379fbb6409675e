"""The layout of an image: what each worker writes, where, and that others can read it."""

from __future__ import annotations

import math

import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.checkpoint.export import runs
from everstep.checkpoint.image import (
    ITEM_BYTES,
    PAGE_BYTES,
    ImageShare,
    Piece,
    TensorMeta,
    lay_out,
    put_heads,
    share_of,
)
from everstep.errors import UsageError

shapes = st.lists(st.integers(0, 7), max_size=3).map(tuple)
metas = st.lists(st.tuples(st.sampled_from(sorted(ITEM_BYTES)), shapes), max_size=12).map(
    lambda rows: [TensorMeta(name=f"t.{i}", dtype=d, shape=s) for i, (d, s) in enumerate(rows)]
)


@given(metas, st.integers(1, 5), st.integers(1, 200))
def test_each_tensor_is_in_one_share_and_any_reader_finds_it(
    tensors: list[TensorMeta], num_shares: int, file_bytes: int
) -> None:
    found: list[str] = []
    for rank in range(num_shares):
        layout = lay_out({"a": 1}, tensors, ImageShare(rank=rank, size=num_shares), file_bytes=file_bytes)
        image = memoryview(bytearray(layout.size_bytes))
        put_heads(layout, image)
        for file in layout.files:
            assert file.offset % PAGE_BYTES == 0
            if file.name.endswith(".safetensors"):
                found += dict(safetensors.deserialize(bytes(image[file.offset : file.offset + file.size_bytes])))
        for each in layout.slices:
            assert each.offset % ITEM_BYTES[tensors[each.index].dtype] == 0
            assert each.offset + each.size_bytes <= layout.size_bytes
    assert sorted(found) == sorted(each.name for each in tensors)


def test_shares_are_runs_of_about_equal_bytes() -> None:
    tensors = [TensorMeta(name=str(i), dtype="F32", shape=(100,)) for i in range(12)]

    assert share_of(tensors, 4) == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert share_of(tensors, 5) == sorted(share_of(tensors, 5))


def test_a_sharded_tensor_is_written_by_all_who_hold_a_piece() -> None:
    piece = Piece(start=(2, 0), shape=(2, 3))
    holder = TensorMeta(name="w", dtype="F32", shape=(4, 3), is_sharded=True, piece=piece)
    layout = lay_out({}, [holder], ImageShare(rank=1, size=2))

    (each,) = layout.slices
    assert each.size_bytes == 24
    assert b"w[2:4,0:3]" in layout.heads[0]


def test_all_workers_have_the_same_digest_whatever_piece_they_hold() -> None:
    one = TensorMeta(name="w", dtype="F32", shape=(4,), is_sharded=True, piece=Piece(start=(0,), shape=(2,)))
    other = TensorMeta(name="w", dtype="F32", shape=(4,), is_sharded=True)

    assert (
        lay_out({}, [one], ImageShare(rank=0, size=2)).digest == lay_out({}, [other], ImageShare(rank=1, size=2)).digest
    )


def test_two_tensors_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError) as refused:
        lay_out({}, [TensorMeta(name="a", dtype="F32", shape=())] * 2)
    assert refused.value.code == "tensor-name-twice"


@given(st.data())
@settings(deadline=None)
def test_runs_of_a_block_put_its_bytes_where_they_belong(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    start = tuple(data.draw(st.integers(0, each - 1)) for each in shape)
    size = tuple(data.draw(st.integers(1, each - at)) for each, at in zip(shape, start, strict=True))
    whole = [-1] * math.prod(shape)
    for source, target, length in runs(Piece(start=start, shape=size), shape, 1):
        whole[target : target + length] = range(source, source + length)

    import numpy as np

    block = np.array(whole).reshape(shape)[tuple(slice(a, a + b) for a, b in zip(start, size, strict=True))]
    assert block.reshape(-1).tolist() == list(range(math.prod(size)))
    assert sum(each >= 0 for each in whole) == math.prod(size)
