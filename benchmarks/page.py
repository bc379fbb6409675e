"""How quick and how light the page is, in a real browser (Debian's chromium) before a real coordinator on loopback.

The coordinator has 10,000 jobs, one series of a million points, and a job whose 100 series get a point each second.
Times are taken inside the page: from the click, or the start of the navigation, to the animation frame after what was
asked for is in the document. Medians of 9, beside the time that the same browser takes for an empty page, and next to
TensorBoard and MLflow with the same points where `make peers` has them. `mark_s`: from `kill -9` of a worker of a real
training to its row in the table under the plots, median of 5. Two experiments, of 10,000 and of 1,000 trials over six
hyperparameters, are in the store: `sort_trials_s` is from the click on a column's head to the sorted rows, `parallel_s`
from the click on “Hyperparameters” to the frame in which all 1,000 lines are drawn. The processor's share is that of
all processes of the browser, less what they take with an empty page. The heap is read after a forced collection: once
it has settled, and again after the given minutes at 10 times the rate. Prints a table; the last line is JSON, with null
for peers that are not installed.

Goals: `first_kb` 100; `first_paint_s` 0.3; `sort_10000_s` 0.2; `sort_trials_s` 0.2; `parallel_s` 0.3;
`plot_1e6_s` 0.15; `zoom_s` 0.1; `mark_s` 2; `live_100_curves_core` 0.1; `heap_growth_mb` 5 in 10 minutes.

    python benchmarks/page.py --minutes 10"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from benchmarks.page_data import LIVE_JOB, PLOT_JOB, Live, fill_jobs, fill_points
from benchmarks.page_peers import measure_peers
from benchmarks.page_timing import SIZE, cores, empty_page, heap_mb, in_new_window, median, until
from everstep.env import read_token
from everstep.launcher.local_coordinator import CoordinatorFiles, private_directory, start_coordinator
from everstep.testing import Cluster
from everstep.wire import Policy
from lab.many_trials import fill_trials
from lab.page_window import chromium, new_code

CORE_S = 15.0
SETTLE_S = 20.0
FASTER = 10
NUM_DEATHS = 5
TRAINING = Path(__file__).parents[1] / "tests" / "page" / "training.py"
PATIENT = Policy(lease_s=60, arrive_s=60, stall_s=60)

ROWS = "document.querySelector('tbody a')"
CANVAS = "document.querySelector('figure canvas')"
COUNT = "document.querySelector('figure footer span')"
MANY, LINES = 1, 2  # experiments
BY_RATE = "[...document.querySelectorAll('th button')].find((each) => each.textContent.startsWith('lr'))"
DRAWN = "document.querySelector('.sideways canvas[data-drawn]')"
BY_JOB = "[...document.querySelectorAll('th button')].find((each) => each.textContent.startsWith('Job'))"
SEEN = """(worker) => {
  window.seenAt = null;
  const look = () => {
    const rows = [...document.querySelectorAll('[aria-label="Workers over time as a table"] tr')];
    const isThere = rows.some((row) => row.textContent.includes('Death')
      && [...row.cells].some((cell) => cell.textContent === worker));
    if (isThere) requestAnimationFrame(() => (window.seenAt = Date.now() / 1000));
    else requestAnimationFrame(look);
  };
  look();
}"""


def open_path(path: str) -> str:
    """As Back and Forward do."""
    return f"history.pushState(null, '', '{path}'); dispatchEvent(new PopStateEvent('popstate'))"


def open_session(browser: Any, url: str, token_file: Path) -> Any:
    page = browser.new_context(viewport=SIZE).new_page()
    page.goto(f"{url}/#code={new_code(url, token_file)}")
    page.get_by_role("heading", name="Jobs", level=1).wait_for()
    return page


def measure(browser: Any, url: str, files: CoordinatorFiles, arguments: argparse.Namespace) -> dict[str, float]:
    found: dict[str, float] = {}
    page = open_session(browser, url, files.token)
    state = page.context.storage_state()
    with empty_page() as empty:
        main = "document.querySelector('main')"
        found["empty_paint_s"] = median(lambda: in_new_window(browser, None, empty, main)[0], "empty page")
        page.goto(empty)
        idle = cores(CORE_S / 3)
    found["first_paint_s"] = median(lambda: in_new_window(browser, state, f"{url}/", ROWS)[0], "first view: jobs")
    job = f"{url}/jobs/{PLOT_JOB}"
    found["first_plot_s"] = median(lambda: in_new_window(browser, state, job, CANVAS)[0], "first view: a job")
    found["first_kb"] = round(in_new_window(browser, state, job, CANVAS)[1], 1)
    page.goto(f"{url}/")
    until(page, ROWS)
    found |= measure_clicks(page, arguments) | measure_trials(page, url, arguments)
    found |= measure_live(page, url, files, idle, arguments.minutes)
    page.context.close()
    return found


def measure_clicks(page: Any, arguments: argparse.Namespace) -> dict[str, float]:
    page.evaluate(f"{BY_JOB}.click()")
    page.wait_for_timeout(2000)

    def sort() -> float:
        """To the other direction: another job is first."""
        first = page.locator("tbody a").first.inner_text()
        return until(page, f"{ROWS}.textContent !== {json.dumps(first)}", f"{BY_JOB}.click()")

    def open_plot() -> float:
        until(page, ROWS, open_path("/"))
        drawn = f"{CANVAS} && {COUNT}.textContent.includes('of {arguments.points:,} ')"
        return until(page, drawn, open_path(f"/jobs/{PLOT_JOB}"))

    def zoom() -> float:
        seen = page.locator("figure footer span").first.inner_text()
        button = "document.querySelector('[aria-label=\\'Zoom in\\']').click()"
        return until(page, f"{COUNT}.textContent !== {json.dumps(seen)}", button)

    return {
        "sort_10000_s": median(sort, f"sort {arguments.jobs:,} jobs"),
        "plot_1e6_s": median(open_plot, f"plot {arguments.points:,} points"),
        "zoom_s": median(zoom, "zoom"),
    }


def measure_trials(page: Any, url: str, arguments: argparse.Namespace) -> dict[str, float]:
    page.goto(f"{url}/experiments/{MANY}/trials")
    until(page, ROWS)
    page.evaluate(f"{BY_RATE}.click()")
    page.wait_for_timeout(2000)

    def sort() -> float:
        """To the other direction: another trial is first."""
        first = page.locator("tbody a").first.inner_text()
        return until(page, f"{ROWS}.textContent !== {json.dumps(first)}", f"{BY_RATE}.click()")

    found = {"sort_trials_s": median(sort, f"sort {arguments.trials:,} trials")}
    page.goto(f"{url}/experiments/{LINES}/trials")
    until(page, ROWS)

    def draw() -> float:
        until(page, ROWS, open_path(f"/experiments/{LINES}/trials"))
        return until(page, DRAWN, open_path(f"/experiments/{LINES}/charts"))

    return found | {"parallel_s": median(draw, f"parallel coordinates of {arguments.lines:,}")}


def measure_live(page: Any, url: str, files: CoordinatorFiles, idle: float, minutes: float) -> dict[str, float]:
    with Live(url, read_token(files.token)) as live:
        page.goto(f"{url}/jobs/{LIVE_JOB}")
        until(page, CANVAS)
        page.wait_for_timeout(3000)
        share = round(max(0.0, cores(CORE_S) - idle), 4)
        live.period_s /= FASTER
        page.wait_for_timeout(SETTLE_S * 1000)
        before = heap_mb(page)
        page.wait_for_timeout(minutes * 60_000)
        growth = round(heap_mb(page) - before, 2)
    return {"live_100_curves_core": share, "heap_growth_mb": growth, "heap_minutes": minutes}


def measure_marks(browser: Any) -> float:
    with Cluster(TRAINING, workers=3, policy=PATIENT) as cluster:
        cluster.wait("step.committed", step=5)
        page = open_session(browser, cluster.url, cluster.token_file)
        page.goto(f"{cluster.url}/jobs/test")
        page.get_by_role("button", name="Table of workers over time").click()

        def die() -> float:
            (newcomer,) = cluster.add(1)
            cluster.wait("step.committed", worker=newcomer)
            page.evaluate(SEEN, newcomer)
            killed_at = time.time()
            cluster.kill(newcomer)
            until(page, "window.seenAt", "0")
            return float(page.evaluate("window.seenAt")) - killed_at

        took_s = median(die, "a death is a mark on the page", NUM_DEATHS)
        page.context.close()
    return took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--trials", type=int, default=10_000, help="in the table")
    parser.add_argument("--lines", type=int, default=1000, help="of parallel coordinates")
    parser.add_argument("--minutes", type=float, default=10.0, help="that the heap is watched for")
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as folder, chromium() as browser:
        files = CoordinatorFiles(directory=private_directory(Path(folder) / "coordinator"))
        fill_points(str(files.store_url.removeprefix("sqlite:///")), arguments.points)
        fill_jobs(files.store_url, arguments.jobs)
        fill_trials(files.store_url, MANY, arguments.trials)
        fill_trials(files.store_url, LINES, arguments.lines)
        coordinator, url = start_coordinator(files)
        try:
            found |= measure(browser, url, files, arguments)
        finally:
            coordinator.kill()
        found["mark_s"] = measure_marks(browser)
        found |= measure_peers(browser, Path(folder), arguments.points)
    found["load"] = round(os.getloadavg()[0], 1)
    for key, value in found.items():
        print(f"{key:32s} {'-' if value is None else f'{value:12.4f}'}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
