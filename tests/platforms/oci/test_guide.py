"""The guide's example runs unchanged, on the emulated OCI."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from lab.guide import blocks, type_in
from lab.oci.tenancy import OciLab


def test_the_example_of_the_guide_runs(lab: OciLab, tmp_path: Path) -> None:
    (script,), (job,), (_, commands) = (blocks("oci.md", language) for language in ("python", "yaml", "bash"))
    told = yaml.safe_load(job)
    told["platform"]["oci"]["endpoint"] = lab.url
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(told))

    seen = type_in(commands, tmp_path, lab.env())

    assert {"first-main", "first-worker-0"} == set(re.findall(r"^(\S+) \| \[w\d\] loss 0\.", seen, re.MULTILINE))
    assert "first-main: SUCCEEDED" in seen
    assert lab.leftovers("") == []
