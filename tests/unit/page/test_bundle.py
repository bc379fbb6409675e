"""A script and what it imports as one file. Node runs what the bundler writes, so that the words mean the same."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from everstep.page.bundle import bundle
from everstep.page.static_files import FOLDER, STARTED, VENDOR
from lab.required import missing

MODULES = {
    "main.js": """import { say, twice as two } from "./words.js";
import make from "./lib/make.js";
say(two(make(1)));
""",
    "words.js": """import { out } from "./lib/out.js";
export const say = (x) => out(x);
export function twice(x) {
  return 2 * x;
}
""",
    "lib/make.js": 'import{plus as p}from"./out.js";var n=1;export default function(x){return p(x,n)}',
    "lib/out.js": 'export{o as out}from"../deep.js";function a(x,y){return x+y}export{a as plus};',
    "deep.js": "let told = 0;\nconst o = (x) => console.log(x, ++told);\nexport { o };\n",
}


def ran(text, tmp_path):
    node = shutil.which("node")
    if node is None:
        missing("node", "make setup brings it with npm")
    (tmp_path / "all.mjs").write_text(text)
    return subprocess.run([node, tmp_path / "all.mjs"], capture_output=True, text=True, check=True).stdout


def test_what_is_imported_runs_first_and_once(tmp_path):
    assert ran(bundle("main.js", MODULES), tmp_path) == "4 1\n"


@pytest.mark.parametrize(
    "text", ['import * as all from "./deep.js";', 'import "./deep.js";', "export let told = 1;", 'import"./deep.js"']
)
def test_other_forms_are_refused(text):
    with pytest.raises(ValueError, match=r"main.js: cannot bundle"):
        bundle("main.js", MODULES | {"main.js": text})


def test_modules_that_import_each_other_are_refused():
    with pytest.raises(ValueError, match="import each other"):
        bundle("a.js", {"a.js": 'import { b } from "./b.js";', "b.js": 'import { a } from "./a.js";'})


def test_the_page_can_be_bundled():
    if not (FOLDER / VENDOR).is_dir():
        missing("browser", "the page's scripts are not there; make setup brings them")
    modules = {path.relative_to(FOLDER).as_posix(): path.read_text() for path in FOLDER.rglob("*.js")}
    for name in STARTED:
        assert f"// {name}\n" in bundle(name, modules)
