"""A platform's guide, typed by somebody who follows it: its script, its job file, its commands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

GUIDES = Path(__file__).parents[2] / "docs" / "guides"


def follow(page: str, folder: Path, env: Mapping[str, str]) -> str:
    """What is seen on the terminal."""
    text = (GUIDES / page).read_text()
    for name, language in (("train.py", "python"), ("job.yaml", "yaml")):
        (found,) = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
        (folder / name).write_text(found)
    (commands,) = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    (folder / "bin").mkdir()
    (folder / "bin" / "everstep").write_text(f'#!/bin/sh\nexec {sys.executable} -m everstep "$@"\n')
    (folder / "bin" / "everstep").chmod(0o755)
    outer = {**os.environ, **env}
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", commands],
        cwd=folder,
        env={**outer, "PATH": f"{folder / 'bin'}:{outer['PATH']}", "EVERSTEP_HOME": str(folder / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
