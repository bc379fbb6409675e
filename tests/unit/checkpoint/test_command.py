"""`everstep checkpoint …`, as a person or a script calls it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

import everstep
from everstep.checkpoint.index import checkpoint_uuid
from everstep.cli.main import app
from everstep.errors import CheckpointBroken, EverstepError, UsageError
from lab.refused import refused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with everstep.Checkpointer(tmp_path / "ckpt", metric="loss", keep_latest=None, hparams={"lr": 0.1}) as checkpointer:
        for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0)):
            state = {"model": {"w": torch.full((2, 3), float(step))}, "step": step}
            checkpointer.save(step, state, metrics={"loss": loss})
    return tmp_path / "ckpt"


def call(*args: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["checkpoint", *(str(arg) for arg in args)])
    if isinstance(result.exception, EverstepError):
        raise result.exception
    return result.exit_code, result.output


def test_list_shows_all_and_why_they_are_kept(folder: Path) -> None:
    code, output = call("list", folder)
    rows = json.loads(call("list", folder, "--json")[1])

    assert code == 0 and "whole" in output and "loss 1" in output
    assert [(row["step"], row["metrics"]["loss"], row["problem"]) for row in rows] == [
        (1, 3, ""),
        (2, 1, ""),
        (3, 2, ""),
    ]
    assert [row["uuid"] for row in rows] == [checkpoint_uuid(folder, step) for step in (1, 2, 3)]
    assert rows[-1]["uuid"] in output
    run = folder.parent / "runs" / "mine-abc123" / "1"
    run.parent.mkdir(parents=True)
    folder.rename(run)
    assert "itself; runs below it: mine-abc123/1" in call("list", folder.parent / "runs")[1]
    empty = folder.parent / "empty"
    empty.mkdir()
    assert call("list", empty) == (0, f"no checkpoints in {empty}\n")
    with refused("checkpoint-folder-missing", UsageError):
        call("list", folder.parent / "nowhere")


def test_show_tells_the_manifest_and_the_tensors(folder: Path) -> None:
    shown = json.loads(call("show", folder, "--step", "best", "--json")[1])

    assert shown["uuid"] == checkpoint_uuid(folder, 2) and shown["uuid"] in call("show", folder, "--step", "best")[1]
    assert shown["step"] == 2 and shown["hparams"] == {"lr": 0.1}
    assert shown["tensors"] == [{"name": "model.w", "type": "F32", "shape": [2, 3]}]
    assert "model.w" in call("show", folder)[1]
    with pytest.raises(UsageError, match="steps with whole checkpoints: 3, 2, 1"):
        call("show", folder, "--step", "9")


def test_verify_names_the_broken_file_and_fails(folder: Path) -> None:
    assert call("verify", folder)[0] == 0
    (part,) = folder.glob("*-*2/*/part*")
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    code, output = call("verify", folder)

    assert code == 1 and part.name in output and "3 checked, 1 broken, 0 incomplete" in output
    assert call("verify", folder, "--step", "3")[0] == 0


def test_export_gives_one_file(folder: Path, tmp_path: Path) -> None:
    call("export", folder, tmp_path / "all.safetensors", "--step", "1")
    call("export", folder, tmp_path / "model.safetensors", "--only", "model")
    call("export", folder, tmp_path / "state.pt")

    assert load_file(tmp_path / "all.safetensors")["model.w"].unique().tolist() == [1]
    assert load_file(tmp_path / "model.safetensors")["w"].unique().tolist() == [3]
    assert torch.load(tmp_path / "state.pt", weights_only=True)["step"] == 3
    with pytest.raises(UsageError, match="neither .safetensors nor .pt"):
        call("export", folder, tmp_path / "x.bin")


def test_prune_says_what_it_would_do_then_does_it(folder: Path) -> None:
    _, output = call("prune", folder, "--keep-latest", 1, "--dry-run")
    assert "would delete 000000-000000000001" in output and len(list(folder.iterdir())) == 3
    deleted = json.loads(call("prune", folder, "--keep-latest", 1, "--json")[1])["deleted"]

    assert list(deleted) == ["000000-000000000001"]
    assert sorted(path.name[-1] for path in folder.iterdir()) == ["2", "3"]


def test_prune_deletes_nothing_in_favour_of_a_damaged_one(folder: Path) -> None:
    (newest,) = folder.glob("*-000000000003/*/*.safetensors")
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)
    with pytest.raises(CheckpointBroken, match="nothing is deleted, because the newest checkpoint is broken"):
        call("prune", folder, "--keep-latest", 1, "--keep-best", 0)

    assert len(list(folder.glob("*/manifest.json"))) == 3


def test_export_needs_a_folder_that_is_there(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        call("export", folder, tmp_path / "nothing" / "x.safetensors")


def test_the_commands_need_no_torch(folder: Path) -> None:
    import subprocess

    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from everstep.cli.main import main\n"
        f"sys.argv = ['everstep', 'checkpoint', 'export', {str(folder)!r}, {str(folder.parent / 'x.safetensors')!r}]\n"
        "main()"
    )
    root = Path(everstep.__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)
    assert load_file(folder.parent / "x.safetensors")["model.w"].unique().tolist() == [3]
