"""`everstep e preview FILE`."""

from __future__ import annotations

import json
import re
from pathlib import Path

from lab import guide
from lab.command import EVERSTEP, ROOT, run

ADAPTIVE = """
name: mnist
entrypoint: model_def:MNistTrial
hyperparameters:
  learning_rate: {type: log, base: 10, minval: -4, maxval: -1}
  global_batch_size: {type: int, minval: 16, maxval: 64}
searcher:
  name: adaptive_asha
  metric: validation_loss
  max_length: {batches: 937}
  max_trials: 16
resources: {slots_per_trial: 8}
"""


def test_the_commands_of_the_guide(tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_text(ADAPTIVE)
    (page,) = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / "search.md").read_text(), re.DOTALL)
    said = guide.type_in(page, tmp_path, {})
    assert "adaptive_asha: 16 trials" in said and "adaptive_asha: 64 trials" in said
    assert "to 937 batches" in said and "3566 batches in all" in said
    assert "global_batch_size takes the 7 multiples of 8 micro-batches from 16 to 64" in said
    assert re.search(r"0\.20 slot-hours; on 4 slots about [\d.]+ s, the first full trial after [\d.]+ s", said)


def test_for_machines(tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_text(ADAPTIVE)
    done = run(*EVERSTEP, "experiment", "preview", "exp.yaml", "--json", "--batch-s", "0.2", folder=tmp_path)
    found = json.loads(done.stdout)
    assert found["lines"] == [[9, 58], [5, 234], [2, 937]] and found["expected_s"] > 0


def test_a_time_without_an_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_text(ADAPTIVE)
    done = run(*EVERSTEP, "e", "preview", "exp.yaml", "--json", "--batch-s", "inf", folder=tmp_path)
    assert done.returncode == 2 and "--batch-s" in done.stderr and not done.stdout


def test_a_bad_space_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_text(ADAPTIVE.replace("minval: -4, maxval: -1", "minval: 1e-4, maxval: 0.1"))
    done = run(*EVERSTEP, "e", "preview", "exp.yaml", folder=tmp_path)
    assert done.returncode == 2
    assert "hyperparameters.learning_rate" in done.stderr and "{log: [0.0001, 0.1]}" in done.stderr


def test_a_file_without_a_searcher_is_refused(tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_text("entrypoint: train.py\n")
    done = run(*EVERSTEP, "e", "preview", "exp.yaml", folder=tmp_path)
    assert done.returncode == 2 and "exp.yaml has no searcher" in done.stderr
