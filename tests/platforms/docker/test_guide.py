"""The guide's example, typed unchanged; between its two parts the new project learns where this lab's images are."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import yaml

from everstep.job_file.load import load
from everstep.platforms.docker import compose
from lab.docker.engine import ROOT, docker, job_here, leftovers
from lab.guide import blocks, type_in

RENDERED = ROOT / "tests" / "unit" / "platforms" / "rendered" / "compose.yaml"


def test_the_example_runs(engine: Mapping[str, str], python_base: str, tmp_path: Path) -> None:
    begin, example = blocks("compose.md", "bash")
    type_in(begin, tmp_path, {})
    file = tmp_path / "circle" / "job.yaml"
    raw = json.dumps(job_here()["platform"]["compose"]["raw"])  # JSON is YAML
    text = (
        file.read_text()
        .replace("context: .}", f"context: ., args: {{BASE: {python_base}}}}}")
        .replace("raw: {}", f"raw: {raw}")
    )
    file.write_text(text)

    said = type_in(example, tmp_path / "circle", engine)

    assert "epoch 5: loss" in said
    info = yaml.safe_load((tmp_path / "circle" / "info.yaml").read_text())
    assert leftovers(engine, info["jobId"]) == []
    docker(engine, "image", "rm", "circle:latest")


def test_the_overlay_is_one() -> None:
    overlay, *_ = blocks("compose.md", "yaml")
    assert load(f"entrypoint: train.py\n{overlay}").job.platform.chosen == "compose"


def test_compose_takes_what_is_rendered(engine: Mapping[str, str]) -> None:
    done = subprocess.run([*compose(), "-f", str(RENDERED), "config", "--quiet"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
