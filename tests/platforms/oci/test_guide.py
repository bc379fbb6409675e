"""The guide's example runs as it stands, on the emulated OCI."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

from lab.oci.tenancy import ROOT, OciLab

PAGE = (ROOT / "docs" / "guides" / "oci.md").read_text()


def test_the_example_of_the_guide_runs(lab: OciLab, tmp_path: Path) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (job,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    _, commands = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    told = yaml.safe_load(job)
    told["platform"]["oci"]["endpoint"] = lab.url
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(told))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "everstep").write_text(f'#!/bin/sh\nexec {sys.executable} -m everstep "$@"\n')
    (tmp_path / "bin" / "everstep").chmod(0o755)
    path = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", commands],
        cwd=tmp_path,
        env={**os.environ, **lab.env(), **path, "EVERSTEP_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert {"first-main", "first-worker-0"} == set(re.findall(r"^(\S+) \| \[w\d\] loss 0\.", done.stdout, re.MULTILINE))
    assert "first-main: SUCCEEDED" in done.stdout
    assert lab.leftovers("") == []
