"""docs/experiments.md is true: what it shows runs, and the experiment of its first five minutes has a winner."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from everstep.job_file.experiment import load_experiment
from everstep.job_file.schema import Job
from everstep.search.config import read_searcher
from everstep.search.preview import preview
from everstep.search.read_space import read_space
from lab import guide
from lab.command import ROOT

PAGE = (ROOT / "docs" / "experiments.md").read_text()
EXAMPLES = ROOT / "examples" / "experiments"


@pytest.mark.slow
def test_the_first_five_minutes(tmp_path: Path) -> None:
    """Sixteen trials: nine are stopped at the first rung, five at the second, and trial 12 wins."""
    (commands,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    said = guide.type_in(commands, tmp_path, {"OMP_NUM_THREADS": "1"})

    assert re.search(r"^local: ", said, re.MULTILINE)
    assert len(re.findall(r"COMPLETED: .* of 12 at 8 batches; the best 3 continue", said)) == 9
    assert len(re.findall(r"COMPLETED: .* of [34] at 32 batches; only the best one continues", said)) == 5
    assert re.search(r"^best: trial 12, validation_loss 0\.", said, re.MULTILINE)
    (best,) = (tmp_path / "examples" / "experiments" / "best").glob("*-*")
    assert {"checkpoint.json", "code"} <= {each.name for each in best.iterdir()}


TRAIN = """
import everstep

rate = everstep.get_hparams()["lr"]
for step in range(1, 100):
    if not everstep.report({"loss": abs(rate - 0.01)}, step=step):
        break
"""


def test_the_search_program_of_the_page(tmp_path: Path) -> None:
    """Three trials train for 4 batches, and the best one for 8. Started again, it finds its experiment over."""
    *_, program = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "search.py").write_text(program)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(TRAIN)
    commands = f"{sys.executable} search.py; {sys.executable} search.py; everstep e lt 1 --csv; everstep pool stop"
    said = guide.type_in(commands, tmp_path, {"EVERSTEP_LOCAL_SLOTS": "2"})

    assert said.count("experiment 1\n") == 2
    rows = [line.split(",")[:4] for line in said.splitlines() if ",COMPLETED," in line]
    assert [(number, length) for number, _, _, length in rows] == [("1", "4/4"), ("2", "8/8"), ("3", "4/4")]


@pytest.mark.parametrize("name", ["adaptive", "grid", "random", "plain", "loop"])
def test_an_example_is_read_without_a_remark(name: str) -> None:
    loaded = load_experiment(EXAMPLES / f"{name}.yaml")
    assert [each for each in loaded.notes if "takes values from" not in each] == []  # what exponents mean
    config = read_searcher(loaded.spec.searcher)
    assert preview(config, read_space(loaded.spec.hyperparameters)).num_trials in (3, 4, 6, 16)


REST = """
hyperparameters: {lr: 0.1, net: {hidden: 8}}
searcher: {name: random, metric: validation_loss, max_trials: 2}
"""


def test_the_files_of_the_page_are_read(tmp_path: Path) -> None:
    whole, part, reused = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "exp.yaml").write_text(whole)
    assert load_experiment(tmp_path / "exp.yaml").spec.num_micro_batches == 2
    (tmp_path / "exp.yaml").write_text(part + REST)
    assert load_experiment(tmp_path / "exp.yaml").spec.order["args"][1] == "{lr}"
    (tmp_path / "exp.yaml").write_text(whole + reused)
    assert load_experiment(tmp_path / "exp.yaml").spec.config["reuse"]


def test_the_keys_of_the_page_are_keys_of_the_file() -> None:
    (section,) = re.findall(r"These keys are for experiments:\n\n(.*?)\n\n", PAGE, re.DOTALL)
    keys = {key.partition(".")[0] for row in section.splitlines()[2:] for key in re.findall(r"`([\w.]+)`", row[:60])}
    assert keys - {"keep_best", "keep_latest"} <= Job.model_fields.keys()
