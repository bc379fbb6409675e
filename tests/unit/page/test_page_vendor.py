"""Third-party scripts: as the lock file has them, with names that a browser can follow, and from no named registry."""

from __future__ import annotations

import json

import pytest

from lab.command import ROOT
from tools import build_backend, page_vendor


@pytest.fixture
def modules(tmp_path):
    def write(path, text):
        path = tmp_path / "node_modules" / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    for path, _ in page_vendor.MODULES.values():
        write(path, "import{h as t}from\"preact\";export{x}from 'preact/hooks';\n//# sourceMappingURL=x.map")
    write("uplot/dist/uPlot.iife.min.js", "var uPlot=function(){}();")
    write("uplot/dist/uPlot.min.css", ".u{}")
    for package in page_vendor.PACKAGES:
        write(f"{package}/LICENSE", f"of {package}")
    return tmp_path / "node_modules"


def test_imports_lead_to_files_next_to_each_other(modules, tmp_path):
    page_vendor.copy(modules, tmp_path / "vendor")
    text = (tmp_path / "vendor" / "signals.js").read_text()
    assert text == "import{h as t}from\"./preact.js\";export{x}from './hooks.js';\n"
    assert (tmp_path / "vendor" / "uplot.js").read_text().endswith("export default uPlot;\n")
    assert "of htm" in (tmp_path / "vendor" / "LICENSES.txt").read_text()


def test_a_script_that_needs_another_package_is_refused(modules, tmp_path):
    (modules / "htm/dist/htm.mjs").write_text('import"left-pad";')
    with pytest.raises(SystemExit, match="left-pad"):
        page_vendor.copy(modules, tmp_path / "vendor")
    assert [path.name for path in tmp_path.iterdir()] == ["node_modules"]


@pytest.mark.parametrize("problem", [SystemExit("npm is missing"), PermissionError("a disk that is read only")])
def test_a_wheel_is_built_without_the_page_if_its_scripts_cannot_be_fetched(problem, monkeypatch, capsys):
    def fail():
        raise problem

    monkeypatch.setattr(build_backend.page_vendor, "main", fail)
    monkeypatch.setattr(build_backend.build_meta, "build_wheel", lambda *_: "everstep.whl")
    assert build_backend.build_wheel("dist") == "everstep.whl"
    assert capsys.readouterr().err == f"everstep: this wheel has no page: {problem}\n"


def test_the_lock_file_has_a_hash_of_each_package_and_names_no_registry():
    packages = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    assert all("integrity" in each for name, each in packages.items() if name)
    assert not any("resolved" in each for each in packages.values())
