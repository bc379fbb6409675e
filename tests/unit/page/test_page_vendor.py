"""The page's scripts, built with esbuild: from packages as the lock file has them, and again when a script changes."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from everstep.page.static_files import BUILT_FROM, NEEDED, StaticFiles
from lab.command import ROOT
from lab.required import missing
from tools import build_backend, page_vendor

FIRST_VIEW = ("/", "/static/page.css", "/static/icon.svg", "/static/built/uplot.css")
SCRIPTS = ("main.js", "stream_worker.js")
VIEWS = ("experiments", "experiment", "trial", "pool", "queue", "models")
FIRST_VIEW_BYTES = 100_000
GZIP = {b"accept-encoding": b"gzip"}


@pytest.fixture
def static(tmp_path, monkeypatch):
    """The page as it is in a fresh checkout, not built yet."""
    if not page_vendor.is_as_locked(ROOT / "node_modules"):
        missing("npm", "the packages are not as package-lock.json has them; make page installs them")
    folder = tmp_path / "static"
    shutil.copytree(page_vendor.STATIC, folder, ignore=shutil.ignore_patterns("built"))
    monkeypatch.setattr(page_vendor, "STATIC", folder)
    monkeypatch.setattr(page_vendor, "BUILT", folder / "built")
    monkeypatch.setattr("sys.argv", ["page_vendor.py"])
    return folder


def is_said_to_be_old(monkeypatch):
    monkeypatch.setattr("sys.argv", ["page_vendor.py", "--check"])
    with pytest.raises(SystemExit) as said:
        page_vendor.main()
    monkeypatch.setattr("sys.argv", ["page_vendor.py"])
    return bool(said.value.code)


def test_a_script_that_changes_is_built_again(static, monkeypatch):
    assert is_said_to_be_old(monkeypatch)
    page_vendor.main()
    assert not is_said_to_be_old(monkeypatch)

    (static / "main.js").write_text((static / "main.js").read_text() + "\nconsole.log('changed now');\n")
    assert is_said_to_be_old(monkeypatch)
    page_vendor.main()
    assert "changed now" in (static / NEEDED).read_text() and not is_said_to_be_old(monkeypatch)


def test_the_server_reads_what_it_was_built_from(static, caplog):
    page_vendor.main()
    StaticFiles(static).reply("/", {})
    assert not caplog.records and (static / BUILT_FROM).exists()


def test_the_first_view_is_small_and_plots_come_when_they_are_needed(static):
    page_vendor.main()
    files = StaticFiles(static)
    scripts = imported(static / "built", SCRIPTS)
    replies = {path: files.reply(path, GZIP) for path in (*FIRST_VIEW, *(f"/static/built/{name}" for name in scripts))}
    assert all(reply.status == 200 for reply in replies.values())
    assert sum(len(reply.body) for reply in replies.values()) <= FIRST_VIEW_BYTES
    started, plots = "".join(scripts.values()), (static / "built" / "uplot.js").read_text()
    assert "u-over" in plots and "u-over" not in started
    assert "./uplot.js" in started and "./stream_worker.js" in started
    later = {each: f"./{path.name}" for each in VIEWS for path in (static / "built").glob(f"part-{each}-*.js")}
    assert set(later) == set(VIEWS) and all(f'import("{path}")' in started for path in later.values())


def imported(built, names):
    """The texts of these scripts, and of those that a browser loads with them."""
    found = {}
    left = list(names)
    while left:
        name = left.pop()
        if name not in found:
            found[name] = (built / name).read_text()
            left += re.findall(r'(?:from|import)"\./([^"]+)"', found[name])
    return found


def test_the_licenses_are_those_of_packages_that_browsers_get(static):
    page_vendor.main()
    text = (static / "built" / "LICENSES.txt").read_text()
    for package in ("preact", "@preact/signals", "@preact/signals-core", "htm", "uplot"):
        assert f"{package}\n\n" in text
    assert "typescript" not in text and "esbuild" not in text


@pytest.mark.parametrize("line", ["import 'left-pad';", "const ="])
def test_a_script_that_cannot_be_built_changes_nothing(static, line, capfd):
    page_vendor.main()
    before = (static / NEEDED).read_bytes()
    (static / "main.js").write_text(line)
    with pytest.raises(SystemExit, match="esbuild failed"):
        page_vendor.main()
    assert "main.js:1:" in capfd.readouterr().err
    assert (static / NEEDED).read_bytes() == before
    assert [path.name for path in static.iterdir() if path.is_dir()] == ["built"]


def test_installed_packages_are_used_only_if_they_are_those_of_the_lock_file(tmp_path, monkeypatch):
    packages = {
        "": {},
        "node_modules/a": {"integrity": "1"},
        "node_modules/for-here": {"integrity": "2", "optional": True},
        "node_modules/for-elsewhere": {"integrity": "3", "optional": True},
    }
    monkeypatch.setattr(page_vendor, "LOCK", tmp_path / "lock.json")
    (tmp_path / "lock.json").write_text(json.dumps({"packages": packages}))

    def installed(**integrity):
        written = {f"node_modules/{name.replace('_', '-')}": {"integrity": each} for name, each in integrity.items()}
        (tmp_path / ".package-lock.json").write_text(json.dumps({"packages": written}))
        return page_vendor.is_as_locked(tmp_path)

    assert not page_vendor.is_as_locked(tmp_path)
    assert installed(a="1", for_here="2")
    assert not installed(a="0", for_here="2")
    assert not installed(for_here="2")
    assert not installed(a="1", for_here="2", b="4")


@pytest.mark.parametrize("problem", [SystemExit("npm is missing"), PermissionError("a disk that is read only")])
def test_a_wheel_is_built_without_the_page_if_its_scripts_cannot_be_built(problem, monkeypatch, capsys):
    def fail():
        raise problem

    monkeypatch.setattr(build_backend.page_vendor, "main", fail)
    monkeypatch.setattr(build_backend.build_meta, "build_wheel", lambda *_: "everstep.whl")
    assert build_backend.build_wheel("dist") == "everstep.whl"
    assert capsys.readouterr().err == f"everstep: the page is missing or outdated in this wheel: {problem}\n"


def test_the_lock_file_has_a_hash_of_each_package_and_names_no_registry():
    packages = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    assert all("integrity" in each for name, each in packages.items() if name)
    assert not any("resolved" in each for each in packages.values())
    assert {"node_modules/@esbuild/linux-x64", "node_modules/@esbuild/linux-arm64"} <= set(packages)
