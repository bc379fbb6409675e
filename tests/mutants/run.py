"""Apply each patch of this folder to a copy of the repository, and see whether the tests that it names catch it.

    python tests/mutants/run.py                    all
    python tests/mutants/run.py NAME …             some

First all named tests run on a copy without any fault: they must pass, or the rest would mean nothing. Then each fault
is put into a copy of its own. A fault counts as caught when pytest says that a test failed; a test that cannot be
collected, or takes too long, has caught nothing. The last line is JSON."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
AT_ONCE = os.cpu_count() or 2  # stories share nothing but the machine
LIMIT_S = 300.0  # for the tests of one mutant, also on a busy machine
ALL_S = 1800.0  # for all named tests without a fault
PASSED, FAILED = 0, 1  # of pytest's exit codes


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    name: str
    fault: str  # a sentence
    tests: tuple[str, ...]  # node IDs of the tests that catch it
    patch: Path

    @property
    def files(self) -> tuple[str, ...]:
        """What it changes, from the repository's root."""
        return tuple(re.findall(r"^\+\+\+ b/(\S+)$", self.patch.read_text(), re.MULTILINE))


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    mutant: Mutant
    is_caught: bool
    what: str  # which test failed, or why none did
    seconds: float

    def __str__(self) -> str:
        word = "caught  " if self.is_caught else "SURVIVED"
        return f"{word} {self.seconds:5.1f} s  {self.mutant.name}: {self.what}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tested:
    code: int | None  # pytest's exit code; None: it took too long
    output: str
    seconds: float

    @property
    def failures(self) -> list[str]:
        return re.findall(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", self.output, re.MULTILINE)


def read_mutant(patch: Path) -> Mutant:
    """Two lines come before the diff: the fault, and `caught by: TEST …`."""
    fault, caught_by, *_ = patch.read_text().splitlines()
    label, _, tests = caught_by.partition(": ")
    if label != "caught by" or not tests.split():
        raise SystemExit(f"{patch}: the second line is 'caught by: tests/…::test_…'")
    return Mutant(name=patch.stem, fault=fault, tests=tuple(tests.split()), patch=patch)


def all_mutants() -> list[Mutant]:
    return [read_mutant(patch) for patch in sorted(FOLDER.glob("*.patch"))]


def apply(mutant: Mutant, folder: Path, *options: str) -> None:
    """Apply its patch to the repository in this folder, which may lie inside of another one, or in none."""
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.resolve().parent)}
    command = ["git", "apply", *options, str(mutant.patch)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{mutant.patch.name} does not apply: make it anew (README.md)\n{done.stderr}")


@contextmanager
def clean_copy() -> Iterator[Path]:
    """All of this repository that git knows or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    with tempfile.TemporaryDirectory(prefix="everstep-clean-") as folder:
        for name in filter(None, listed.split("\0")):
            source, target = ROOT / name, Path(folder, name)
            if source.is_symlink() or source.is_file():  # else it was deleted here
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        yield Path(folder)


@contextmanager
def mutated_copy(clean: Path, mutant: Mutant) -> Iterator[Path]:
    """With what was compiled for the clean one: but for the files that are changed, it is the same."""
    with tempfile.TemporaryDirectory(prefix="everstep-mutant-") as above:
        folder = Path(above, "everstep")
        shutil.copytree(clean, folder, symlinks=True)
        apply(mutant, folder)
        for path in (folder / name for name in mutant.files):
            for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
                compiled.unlink()
            compile(path.read_bytes(), path, "exec")  # a fault that no program can run is none
        yield folder


def run_tests(folder: Path, tests: Sequence[str], limit_s: float) -> Tested:
    """By pytest, with the package of this folder, also in all that the tests start."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    began = time.monotonic()
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as pytest:
        try:
            output, _ = pytest.communicate(timeout=limit_s)
            code: int | None = pytest.returncode
        except subprocess.TimeoutExpired:
            os.killpg(pytest.pid, signal.SIGKILL)  # what tests start dies with its parent
            output, code = pytest.communicate()[0], None
    return Tested(code=code, output=output, seconds=time.monotonic() - began)


def check_package(folder: Path) -> None:
    """Else an installed package would be tested, and all mutants would survive."""
    command = [sys.executable, "-c", "import everstep; print(everstep.__file__)"]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    found = subprocess.run(command, cwd="/", env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    if Path(found.strip()).parents[1] != folder:
        raise SystemExit(f"tests in {folder} would import {found.strip()}")


def check_without_fault(clean: Path, mutants: Sequence[Mutant]) -> None:
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    check_package(clean)
    tested = run_tests(clean, tests, ALL_S)
    if tested.code != PASSED:
        print(tested.output)
        raise SystemExit("these tests fail without any fault: that they fail with one would show nothing")
    print(f"without a fault, the {len(tests)} tests pass ({tested.seconds:.0f} s)", flush=True)


def try_mutant(clean: Path, mutant: Mutant) -> Outcome:
    with mutated_copy(clean, mutant) as folder:
        tested = run_tests(folder, mutant.tests, LIMIT_S)
    is_caught = tested.code == FAILED and bool(tested.failures)
    outcome = Outcome(mutant=mutant, is_caught=is_caught, what=_explained(tested), seconds=tested.seconds)
    print(outcome, flush=True)
    return outcome


def _explained(tested: Tested) -> str:
    if tested.code == FAILED and tested.failures:
        return tested.failures[0] + (" (timed out)" if "Failed: Timeout" in tested.output else "")
    if tested.code is None:
        return f"the tests took more than {LIMIT_S:.0f} s"
    return "its tests pass" if tested.code == PASSED else f"pytest ended with exit code {tested.code}"


def main() -> int:
    parser = argparse.ArgumentParser(description="See which test catches which deliberate fault.")
    parser.add_argument("names", nargs="*", help="mutants; without one, all")
    names = parser.parse_args().names
    mutants = [mutant for mutant in all_mutants() if not names or mutant.name in names]
    if unknown := set(names) - {mutant.name for mutant in mutants}:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    with clean_copy() as clean:
        check_without_fault(clean, mutants)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            outcomes = list(pool.map(partial(try_mutant, clean), mutants))
    survived = [outcome.mutant.name for outcome in outcomes if not outcome.is_caught]
    print(json.dumps({"mutants": len(outcomes), "caught": len(outcomes) - len(survived), "survived": survived}))
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
