"""Files that are damaged or hostile: seen, named, never run, and never a reason to lose what is whole."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import everstep
from everstep.checkpoint import manifest as manifests
from everstep.checkpoint.catalog import find, look, verify
from everstep.checkpoint.load import read_state
from everstep.checkpoint.strict_json import parse
from everstep.checkpoint.tensor_files import parse_header, parse_length, parse_state
from everstep.checkpoint.write import checksums
from everstep.errors import CheckpointBroken
from everstep.storage.local import LocalStorage

STATE = {"w": torch.arange(50, dtype=torch.float32), "b": torch.ones(3, dtype=torch.bfloat16), "step": 7, "name": "x"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "ckpt"
    with everstep.Checkpointer(folder) as checkpointer:
        checkpointer.save(1, STATE, wait=True)
    return folder


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_flipped_bit_anywhere_is_found(whole: Path, tmp_path: Path, data: st.DataObject) -> None:
    victim = data.draw(st.sampled_from([path.relative_to(whole) for path in files_of(whole)]))
    content = bytearray((whole / victim).read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    _must_be_found(whole, tmp_path, victim, bytes(content))


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_file_that_ends_early_is_found(whole: Path, tmp_path: Path, data: st.DataObject) -> None:
    victim = data.draw(st.sampled_from([path.relative_to(whole) for path in files_of(whole)]))
    content = (whole / victim).read_bytes()
    _must_be_found(whole, tmp_path, victim, content[: data.draw(st.integers(0, len(content) - 1))])


def _must_be_found(whole: Path, tmp_path: Path, victim: Path, content: bytes) -> None:
    """By `verify`, and by reading alone, even when no one has checked the sizes before."""
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(whole, copy)
    manifest = find(LocalStorage(str(copy)))[0].manifest
    (copy / victim).write_bytes(content)
    storage = LocalStorage(str(copy))
    (found,) = find(storage)
    if victim.name == manifests.MANIFEST and json_equal((whole / victim).read_bytes(), content):
        return  # white space between the fields
    assert list(verify(storage, found))
    if victim.name != manifests.MANIFEST:
        assert manifest is not None
        with pytest.raises(
            CheckpointBroken, match=f"{victim.name}|tensor '"
        ):  # a changed name of a tensor is found first
            read_state(storage, manifest)


def json_equal(one: bytes, other: bytes) -> bool:
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


def test_the_newest_whole_one_is_loaded_and_the_broken_one_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with everstep.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"w": torch.ones(9)}, wait=True)
        checkpointer.save(2, {"w": torch.ones(9) * 2}, wait=True)
        (broken,) = tmp_path.glob("*-*2/*/part*")
        content = bytearray(broken.read_bytes())
        content[-1] ^= 1
        broken.write_bytes(content)

        with caplog.at_level(logging.WARNING):
            state = checkpointer.load()

        assert state["w"].unique().tolist() == [1]
        assert checkpointer.loaded is not None and checkpointer.loaded.step == 1
        assert broken.name in caplog.text and "checksum" in caplog.text
        with pytest.raises(CheckpointBroken, match="bytes 0 to"):
            checkpointer.load(2)


def test_when_all_are_broken_it_is_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    with everstep.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"w": torch.ones(9)}, wait=True)
        (broken,) = tmp_path.glob("*-*1/*/part*")
        broken.unlink()

        with pytest.raises(CheckpointBroken, match="is missing"):
            checkpointer.load()


def test_an_incomplete_one_is_invisible(tmp_path: Path) -> None:
    with everstep.Checkpointer(tmp_path) as checkpointer:
        (tmp_path / "000000-000000000009").mkdir()
        assert checkpointer.load() is None
        checkpointer.save(1, {"w": 1}, wait=True)
        assert checkpointer.load() == {"w": 1}


# --- hostile files, whose checksums agree ---


def head(record: Any, extra: bytes = b"") -> bytes:
    text = record if isinstance(record, bytes) else json.dumps(record).encode()
    return len(text).to_bytes(8, "little") + text + extra


def tensor(shape: list[Any], start: Any, end: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "expected 8 bytes"),
        (b"\xff" * 8, "expected a header within the file's 8 bytes"),
        (head(b"{"), "at byte 9: expected JSON"),
        (head(b"\xff\xfe"), "expected UTF-8"),
        (head(b"[" * 100_000), "nested too deeply"),
        (head(b"[]"), "expected an object"),
        (head(b'{"a":1,"a":2}'), "key 'a' occurs twice"),
        (head(b'{"a":' + b"9" * 5000 + b"}"), "expected JSON"),
        (head(b'{"a":NaN}'), "found NaN"),
        (head({"a": 1}), "expected an object, found 1"),
        (head({"a": tensor([1], 0, 4)}), "expected the end of the file"),
        (head({"a": tensor([1], 0, 4)}, bytes(9)), "expected the end of the file"),
        (head({"a": tensor([2], 0, 4)}, bytes(4)), "expected 8 bytes, data_offsets give 4"),
        (head({"a": tensor([-1], 0, 4)}, bytes(4)), "'shape' must be a natural number"),
        (head({"a": tensor([True], 0, 4)}, bytes(4)), "'shape' must be a natural number"),
        (head({"a": tensor([1 << 40, 1 << 40], 0, 4)}, bytes(4)), "impossible shape"),
        (head({"a": tensor([1], 4, 8)}, bytes(8)), "to begin at"),
        (head({"a": tensor([1], 0, 4), "b": tensor([1], 0, 4)}, bytes(4)), "to begin at"),
        (head({"a": tensor([1], 0, 4, "PICKLE")}, bytes(4)), "type 'PICKLE' is unknown"),
        (head({"a": {"dtype": "F32", "shape": [1]}}, bytes(4)), "'data_offsets' is missing"),
    ],
)
def test_a_hostile_header_is_refused_with_its_place(content: bytes, says: str) -> None:
    with pytest.raises(CheckpointBroken) as refused:
        length = parse_length(content[:8], len(content), "f.safetensors")
        parse_header(content[8 : 8 + length], len(content), "f.safetensors")
    assert "f.safetensors" in str(refused.value) and says in str(refused.value)


@given(st.binary(max_size=200))
def test_noise_is_refused_in_words(noise: bytes) -> None:
    for read in (lambda: manifests.parse_manifest(noise, "m"), lambda: parse_state(noise, "s")):
        with pytest.raises(CheckpointBroken):
            read()
    with pytest.raises(CheckpointBroken):
        parse_header(noise, len(noise) + 9, "f")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["tensor", "dict", "tuple", "bytes", "float", "module", "counter", "ndarray", "x"]), inner,
        max_size=2,
    ),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(json_values)
def test_a_hostile_skeleton_gives_a_value_or_an_error_in_words(whole: Path, tmp_path: Path, skeleton: Any) -> None:
    storage = LocalStorage(str(tmp_path / "forged"))
    shutil.copytree(whole, storage.root, dirs_exist_ok=True)
    forged = _forge(storage, lambda record: record | {"skeleton": skeleton})
    with contextlib.suppress(CheckpointBroken):
        read_state(storage, forged)


def _forge(storage: LocalStorage, change: Any) -> manifests.Manifest:
    """state.json with another content, and a manifest that says that it must be so."""
    from dataclasses import replace

    (found,) = find(storage)
    assert found.manifest is not None
    path = storage.root / found.key.folder / found.manifest.state
    text = json.dumps(change(json.loads(path.read_bytes()))).encode()
    path.write_bytes(text)
    ours = replace(found.manifest.files[0], size_bytes=len(text), crc32=checksums(memoryview(text)))
    return replace(found.manifest, files=(ours, *found.manifest.files[1:]))


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([["w", "F32", [50], False, False]], "is not part of the state"),
        ([["w", "F32", [50], False, False], ["b", "BF16", [3], False, False], ["c", "F32", [1], False, False]], "in 0"),
        ([["w", "F32", [25, 2], False, False], ["b", "BF16", [3], False, False]], "has shape"),
        ([["w", "I32", [50], False, False], ["b", "BF16", [3], False, False]], "has type F32, expected I32"),
        ([["w", "F64", [50], True, False], ["b", "BF16", [3], False, False]], "cannot be"),
        ([["w", "F32", [50], False, True], ["b", "BF16", [3], False, False]], "expected a block"),
        ([["w", "F32"]], "'tensors' must be list"),
    ],
)
def test_tensors_that_are_not_those_of_the_state_are_refused(
    whole: Path, tmp_path: Path, rows: list[Any], says: str
) -> None:
    storage = LocalStorage(str(tmp_path / "forged"))
    shutil.copytree(whole, storage.root)
    with pytest.raises(CheckpointBroken, match=says):
        read_state(storage, _forge(storage, lambda record: record | {"tensors": rows}))


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/../b", "a\\b", "a//b", ".hidden"])
def test_a_manifest_cannot_name_a_file_outside_its_folder(name: str) -> None:
    with pytest.raises(CheckpointBroken, match="is not the name of a checkpoint's file"):
        parse(manifests.FileRecord, {"name": name, "size_bytes": 0, "block_bytes": 1, "crc32": []}, "m")


def test_a_manifest_without_files_is_broken_and_the_one_before_is_loaded(tmp_path: Path) -> None:
    with everstep.Checkpointer(tmp_path) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, {"step": step}, wait=True)
        key = checkpointer.list()[-1].key
        empty = manifests.Manifest(generation=key.generation, step=key.step, save="s", time=0.0)
        (tmp_path / key.folder / "manifest.json").write_bytes(manifests.to_json(empty))

        assert checkpointer.load() == {"step": 1}
        with pytest.raises(CheckpointBroken, match="the state file"):
            checkpointer.load(2)


def test_a_checkpoint_of_a_newer_format_is_never_deleted_nor_replaced(tmp_path: Path) -> None:
    """A job went on for a while with a newer version, and is now back with this one."""
    with everstep.Checkpointer(tmp_path, keep_latest=1) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, {"step": step}, wait=True)
    newer = tmp_path / "000000-000000000005"
    shutil.copytree(tmp_path / "000000-000000000002", newer)
    record = json.loads((newer / "manifest.json").read_text()) | {"format": 99}
    (newer / "manifest.json").write_text(json.dumps(record))

    with everstep.Checkpointer(tmp_path, keep_latest=1) as checkpointer:
        assert checkpointer.load() == {"step": 2}
        for step in (3, 4, 5, 6, 7):
            checkpointer.save(step, {"step": step}, wait=True)

        assert [each.step for each in checkpointer.list()] == [5, 7]
    assert json.loads((newer / "manifest.json").read_text()) == record


def test_a_manifest_of_a_newer_format_says_so(whole: Path, tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path / "newer"))
    shutil.copytree(whole, storage.root)
    (path,) = storage.root.glob("*/manifest.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))

    assert "format 99 is newer than 1" in look(storage, find(storage)[0].key).problem
