"""Every command in the README and in docs is typed by a test, or listed with the reason in tests/docs_not_run.txt."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import everstep
from lab import guide
from lab.command import EVERSTEP, ROOT, run
from lab.pool_stage import PoolStage

PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
NOT_RUN = (ROOT / "tests" / "docs_not_run.txt").read_text().splitlines()
BLOCKS = re.compile(r"^```(?:sh|bash|console|shell)\n(.*?)^```", re.MULTILINE | re.DOTALL)
HERE = "tests/contracts/repository/test_commands.py"


@dataclass(frozen=True, kw_only=True, slots=True)
class Typed:
    """A page whose commands a test types, but those that are listed."""

    by: str
    num_blocks: int  # one more: see that the test types it, too


TYPED = {
    "README.md": Typed(by="tests/cluster/test_demo.py", num_blocks=2),
    "docs/checkpoints.md": Typed(by=HERE, num_blocks=1),
    "docs/concepts/gpus.md": Typed(by=HERE, num_blocks=1),
    "docs/doctor.md": Typed(by=HERE, num_blocks=2),
    "docs/experiments.md": Typed(by="tests/examples/test_experiments_guide.py", num_blocks=1),
    "docs/guides/compose.md": Typed(by="tests/platforms/docker/test_guide.py", num_blocks=2),
    "docs/guides/kubernetes.md": Typed(by="tests/platforms/kubernetes/test_guide.py", num_blocks=3),
    "docs/guides/local.md": Typed(by="tests/platforms/local/test_guide.py", num_blocks=1),
    "docs/guides/oci.md": Typed(by="tests/platforms/oci/test_guide.py", num_blocks=2),
    "docs/guides/pbs.md": Typed(by="tests/platforms/pbs/test_pbs.py", num_blocks=2),
    "docs/guides/slurm.md": Typed(by="tests/platforms/slurm/test_stories.py", num_blocks=2),
    "docs/job_file.md": Typed(by=HERE, num_blocks=2),
    "docs/jobs.md": Typed(by=HERE, num_blocks=1),
    "docs/metrics.md": Typed(by="tests/cluster/test_report.py", num_blocks=1),
    "docs/models.md": Typed(by="tests/contracts/coordinator/test_model_commands.py", num_blocks=1),
    "docs/pool.md": Typed(by=HERE, num_blocks=2),
    "docs/search.md": Typed(by="tests/unit/search/test_preview_command.py", num_blocks=1),
}


def blocks(page: str) -> list[str]:
    return BLOCKS.findall((ROOT / page).read_text())


def commands(page: str) -> list[str]:
    """The command lines of a page, without comments. In a session, those after a prompt."""
    lines = [line for block in blocks(page) for line in block.splitlines()]
    if any(line.startswith("$ ") for line in lines):
        lines = [line.removeprefix("$ ") for line in lines if line.startswith(("$ ", "everstep "))]
    return [command for line in lines if (command := line.partition(" #")[0].strip())]


def listed() -> dict[tuple[str, str], str]:
    """(page, command) → reason."""
    rows = (re.fullmatch(r"(\S+\.md): (.+?)  # (.+)", line) for line in NOT_RUN)
    return {(row[1], row[2]): row[3] for row in rows if row}


# --- all of them ---


def test_the_list_is_short_and_gives_reasons() -> None:
    assert len(NOT_RUN) <= 15
    assert len(listed()) == len(NOT_RUN)


def test_each_listed_command_is_still_on_its_page() -> None:
    for page, command in listed():
        assert command in commands(page), f"{page} has no longer: {command}"


@pytest.mark.parametrize("page", PAGES)
def test_each_command_is_typed_or_listed(page: str) -> None:
    left = [command for command in commands(page) if (page, command) not in listed()]
    if page not in TYPED:
        assert left == []
        return
    typed = TYPED[page]
    source = (ROOT / typed.by).read_text()
    script = next((Path(word).name for command in left for word in command.split() if word.endswith(".py")), None)
    assert Path(page).name in source or (script and script in source), f"{typed.by} does not name {page}"
    assert len(blocks(page)) == typed.num_blocks


# --- typed here ---


def test_the_commands_for_checkpoints(tmp_path: Path) -> None:
    with everstep.Checkpointer(str(tmp_path / "runs" / "ckpt"), metric="loss") as checkpointer:
        for step in (1000, 1500):
            state = {"model": {"weight": torch.full((2,), float(step))}, "step": step}
            checkpointer.save(step, state, metrics={"loss": 1 / step}, wait=True)

    (page,) = blocks("docs/checkpoints.md")
    said = guide.type_in(page, tmp_path, {})

    assert "1500" in said
    assert (tmp_path / "model.safetensors").stat().st_size
    assert torch.load(tmp_path / "state.pt", weights_only=True)["step"] == 1500


def test_doctor_looks_at_this_machine(tmp_path: Path) -> None:
    first, *_ = commands("docs/doctor.md")
    assert first == "everstep doctor"
    done = run(*EVERSTEP, "doctor", folder=tmp_path)

    assert done.returncode in (0, 1)  # 1: this machine is not fit, which is an answer
    shown = re.findall(r"^(\w+(?: \w+)?) {2,}(?:ok|warning|error) ", done.stdout, re.MULTILINE)
    assert shown[:3] == ["python", "torch", "devices"]


@pytest.mark.slow
def test_the_commands_for_machines_with_gpus(tmp_path: Path) -> None:
    """Here on CPU tensors, with the stand-in for NCCL."""
    (page,) = blocks("docs/concepts/gpus.md")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    said = guide.type_in(page.replace("cuda", "cpu"), tmp_path, {"EVERSTEP_BACKEND": "stand-in"})

    weights = re.findall(r"weights (\w{16})$", said, re.MULTILINE)
    assert weights == [weights[0]] * 2
    assert re.findall(r'"backend":"([\w-]+)"', said) == ["gloo", "stand-in", "stand-in"]


def test_the_commands_that_convert_a_job_file(tmp_path: Path) -> None:
    change, convert = blocks("docs/job_file.md")
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    (first / "job.yaml").write_text("entrypoint: train.py\nargs: [--epochs, 10]\nplatform: slurm\n")
    second.mkdir()
    shutil.copy(ROOT / "tests" / "unit" / "job_file" / "files" / "ads.yaml", second / "train.yaml")

    said = guide.type_in(change, first, {})
    assert [word for word in ("1:8", "20", "long", "vision") if word not in said] == []

    said = guide.type_in(convert, second, {})
    assert "mnist:1" in said
    assert "entrypoint:" in (second / "job.yaml").read_text()


@pytest.mark.slow
def test_the_commands_for_submitted_jobs(tmp_path: Path) -> None:
    (page,) = blocks("docs/jobs.md")
    longer = "sed -i 's/--epochs, 5/--epochs, 100/' job.yaml"  # it must not be over before it is asked for
    said = guide.type_in(f"everstep init train\ncd train\n{longer}\n{page}", tmp_path, {})

    assert "succeeded" in said


@pytest.mark.slow
def test_the_commands_for_pools(tmp_path: Path) -> None:
    queue, nodes = blocks("docs/pool.md")
    with PoolStage(tmp_path) as stage:
        stage.join("gpu-3")
        stage.trials.create(2, "--hold", config={"name": "held"})
        stage.trials.wait_starts(1)
        there = {"EVERSTEP_COORDINATOR": stage.url, "EVERSTEP_TOKEN_FILE": str(stage.token_file)}
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
        said = guide.type_in(queue, tmp_path / "first", there)
        assert "priority 10, weight 1" in said and "priority 10, weight 2, at most 8 slots" in said
        said = guide.type_in(nodes, tmp_path / "second", there)
        states = re.findall(r"^gpu-3: (\w+)", said, re.MULTILINE)
        assert states == ["draining", "disabled", "enabled"]
        stage.trials.act(1, "kill")
        stage.trials.wait_state(1, "CANCELED")
