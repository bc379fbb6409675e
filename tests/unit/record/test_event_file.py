"""TensorBoard's event files are read as TensorBoard's own writers write them, also while they grow."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

from everstep.record.event_file import Damaged, Scalar, needed_bytes, read_scalars


def value(tag: str, *, simple: float | None = None, tensor: TensorProto | None = None, plugin: str = "") -> object:
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin)) if plugin else None
    return Summary.Value(tag=tag, simple_value=simple, tensor=tensor, metadata=metadata)


def written(folder: Path, *events: Event) -> bytes:
    writer = EventFileWriter(str(folder))
    for event in events:
        writer.add_event(event)
    writer.close()
    (path,) = folder.iterdir()
    return path.read_bytes()


def event(step: int, *values: object, time: float = 7.5) -> Event:
    return Event(step=step, wall_time=time, summary=Summary(value=values))


def test_plain_scalars_keep_step_time_name_and_nan(tmp_path: Path) -> None:
    data = written(
        tmp_path,
        event(0, value("loss/ü", simple=0.5), value("lr", simple=0.0)),
        event(1 << 40, value("loss/ü", simple=math.nan), time=8.25),
        event(3, value("loss/ü", simple=-math.inf)),
    )
    found, end = read_scalars(data)
    assert found[:2] == [Scalar(0, 7.5, "loss/ü", 0.5), Scalar(0, 7.5, "lr", 0.0)]
    assert found[2][:3] == (1 << 40, 8.25, "loss/ü")
    assert math.isnan(found[2].value)
    assert found[3].value == -math.inf
    assert end == len(data)


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
)
@pytest.mark.parametrize("number", [0, 3, 120])
def test_scalars_as_tensors_of_any_type_are_read(tmp_path: Path, dtype: str, number: int) -> None:
    proto = make_tensor_proto(np.array(number, dtype=dtype))
    packed = TensorProto(
        dtype=proto.dtype, tensor_shape=proto.tensor_shape, tensor_content=np.array(number, dtype=dtype).tobytes()
    )
    data = written(tmp_path, event(1, value("x", tensor=proto, plugin="scalars"), value("y", tensor=packed)))
    assert [(each.tag, each.value) for each in read_scalars(data)[0]] == [("x", number), ("y", number)]


def test_negative_numbers_and_truths_are_read(tmp_path: Path) -> None:
    numbers = [np.array(-5, "int32"), np.array(-(1 << 40), "int64"), np.array(True), np.array(-2.5)]
    data = written(tmp_path, event(1, *(value("x", tensor=make_tensor_proto(each)) for each in numbers)))
    assert [each.value for each in read_scalars(data)[0]] == [-5.0, -float(1 << 40), 1.0, -2.5]


def test_images_texts_and_tensors_with_dimensions_are_left_out(tmp_path: Path) -> None:
    data = written(
        tmp_path,
        event(1, value("a", tensor=make_tensor_proto(np.array([1.0, 2.0])))),
        event(1, value("b", tensor=make_tensor_proto(np.array(1.0)), plugin="histograms")),
        event(1, value("c", tensor=make_tensor_proto("words"), plugin="text")),
        Event(step=1, file_version="brain.Event:2"),
        event(2, value("d", simple=4.0)),
    )
    assert [each.tag for each in read_scalars(data)[0]] == ["d"]


def test_a_file_is_read_as_it_grows_byte_by_byte(tmp_path: Path) -> None:
    data = written(tmp_path, *(event(step, value("x", simple=step)) for step in range(5)))
    found, at = list[Scalar](), 0
    for size in range(len(data) + 1):
        more, num_bytes = read_scalars(data[at:size])
        assert num_bytes == 0 or num_bytes == needed_bytes(data[at:size])
        found, at = found + more, at + num_bytes
    assert [each.step for each in found] == list(range(5))


def test_a_damaged_file_is_said_to_be_and_what_comes_before_is_read(tmp_path: Path) -> None:
    data = written(tmp_path, event(1, value("x", simple=1.0)))
    found, at = read_scalars(data + b"\xff" * 100)
    assert [each.step for each in found] == [1]
    with pytest.raises(Damaged):
        read_scalars((data + b"\xff" * 100)[at:])
    with pytest.raises(Damaged):
        read_scalars(b"something that is not an event file")
