"""The page's scripts in Node, where no browser is needed.

A story is a module beside the scripts. It answers their calls by itself: `answers` decides what `fetch` gives."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from lab.command import ROOT
from lab.required import missing

STATIC = ROOT / "everstep" / "page" / "static"
LONGEST_S = 60
WORLD = """
import assert from "node:assert/strict";
globalThis.addEventListener = () => null;
globalThis.requestAnimationFrame = (act) => setTimeout(act);
globalThis.document = { addEventListener: () => null, documentElement: { dataset: {} } };
globalThis.location = { pathname: "/", search: "", hash: "" };
globalThis.matchMedia = () => ({ matches: false, addEventListener: () => null });
globalThis.localStorage = { getItem: () => null };
globalThis.innerWidth = 1000;
globalThis.EventSource = EventTarget;
const later = globalThis.setTimeout;
globalThis.setTimeout = (act, pause = 0) => later(act, pause / 100); // pauses are short in these stories
const asked = [];
let answers = () => ({});
const AWAY = Symbol();
globalThis.fetch = async (path, how = {}) => {
  const url = new URL(path, "http://page");
  asked.push(url.pathname + url.search);
  const body = await answers(url.pathname, Object.fromEntries(url.searchParams), how);
  if (body === AWAY) throw new TypeError("away");
  return { ok: !body.status, status: body.status ?? 200, json: async () => JSON.parse(JSON.stringify(body)) };
};
const until = async (check) => {
  while (!check()) await new Promise((resolve) => later(resolve, 2));
};
const settled = () => new Promise((resolve) => later(resolve, 20));
const held = () => {
  let open;
  const promise = new Promise((resolve) => (open = resolve));
  return { promise, open };
};
const numbers = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => from + i);
const window_of = (steps) => ({
  name: "loss", num_points: steps.length, first_steps: [...steps], first_times: [...steps], firsts: [...steps],
  last_steps: [], last_times: [], lasts: [], least: [], most: [], counts: [], nans: [], infs: [], negative_infs: [],
});
const view_of = (steps, series = 1, name = "loss") => ({
  series, name, count: steps.length, first_step: steps[0], last_step: steps.at(-1), last_time: steps.at(-1),
  last: steps.at(-1), least: Math.min(...steps), most: Math.max(...steps),
});
const points = (steps, count, cut = null) => ({
  series: 1, name: "loss", count, cut, steps, times: steps, values: steps, is_thinned: false,
});
"""


class PageScripts:
    """The scripts in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._program = folder, shutil.which("node")
        if self._program is None or not (ROOT / "node_modules").exists():
            missing("Node.js", "make setup brings it and the page's packages")
        for module in STATIC.glob("*.js"):
            shutil.copy(module, folder)
        (folder / "node_modules").symlink_to(ROOT / "node_modules")
        (folder / "package.json").write_text('{"type": "module"}')

    def __call__(self, story: str) -> None:
        (self._folder / "story.js").write_text(f"{WORLD}{story}\nprocess.exit(0);\n")
        command = [str(self._program), "story.js"]
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, timeout=LONGEST_S, check=False)
        assert done.returncode == 0, done.stderr
