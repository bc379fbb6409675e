"""A benchmark continues without a peer that is not installed: it prints how to get it, and reports null."""

from __future__ import annotations

import json
import subprocess
import venv
from pathlib import Path

import pytest

from benchmarks import trainer
from benchmarks.peers import peer_python


def test_without_the_environment_of_peers_it_says_how_to_make_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert peer_python("lightning", tmp_path) is None

    said = capsys.readouterr()
    assert "lightning is not installed" in said.err and "make peers" in said.err
    assert said.out == ""  # where the JSON goes


def test_an_environment_may_have_one_peer_and_not_another(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    venv.create(tmp_path, symlinks=True)
    (site_packages,) = tmp_path.glob("lib/python*/site-packages")
    (site_packages / "some_peer.py").write_text("raise SystemExit('looked for, not imported')")

    python = peer_python("some_peer", tmp_path)
    assert python is not None and capfd.readouterr().err == ""
    prefix = subprocess.run([python, "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=True)
    assert prefix.stdout.strip() == str(tmp_path)

    assert peer_python("another_peer", tmp_path) is None
    assert "another_peer is not installed" in capfd.readouterr().err


def test_a_missing_peer_is_null_in_the_report() -> None:
    without = trainer.report({"plain": [2.0, 2.0], "trainer": [1.0, 1.0]})
    assert json.dumps(without) == '{"ratio_plain": 2.0, "ratio_lightning": null}'

    both = trainer.report({"plain": [2.0, 2.0], "lightning": [3.0, 3.0], "trainer": [1.0, 1.0]})
    assert both == {"ratio_plain": 2.0, "ratio_lightning": 3.0}
