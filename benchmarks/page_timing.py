"""Times inside a browser's window: to the animation frame after what was asked for is in the document."""

from __future__ import annotations

import contextlib
import http.server
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NUM_TIMES = 9
DEADLINE_MS = 60_000  # for one measurement
SIZE = {"width": 1440, "height": 900}


def until(page: Any, condition: str, begin: str = "") -> float:
    """Seconds from `begin`, or from the start of the navigation, to the frame after the condition holds."""
    found: float | None = page.evaluate(f"""() => new Promise((done) => {{
      const [start, now] = [{"performance.now()" if begin else "0"}, performance.now()];
      {begin};
      const look = () => ({condition})
        ? requestAnimationFrame(() => done((performance.now() - start) / 1000))
        : performance.now() - now > {DEADLINE_MS} ? done(null) : requestAnimationFrame(look);
      look();
    }})""")
    if found is None:
        raise TimeoutError(f"not in the page after {DEADLINE_MS / 1000:.0f} s: {condition}")
    return float(found)


def median(measure: Callable[[], float], name: str, num_times: int = NUM_TIMES) -> float:
    times = [measure() for _ in range(num_times)]
    print(f"{name:36s} {statistics.median(times):8.3f} s   {min(times):.3f} to {max(times):.3f}", flush=True)
    return round(statistics.median(times), 4)


def in_new_window(browser: Any, state: Any, address: str, condition: str) -> tuple[float, float]:
    """Seconds to what is asked for, and kilobytes of files that came, with an empty cache."""
    context = browser.new_context(viewport=SIZE, storage_state=state)
    page = context.new_page()
    page.goto(address, wait_until="commit")
    took_s = until(page, condition)
    sizes = page.evaluate(
        "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]"
        ".filter((each) => !each.name.includes('/v1/')).map((each) => each.encodedBodySize)"
    )
    context.close()
    return took_s, sum(sizes) / 1000


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
        with contextlib.suppress(OSError):
            if b"chrom" in Path(f"/proc/{pid}/cmdline").read_bytes():
                total += used.get(pid, 0.0)
        waiting += children.get(pid, [])
    return total


def cores(seconds: float) -> float:
    """The share of a core that the browser takes."""
    before, began = browser_cpu_s(os.getpid()), time.monotonic()
    time.sleep(seconds)
    return (browser_cpu_s(os.getpid()) - before) / (time.monotonic() - began)


def heap_mb(page: Any) -> float:
    """After a forced collection."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")["usedSize"] / 1e6
    session.detach()
    return float(used)
