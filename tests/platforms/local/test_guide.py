"""The guide's example, typed unchanged."""

from __future__ import annotations

from pathlib import Path

from lab.guide import blocks, type_in


def test_the_example_runs(tmp_path: Path) -> None:
    (example,) = blocks("local.md", "bash")
    said = type_in(example, tmp_path, {})
    assert "epoch 5: loss" in said
    assert "succeeded" in said
