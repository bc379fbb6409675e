"""How quick and how light the page is, in a real browser (Debian's chromium) before a real coordinator on loopback.

The coordinator has 10,000 jobs, one series of a million points, and a job whose 100 series get a point each second.
Times are taken inside the page: from the click, or the start of the navigation, to the animation frame after what was
asked for is in the document. Medians of 9, beside the time that the same browser takes for an empty page. The
processor's share is that of all processes of the browser, less what they take with an empty page. The heap is read
after a forced collection: once it has settled, and again after the given minutes at 10 times the rate. Prints a table;
the last line is JSON.

    python benchmarks/page.py --minutes 10"""

from __future__ import annotations

import argparse
import contextlib
import http.server
import json
import math
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.env import read_token
from everstep.launcher.local_coordinator import CoordinatorFiles, private_directory, start_coordinator
from everstep.record.store import MetricStore
from everstep.record.writing import Incoming
from lab.page_window import chromium, new_code

NUM_TIMES = 9
NUM_CURVES, FASTER = 100, 10
CORE_S = 15.0
SETTLE_S = 20.0
LIVE_JOB, PLOT_JOB = "live", "plotted"
AT_ONCE = 10_000
DEADLINE_MS = 20_000  # for one measurement


class Live:
    """A job that reports like a training would: each series gets a point per period."""

    def __init__(self, url: str, token: str) -> None:
        self.period_s, self._is_over = 1.0, threading.Event()
        self._coordinator = Coordinator(url, token, LIVE_JOB)
        self._coordinator.create_job(wire.JobSpec(name="live"))
        self._worker = self._coordinator.reserve(wire.ReserveWorker(agent="node1", request="one")).worker
        self._thread = threading.Thread(target=self._report)

    def _report(self) -> None:
        step = 0
        while not self._is_over.wait(self.period_s):
            step += 1
            values = {f"curve/{i}": math.sin(step / 30 + i) for i in range(NUM_CURVES)}
            report = wire.MetricReport(step=step, time=time.time(), values=values)
            self._coordinator.report_metrics(self._worker, wire.MetricReports(reports=[report]))

    def __enter__(self) -> Live:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._coordinator.close()


@contextlib.contextmanager
def empty_page() -> Iterator[str]:
    class Empty(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>empty</title><main>empty</main>")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def fill(store: str, num_points: int) -> None:
    """A long series that is there before the coordinator."""
    record = MetricStore(store, epoch=0)
    for start in range(0, num_points, AT_ONCE):
        steps = range(start, min(num_points, start + AT_ONCE))
        reports = [wire.MetricReport(step=step, time=float(step), values={"x": math.sin(step)}) for step in steps]
        record.keep([Incoming(PLOT_JOB, -1, reports)])
    record.close()


def create_jobs(url: str, token: str, num_jobs: int) -> None:
    for number in range(num_jobs):
        with Coordinator(url, token, f"job-{number}") as coordinator:
            coordinator.create_job(wire.JobSpec(name=f"train_{number % 7}.py"))


def until(page: Any, condition: str, begin: str = "") -> float:
    """Seconds from `begin`, or from the start of the navigation, to the frame after the condition holds."""
    return float(
        page.evaluate(f"""() => new Promise((done) => {{
      const start = {"performance.now()" if begin else "0"};
      {begin};
      const look = () => ({condition})
        ? requestAnimationFrame(() => done((performance.now() - start) / 1000))
        : performance.now() - start > {DEADLINE_MS} ? done(NaN) : requestAnimationFrame(look);
      look();
    }})""")
    )


def median(measure: Callable[[int], float], name: str) -> float:
    times = [measure(number) for number in range(NUM_TIMES)]
    print(f"{name:24s} {statistics.median(times):8.3f} s   {min(times):.3f} to {max(times):.3f}", flush=True)
    return round(statistics.median(times), 4)


def in_new_window(browser: Any, state: Any, address: str, condition: str) -> tuple[float, float]:
    """Seconds to what is asked for, and kilobytes that came, with an empty cache."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, storage_state=state)
    page = context.new_page()
    page.goto(address, wait_until="commit")
    took_s = until(page, condition)
    sizes = page.evaluate(
        "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]"
        ".filter((each) => !each.name.includes('/v1/')).map((each) => each.encodedBodySize)"
    )
    context.close()
    return took_s, sum(sizes) / 1000


def browser_cpu_s(root: int) -> float:
    """Of all processes that the driver has started, dead ones included where their parents have waited for them."""
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
                used[int(entry.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    total, waiting = 0.0, list(children.get(root, []))
    while waiting:
        pid = waiting.pop()
        if b"chrom" in Path(f"/proc/{pid}/cmdline").read_bytes():
            total += used.get(pid, 0.0)
        waiting += children.get(pid, [])
    return total


def cores(seconds: float) -> float:
    before, began = browser_cpu_s(os.getpid()), time.monotonic()
    time.sleep(seconds)
    return (browser_cpu_s(os.getpid()) - before) / (time.monotonic() - began)


def heap_mb(page: Any) -> float:
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")["usedSize"] / 1e6
    session.detach()
    return float(used)


def measure(browser: Any, url: str, files: CoordinatorFiles, arguments: argparse.Namespace) -> dict[str, float]:
    found: dict[str, float] = {}
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.goto(f"{url}/#code={new_code(url, files.token)}")
    page.get_by_role("heading", name="Jobs").wait_for()
    state = context.storage_state()

    with empty_page() as empty:
        found["empty_paint_s"] = median(
            lambda _: in_new_window(browser, None, empty, "document.querySelector('main')")[0], "empty page"
        )
        page.goto(empty)
        idle = cores(CORE_S / 3)
    rows = "document.querySelector('tbody a')"
    found["first_paint_s"] = median(lambda _: in_new_window(browser, state, f"{url}/", rows)[0], "first view: jobs")
    plot = "document.querySelector('canvas')"
    whole = f"{url}/jobs/{PLOT_JOB}"
    found["first_plot_s"] = median(lambda _: in_new_window(browser, state, whole, plot)[0], "first view: a job")
    found["first_kb"] = round(in_new_window(browser, state, whole, "document.querySelector('canvas') && 1")[1], 1)

    page.goto(f"{url}/")
    until(page, rows)
    sorted_by = "[...document.querySelectorAll('th button')].find((each) => each.textContent.startsWith('Job'))"

    page.evaluate(f"{sorted_by}.click()")
    page.wait_for_timeout(2000)

    def sort(number: int) -> float:
        """To the other direction: another job is first."""
        first = page.locator("tbody a").first.inner_text()
        return until(page, f"{rows}.textContent !== {json.dumps(first)}", f"{sorted_by}.click()")

    found["sort_10000_s"] = median(sort, f"sort {arguments.jobs} jobs")

    said = "document.querySelector('figure footer').textContent"
    points = f"document.querySelector('figure canvas') && {said}.includes('of {arguments.points:,} ')"

    def open_plot(number: int) -> float:
        page.evaluate("history.pushState(null, '', '/'); dispatchEvent(new PopStateEvent('popstate'))")
        until(page, rows)
        to = f"history.pushState(null, '', '/jobs/{PLOT_JOB}'); dispatchEvent(new PopStateEvent('popstate'))"
        return until(page, points, to)

    found["plot_1e6_s"] = median(open_plot, f"plot {arguments.points} points")

    def zoom(number: int) -> float:
        seen = page.locator("figure footer span").first.inner_text()
        button = "document.querySelector('[aria-label=\\'Zoom in\\']').click()"
        return until(page, f"document.querySelector('figure footer span').textContent !== {json.dumps(seen)}", button)

    found["zoom_s"] = median(zoom, "zoom")

    with Live(url, read_token(files.token)) as live:
        page.goto(f"{url}/jobs/{LIVE_JOB}")
        until(page, plot)
        page.wait_for_timeout(3000)
        found["live_100_curves_core"] = round(max(0.0, cores(CORE_S) - idle), 4)
        live.period_s /= FASTER
        page.wait_for_timeout(SETTLE_S * 1000)
        before = heap_mb(page)
        page.wait_for_timeout(arguments.minutes * 60_000)
        found["heap_growth_mb"] = round(heap_mb(page) - before, 2)
        found["heap_minutes"] = arguments.minutes
    context.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=10.0, help="that the heap is watched for")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="everstep-bench-") as folder:
        files = CoordinatorFiles(directory=private_directory(Path(folder) / "coordinator"))
        fill(str(files.store_url.removeprefix("sqlite:///")), arguments.points)
        coordinator, url = start_coordinator(files)
        try:
            create_jobs(url, read_token(files.token), arguments.jobs)
            with Coordinator(url, read_token(files.token), PLOT_JOB) as made:
                made.create_job(wire.JobSpec(name="plotted"))
            with chromium() as browser:
                found = measure(browser, url, files, arguments)
        finally:
            coordinator.kill()
    for key, value in found.items():
        print(f"{key:32s} {value:12.4f}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
