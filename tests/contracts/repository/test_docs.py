"""The documents are true: what they show runs, what they link to exists, what they list is what the code has."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import everstep
from everstep.cli.main import app

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(part.startswith(".") or part == "node_modules" for part in path.relative_to(ROOT).parts)
)
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


# --- links ---


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, heading = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{target} does not exist"
        if heading:
            assert heading in _headings(file), f"{target}: no such heading"


def _headings(page: Path) -> set[str]:
    """As GitHub names them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


# --- the diff from a plain loop to an elastic one ---


def _loop(name: str) -> list[str]:
    """A loop's lines but for its docstring and empty ones, without indentation."""
    lines = (ROOT / "examples" / name).read_text().splitlines()[1:]
    return [line.strip() for line in lines if line.strip()]


def test_the_diff_in_the_readme_is_the_one_between_the_two_examples() -> None:
    (shown,) = re.findall(r"```diff\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    marked = sorted(line[0] + line[1:].strip() for line in shown.splitlines() if line[0] in "+-")
    real = difflib.ndiff(_loop("plain_loop.py"), _loop("elastic_loop.py"))
    changed = sorted(line[0] + line[2:] for line in real if line[0] in "+-")

    assert marked == changed
    assert len(marked) <= 8


@pytest.mark.parametrize("name", ["plain_loop.py", "elastic_loop.py"])
def test_both_loops_run(name: str) -> None:
    outer = {key: value for key, value in os.environ.items() if not key.startswith("EVERSTEP_")}
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name],
        env=outer | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},  # threads on a busy machine wait for each other
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loss = float(done.stdout.removeprefix("loss "))
    assert loss < 1.5  # from ln 10 = 2.3


def test_the_loop_of_the_guide_runs_and_resumes(tmp_path: Path) -> None:
    loop, checkpoint, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "native_loop.md").read_text(), re.DOTALL)
    head, body = loop.split("for epoch", 1)
    longer = "for epoch" + body.replace("range(3)", "range(5)")
    (tmp_path / "first.py").write_text(f"import os\n{loop}{checkpoint}\nsave()\n")
    (tmp_path / "second.py").write_text(f"import os\n{head}{checkpoint}\nresume()\n{longer}")
    outer = {key: value for key, value in os.environ.items() if not key.startswith("EVERSTEP_")}
    said = [
        subprocess.run(
            [sys.executable, name],
            env=outer | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for name in ("first.py", "second.py")
    ]
    steps = [re.findall(r"epoch (\d): step (\d+),", text) for text in said]
    assert [len(each) for each in steps] == [9, 7]  # 32 steps to an epoch; every tenth is told
    assert (steps[0][-1], steps[1][0], steps[1][-1]) == (("2", "90"), ("3", "100"), ("4", "160"))


def test_the_loop_of_the_controllers_guide_runs_and_resumes(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "controller.md").read_text()
    loop, _, checkpoint = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    head, body = loop.split("with controller.scope()", 1)
    broken_off = body.replace("num_steps % 20 == 0:", "num_steps == 25:\n            break\n        if False:")
    (tmp_path / "first.py").write_text(f"import os\n{head}{checkpoint}with controller.scope(){broken_off}save()\n")
    (tmp_path / "second.py").write_text(f"import os\n{head}{checkpoint}resume()\nwith controller.scope(){body}")
    outer = {key: value for key, value in os.environ.items() if not key.startswith("EVERSTEP_")}
    for name in ("first.py", "second.py"):
        done = subprocess.run(
            [sys.executable, name],
            env=outer | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    told = re.findall(r"epoch (\d): step (\d+),", done.stdout)
    assert told[0] == ("1", "40")
    assert told[-1] == ("1", "60")  # 30 steps to an epoch


def test_the_trial_of_the_guide_goes_on_where_it_was_until_it_is_done(tmp_path: Path) -> None:
    trial, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "trials.md").read_text(), re.DOTALL)
    outer = {key: value for key, value in os.environ.items() if not key.startswith("EVERSTEP_")}

    def fit(num_epochs: int) -> str:
        (tmp_path / "train.py").write_text(trial.replace("Epoch(3)", f"Epoch({num_epochs})"))
        done = subprocess.run(
            [sys.executable, "train.py"],
            env=outer | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    begun, ended, again = fit(2), fit(3), fit(3)
    assert "validation at batch 64: accuracy" in begun
    assert "resuming from batch 64" in ended
    assert "Epoch(3) reached: 96 batches, 3 epochs, 3,000 records" in ended
    assert "going on" not in again
    assert "Epoch(3) reached: 96 batches" in again
    assert len(list(tmp_path.glob("runs/train-*/[0-9]"))) == 2


def test_each_argument_of_fit_is_documented() -> None:
    page = (ROOT / "docs" / "trials.md").read_text()
    for name, parameter in inspect.signature(everstep.pytorch.Trainer.fit).parameters.items():
        if name != "self":
            row = rf"^\| `{name}` \| `{re.escape(repr(parameter.default))}` \|"
            assert re.search(row, page, re.MULTILINE), name


def test_each_argument_of_the_controller_is_documented() -> None:
    page = (ROOT / "docs" / "controller.md").read_text()
    for name, parameter in inspect.signature(everstep.AllReduceController).parameters.items():
        assert re.search(rf"^\| `{name}` \| `{parameter.default!r}` \|", page, re.MULTILINE), name


# --- configuration.md ---


def all_commands(group: click.Group, ctx: click.Context, above: str = "") -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from all_commands(command, ctx, f"{above}{name} ")
        else:
            yield f"{above}{name}", command


def test_each_option_is_documented() -> None:
    ctx = click.Context(app)
    documented = set(re.findall(r"`(--?[a-z][a-z-]*)`", CONFIGURATION))
    for name, command in all_commands(app, ctx):
        options = {option for parameter in command.params for option in parameter.opts if option.startswith("-")}
        assert options - {"--help", "-h"} <= documented, f"everstep {name}"


def test_nothing_is_cut_off_in_the_help_of_a_narrow_terminal() -> None:
    for command in ("run", "join", "serve", "doctor", "status"):
        done = subprocess.run(
            [sys.executable, "-m", "everstep", command, "--help"],
            env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "80"},
            capture_output=True,
            text=True,
            check=True,
        )
        ours = (",…", "//…")  # lists that go on, addresses that are left open
        for line in done.stdout.splitlines():
            assert "…" not in line or any(each in line for each in ours), line


def test_each_fixed_time_is_what_the_page_says() -> None:
    rows = re.findall(r"^\| `(everstep\.[\w.]+)\.(\w+)` \| `([\d.]+)` \|", CONFIGURATION, re.MULTILINE)
    assert rows
    for module, name, value in rows:
        assert getattr(importlib.import_module(module), name) == float(value), name


def test_each_argument_of_the_trainer_is_documented() -> None:
    for name, parameter in inspect.signature(everstep.ElasticTrainer).parameters.items():
        (row,) = re.findall(rf"^\| `{name}` \| (.*?) ?\|", CONFIGURATION, re.MULTILINE)
        if parameter.default not in (inspect.Parameter.empty, None):
            assert row == f"`{parameter.default!r}`", name
