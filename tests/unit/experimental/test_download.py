"""`get_checkpoint(uuid).download()`: code and state, as a folder that stands alone."""

from __future__ import annotations

from pathlib import Path

import pytest

import everstep
from everstep.checkpoint.download import has_state
from everstep.checkpoint.index import checkpoint_uuid, record
from everstep.errors import CheckpointBroken
from everstep.experimental import client


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def save(place: Path | str, step: int, code: Path | None = None, weight: float | None = None) -> str:
    with everstep.Checkpointer(place, code=code) as checkpointer:
        checkpointer.save(step, {"weight": float(step) if weight is None else weight}, wait=True)
    uuid = checkpoint_uuid(place, step)
    record(uuid, place, step)
    return uuid


def test_the_state_comes_with_the_code(tmp_path: Path) -> None:
    code = tmp_path / "source"
    code.mkdir()
    (code / "model_def.py").write_text("size = 7\n")
    uuid = save(tmp_path / "ckpt", 5, code)

    copy = client.get_checkpoint(uuid).download(tmp_path / "copy")
    everstep.Checkpointer(tmp_path / "ckpt").delete()

    assert everstep.Checkpointer(copy).load(5) == {"weight": 5.0}
    assert Path(copy, "code", "model_def.py").read_text() == "size = 7\n"
    assert (copy.uuid, copy.step) == (uuid, 5)


def test_without_a_path_it_stays_in_the_users_folder(tmp_path: Path, home: Path) -> None:
    uuid = save(tmp_path / "ckpt", 5)
    path = client.get_checkpoint(uuid)
    assert not has_state(Path(path), 5)

    assert path.download() is path
    assert path.download() is path  # again: nothing to do

    assert has_state(Path(path), 5)
    assert everstep.Checkpointer(path).load(5) == {"weight": 5.0}
    assert Path(path).is_relative_to(home)


def test_a_folder_with_another_checkpoint_of_that_step_gets_this_one(tmp_path: Path) -> None:
    first, second = save(tmp_path / "one", 5), save(tmp_path / "other", 5, weight=7.0)
    client.get_checkpoint(first).download(tmp_path / "copy")
    copy = client.get_checkpoint(second).download(tmp_path / "copy")
    assert everstep.Checkpointer(copy).load(5) == {"weight": 7.0}
    assert not list((tmp_path / "copy").glob(".*"))


def test_one_that_was_saved_again_at_its_place_is_downloaded_again(tmp_path: Path) -> None:
    client.get_checkpoint(save(tmp_path / "ckpt", 5)).download()
    everstep.Checkpointer(tmp_path / "ckpt").delete()
    copy = client.get_checkpoint(save(tmp_path / "ckpt", 5, weight=7.0)).download()
    assert everstep.Checkpointer(copy).load(5) == {"weight": 7.0}


def test_from_a_bucket(tmp_path: Path) -> None:
    uuid = save("memory://download/run1", 3)
    copy = client.get_checkpoint(uuid).download(tmp_path / "copy")
    everstep.Checkpointer("memory://download/run1").delete()
    assert everstep.Checkpointer(copy).load(3) == {"weight": 3.0}


def test_a_flipped_bit_is_noticed_on_the_way_and_nothing_half_is_left(tmp_path: Path) -> None:
    uuid = save(tmp_path / "ckpt", 5)
    path = client.get_checkpoint(uuid)
    (state,) = (tmp_path / "ckpt").rglob("state*.json")
    content = bytearray(state.read_bytes())
    content[-2] ^= 1
    state.write_bytes(content)

    with pytest.raises(CheckpointBroken):
        path.download(tmp_path / "copy")

    assert not has_state(tmp_path / "copy", 5)
    assert not list((tmp_path / "copy").glob(".*"))
