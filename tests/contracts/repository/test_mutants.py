"""The deliberate faults of tests/mutants fit the present code and name tests that exist: else `make mutants` shows
nothing on the day it is needed."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
FEWEST = 36
WITHOUT_FAULTS = {"templates", "testing"}  # files that users edit; tools of tests


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("everstep_mutants_run", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


run = _load(ROOT / "tests" / "mutants" / "run.py")
MUTANTS = run.all_mutants()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_applies_to_the_present_code_and_names_tests_that_exist(mutant: Any) -> None:
    run.apply(mutant, ROOT, "--check")
    assert all(name.startswith("everstep/") for name in mutant.files)
    assert mutant.fault.endswith("."), "the first line is a sentence"
    for test in mutant.tests:
        path, name = test.split("::")
        defined = [each.name for each in ast.parse((ROOT / path).read_text()).body if hasattr(each, "name")]
        assert name in defined, f"there is no {test}"


def test_there_are_many_in_all_packages() -> None:
    changed = {Path(name).parts[1] for mutant in MUTANTS for name in mutant.files}
    packages = {path.parent.name for path in (ROOT / "everstep").glob("*/__init__.py")}

    assert len(MUTANTS) >= FEWEST
    assert packages - WITHOUT_FAULTS - changed == set()
