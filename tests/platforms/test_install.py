"""A wheel of this checkout, on a machine that has no checkout: it is whole, it runs, and images install it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from everstep.page.static_files import StaticFiles
from everstep.platforms.image import FOLDER, place_wheel, wheels_in
from lab.command import ROOT

BUILT = "everstep/page/static/built/"
ARTIFACTS = ROOT / "everstep" / "templates" / "oci" / "oci_dist_training_artifacts" / "pytorch" / "v1"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    assert place_wheel(folder)
    (found,) = folder.glob("everstep-*.whl")
    return found


def test_all_files_are_in_the_wheel(wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("everstep/")}
    assert _files_of("everstep") <= packed


def test_the_wheel_has_the_scripts_of_the_page_with_their_licenses(wheel: Path) -> None:
    """Built with packages as the lock file has them; none of it is in the repository."""
    packed = zipfile.ZipFile(wheel)
    names = {name.removeprefix(BUILT) for name in packed.namelist() if name.startswith(BUILT)}
    assert names == {"main.js", "stream_worker.js", "uplot.js", "uplot.css", "LICENSES.txt", "built_from.txt"}
    assert packed.read(f"{BUILT}LICENSES.txt").count(b"opyright") >= 4
    assert not [name for name in packed.namelist() if "node_modules" in name or name.startswith("tools/")]


def test_a_wheel_built_without_npm_has_all_but_the_page(tmp_path: Path) -> None:
    """From a fresh checkout, by a pip that finds no other program."""
    checkout = tmp_path / "checkout"
    files = ("pyproject.toml", "package.json", "package-lock.json", "README.md", "LICENSE")
    for name in _files_of("everstep", "tools", *files):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    command = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", checkout)
    _run(*command, folder=tmp_path, PATH=str(tmp_path))
    (wheel,) = tmp_path.glob("everstep-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        assert not [name for name in packed.namelist() if name.startswith(BUILT)]
        packed.extractall(tmp_path / "site")
    page = StaticFiles(tmp_path / "site" / "everstep" / "page" / "static").reply("/", {})
    assert page is not None and b"The page's scripts are missing" in page.body


def test_it_installs_and_trains_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    """Other packages are this machine's; Everstep is the wheel's alone."""
    machine = tmp_path / "machine"
    venv.create(machine, with_pip=True)
    python = machine / "bin" / "python"
    _run(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel, folder=tmp_path)
    ((site),) = machine.glob("lib/python*/site-packages")
    packages = [path for path in sys.path if path.endswith("site-packages")]
    (site / "others.pth").write_text("\n".join([*packages, sysconfig.get_paths()["purelib"]]) + "\n")
    everstep = machine / "bin" / "everstep"

    assert _run(python, "-c", "import everstep; print(everstep.__file__)", folder=tmp_path).startswith(str(site))
    assert _run(everstep, "--version", folder=tmp_path).strip().endswith("0.1.0")
    _run(everstep, "init", "circle", folder=tmp_path)
    said = _run(everstep, "run", "--nproc-per-node", "2", "train.py", "--epochs", "1", folder=tmp_path / "circle")
    assert "epoch 1: loss" in said and "with 2 workers" in said
    assert (tmp_path / "circle" / "model.pt").exists()


def test_the_wheel_is_in_the_build_context_during_the_build_only(tmp_path: Path) -> None:
    with wheels_in(tmp_path):
        assert [path.suffix for path in (tmp_path / FOLDER).iterdir()] == [".whl"]
    assert not (tmp_path / FOLDER).exists()


@pytest.mark.parametrize("has_conda", [False, True])
def test_the_environment_file_of_ads_is_installed_by_what_the_base_has(has_conda: bool, tmp_path: Path) -> None:
    """By a Python and a conda that write down what they are asked for."""
    for name in ("python3", *(["conda"] if has_conda else [])):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/asked\n')
        program.chmod(0o755)
    (tmp_path / "environment.yaml").write_bytes((ARTIFACTS / "environment.yaml").read_bytes())
    (tmp_path / "everstep-1-py3-none-any.whl").touch()
    started = f"import sys; sys.executable = {str(tmp_path / 'bin' / 'python3')!r}; "
    started += f"sys.argv = ['', {str(tmp_path / 'environment.yaml')!r}]; "
    started += f"import runpy; runpy.run_path({str(ARTIFACTS / 'install.py')!r}, run_name='__main__')"
    _run(sys.executable, "-c", started, folder=tmp_path, PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin")

    asked = (tmp_path / "asked").read_text().splitlines()
    pip = f"python3 -m pip install --no-cache-dir {tmp_path}/everstep-1-py3-none-any.whl"
    if has_conda:
        assert asked == [pip, f"conda env update --quiet --name base --file {tmp_path}/environment.yaml"]
    else:
        assert asked == [f"{pip} everstep[torch] ocifs"]


def test_only_the_pip_section_is_read() -> None:
    spec = importlib.util.spec_from_file_location("install", ARTIFACTS / "install.py")
    assert spec is not None and spec.loader is not None
    install = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(install)
    text = "dependencies:\n  - numpy\n  - pip:\n      - 'a[b]>=1'  # why\n\n      # none\n      - c\n  - scipy\n"
    assert install.pip_section(text) == ["a[b]>=1", "c"]
    assert install.pip_section("dependencies: [numpy]\n") == []


def _files_of(*names: str) -> set[str]:
    """Those that are tracked, or would be."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *names]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return {name for name in found.stdout.split() if (ROOT / name).exists()}


def _run(*words: str | Path, folder: Path, **env: str) -> str:
    outer: Mapping[str, str] = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in words], cwd=folder, env={**outer, **env}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
