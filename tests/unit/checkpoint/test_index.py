"""A checkpoint's uuid leads back to it: to its state, and to its code as a local folder."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import everstep
from everstep import env
from everstep.checkpoint import index
from everstep.checkpoint.index import checkpoint_uuid, find, record
from everstep.errors import CheckpointBroken, NoCheckpoint, UsageError
from everstep.experimental import client
from everstep.storage.base import full_uri, open_storage


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(env.HOME, str(tmp_path / "home"))
    monkeypatch.delenv(env.COORDINATOR, raising=False)
    return tmp_path / "home"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "nets").mkdir(parents=True)
    (folder / "model_def.py").write_text("from nets.deep import size\n")
    (folder / "nets" / "deep.py").write_text("size = 7\n")
    return folder


def save(uri: str | Path, *steps: int, code: Path | None = None, keep_latest: int = 2) -> list[str]:
    """Checkpoints of these steps, recorded; their uuids."""
    with everstep.Checkpointer(uri, code=code, keep_latest=keep_latest) as checkpointer:
        for step in steps:
            checkpointer.save(step, {"weight": float(step)}, wait=True)
            record(checkpoint_uuid(uri, step), uri, step)
    return [checkpoint_uuid(uri, step) for step in steps]


# --- the index ---


def test_a_uuid_leads_to_place_and_step(tmp_path: Path) -> None:
    (uuid,) = save(tmp_path / "ckpt", 5)

    uri, step = find(uuid)

    assert (uri, step) == (str(tmp_path / "ckpt"), 5)
    assert everstep.Checkpointer(uri).load(step) == {"weight": 5.0}


def test_the_uuid_follows_from_place_and_step_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {checkpoint_uuid(each, 5) for each in ("ckpt", "./ckpt", tmp_path / "ckpt", f"file://{tmp_path}/ckpt")}

    assert len(names) == 1
    assert names != {checkpoint_uuid("ckpt", 6)}
    assert checkpoint_uuid("s3://bucket/run7/", 5) == checkpoint_uuid("s3://bucket/run7", 5)


@pytest.mark.parametrize("uri", ["ckpt", "~/ckpt", "/ckpt/", "file:///ckpt", "memory://ckpt/", "memory://a/b"])
def test_the_uri_is_the_one_that_the_storage_has(uri: str) -> None:
    assert full_uri(uri) == open_storage(uri).uri


def test_an_unknown_uuid_says_how_many_are_known_and_where(tmp_path: Path, home: Path) -> None:
    save(tmp_path / "ckpt", 5, 6)
    with pytest.raises(NoCheckpoint, match=rf"{home}/checkpoints lists 2 others\n.*EVERSTEP_HOME"):
        find(checkpoint_uuid(tmp_path / "other", 5))


def test_one_that_is_no_longer_kept_is_gone(tmp_path: Path) -> None:
    first, *_ = save(tmp_path / "ckpt", 5, 10, 15)
    with pytest.raises(NoCheckpoint, match=r"was deleted: .*/ckpt has no step 5, only 10, 15\n.*keep_latest"):
        find(first)


@pytest.mark.parametrize("text", ["", "../../etc/passwd", "5", "x" * 36])
def test_what_is_no_uuid_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        find(text)
    assert refused.value.code == "checkpoint-uuid-invalid"


def test_a_uuid_may_be_written_otherwise(tmp_path: Path) -> None:
    (uuid,) = save(tmp_path / "ckpt", 5)
    assert find(uuid.upper()) == find(uuid.replace("-", "")) == find(uuid)


def test_what_is_remembered_is_private(tmp_path: Path, home: Path) -> None:
    (uuid,) = save(tmp_path / "ckpt", 5)

    assert stat.S_IMODE((home / "checkpoints" / f"{uuid}.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((home / "checkpoints").stat().st_mode) == stat.S_IMODE(home.stat().st_mode) == 0o700


def test_a_damaged_record_is_named(tmp_path: Path, home: Path) -> None:
    (uuid,) = save(tmp_path / "ckpt", 5)
    (home / "checkpoints" / f"{uuid}.json").write_text('{"uri": 3, "step": 5}')
    with pytest.raises(CheckpointBroken, match=f"{uuid}.json: 'uri' must be str"):
        find(uuid)


def test_the_index_needs_no_torch(tmp_path: Path) -> None:
    script = (
        "import sys; from everstep.experimental import client; from everstep.checkpoint import index;"
        f"index.record({checkpoint_uuid('x', 1)!r}, 'x', 1); print('torch' in sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(everstep.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# --- the folder with the code ---


def test_the_code_of_a_checkpoint_can_be_imported(tmp_path: Path, source: Path) -> None:
    (uuid,) = save(tmp_path / "ckpt", 5, code=source)

    path = client.get_checkpoint(uuid)
    with everstep.import_from_path(path + "/code/"):
        import model_def

    assert model_def.size == 7
    assert (path.uuid, path.uri, path.step) == (uuid, str(tmp_path / "ckpt"), 5)
    assert path.download() is path
    told = json.loads(Path(path, "checkpoint.json").read_text())
    assert everstep.Checkpointer(told["uri"]).load(told["step"]) == {"weight": 5.0}
    assert told["uuid"] == uuid


def test_from_storage_that_is_no_folder(source: Path) -> None:
    (uuid,) = save("memory://index/run7", 5, code=source)

    path = client.get_checkpoint(uuid)

    assert Path(path, "code", "nets", "deep.py").read_text() == "size = 7\n"
    assert everstep.Checkpointer(path.uri).load(path.step) == {"weight": 5.0}
    everstep.Checkpointer("memory://index/run7").delete()


def test_the_folder_is_private_and_made_once(tmp_path: Path, source: Path) -> None:
    (uuid,) = save(tmp_path / "ckpt", 5, code=source)
    path = Path(client.get_checkpoint(uuid))
    made = path.stat().st_ino

    again = Path(client.get_checkpoint(uuid))

    assert again.stat().st_ino == made
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert sorted(each.name for each in path.parent.iterdir()) == [uuid, "lock"]


def test_a_copy_elsewhere(tmp_path: Path, source: Path) -> None:
    (uuid,) = save(tmp_path / "ckpt", 5, code=source)

    copy = client.get_checkpoint(uuid).download(tmp_path / "copy")

    assert copy == str(tmp_path / "copy")
    assert Path(copy, "code", "model_def.py").is_file()


def test_a_run_that_was_made_again_at_the_same_place_has_its_own_code(tmp_path: Path, source: Path) -> None:
    (uuid,) = save(tmp_path / "ckpt", 5, code=source)
    client.get_checkpoint(uuid)
    everstep.Checkpointer(tmp_path / "ckpt").delete()
    (source / "nets" / "deep.py").write_text("size = 8\n")
    save(tmp_path / "ckpt", 5, code=source)

    path = client.get_checkpoint(uuid)

    assert Path(path, "code", "nets", "deep.py").read_text() == "size = 8\n"


def test_many_ask_at_once(tmp_path: Path, source: Path) -> None:
    (uuid,) = save(tmp_path / "ckpt", 5, code=source)
    together = threading.Barrier(8, timeout=60)
    found: list[str] = []

    def ask() -> None:
        together.wait()
        path = client.get_checkpoint(uuid)
        found.append(Path(path, "code", "model_def.py").read_text())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == ["from nets.deep import size\n"] * 8
    assert sorted(os.listdir(env.home() / "cache")) == [uuid, "lock"]


def test_a_checkpoint_without_code_has_an_empty_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (uuid,) = save(tmp_path / "ckpt", 5)

    path = client.get_checkpoint(uuid)

    assert list(Path(path, "code").iterdir()) == []
    assert "saved without code" in caplog.text


def test_code_that_is_lost_is_told(tmp_path: Path, source: Path) -> None:
    (uuid,) = save(tmp_path / "ckpt", 5, code=source)
    (archive,) = (tmp_path / "ckpt" / "code").iterdir()
    archive.unlink()
    with pytest.raises(CheckpointBroken, match=r"code/[0-9a-f]{16}.tar.gz is missing"):
        client.get_checkpoint(uuid)
    assert os.listdir(env.home() / "cache") == []


def test_outside_a_job_nothing_is_noted_of_one(tmp_path: Path, home: Path) -> None:
    save(tmp_path / "ckpt", 5)
    assert not (home / "jobs").exists()
    assert index.latest() is None
