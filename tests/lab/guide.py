"""A platform's guide, followed step by step: its script, its job file, its commands."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from lab.command import ROOT, run

GUIDES = ROOT / "docs" / "guides"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (GUIDES / page).read_text(), re.DOTALL)


def follow(page: str, folder: Path, env: Mapping[str, str]) -> str:
    """Follow a guide with one script, one job file and one block of commands; returns the terminal's output."""
    for name, language in (("train.py", "python"), ("job.yaml", "yaml")):
        (found,) = blocks(page, language)
        (folder / name).write_text(found)
    (commands,) = blocks(page, "bash")
    return type_in(commands, folder, env)


def type_in(commands: str, folder: Path, env: Mapping[str, str]) -> str:
    """The terminal's output. `everstep` is that of the tests."""
    (folder / "bin").mkdir()
    (folder / "bin" / "everstep").write_text(f'#!/bin/sh\nexec {sys.executable} -m everstep "$@"\n')
    (folder / "bin" / "everstep").chmod(0o755)
    path = f"{folder / 'bin'}:{env.get('PATH', os.environ['PATH'])}"
    here = {**env, "PATH": path, "EVERSTEP_HOME": str(folder / "home")}
    done = run("bash", "-eo", "pipefail", "-c", f"exec 2>&1\n{commands}", folder=folder, **here)
    assert done.returncode == 0, done.stdout
    return done.stdout
