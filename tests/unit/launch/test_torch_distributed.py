"""`python -m everstep.launch.torch_distributed`: Determined's launcher as a module of our own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from everstep.errors import UsageError
from everstep.launch.torch_distributed import command_of
from lab.command import run

RUN = [sys.executable, "-m", "everstep", "run"]
MODULE = (sys.executable, "-m", "everstep.launch.torch_distributed")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("python3 train.py --epochs 2", [*RUN, "train.py", "--epochs", "2"]),
        ("train.py", [*RUN, "train.py"]),
        ("-- python3 train.py", [*RUN, "train.py"]),
        ("--nproc_per_node=2 python3 -m pkg.train", [*RUN, "--nproc-per-node", "2", "--module", "pkg.train"]),
        ("bash train.sh", [*RUN, "--no-python", "bash", "train.sh"]),
    ],
)
def test_it_is_everstep_run(words: str, meant: list[str]) -> None:
    assert command_of(words.split(), is_worker=False) == meant


def test_in_a_job_it_is_the_script_itself() -> None:
    assert command_of(["python3", "train.py", "-x"], is_worker=True) == [sys.executable, "train.py", "-x"]
    assert command_of(["python3", "-m", "pkg"], is_worker=True) == [sys.executable, "-m", "pkg"]


def test_a_script_must_be_named() -> None:
    with pytest.raises(UsageError) as refused:
        command_of([], is_worker=False)
    assert refused.value.code == "launcher-without-script"


def test_it_trains(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, sys; print('worker', os.environ['RANK'], sys.argv[1:])")
    done = run(*MODULE, "python3", "train.py", "--epochs", "2", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "worker 0 ['--epochs', '2']" in done.stdout


def test_the_exit_code_of_wrong_usage(tmp_path: Path) -> None:
    assert run(*MODULE, folder=tmp_path).returncode == 2
