"""Pictures of every view of the page, light and dark, 390 and 1,440 pixels wide, for people to look at.

    PYTHONPATH=tests python tools/page_pictures.py build/page-pictures

Trains for real: two workers die and one joins while the pictures are taken."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from everstep import env  # noqa: E402
from everstep.client.calls import Coordinator  # noqa: E402
from everstep.testing import Cluster  # noqa: E402
from everstep.wire import JobSpec, Policy, Stop  # noqa: E402
from lab.page_window import chromium, new_code  # noqa: E402

SCRIPT = ROOT / "tests" / "page" / "training.py"
SIZES = {1440: 900, 390: 844}
JOB = "/jobs/test"
VIEWS = {
    "jobs": "/",
    "nothing-found": "/?find=nothing",
    "metrics": JOB,
    "zoomed": f"{JOB}?from=60&to=160&smooth=0.8",
    "time": f"{JOB}?x=time&logy=1",
    "logs": f"{JOB}?view=logs",
    "search": f"{JOB}?view=logs&find=loss+0.9",
    "workers": f"{JOB}?view=workers",
    "checkpoints": f"{JOB}?view=checkpoints",
    "system": f"{JOB}?view=system",
    "configuration": f"{JOB}?view=configuration",
    "no-metrics": "/jobs/waiting-1",
    "no-such-job": "/jobs/none",
    "compare": "/compare?jobs=test,waiting-1,waiting-2",
    "nothing-to-compare": "/compare",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    with Cluster(SCRIPT, ["--pause-s", "0.05"], workers=3, policy=Policy(lease_s=60)) as cluster, chromium() as browser:
        cluster.wait("step.committed", step=80)
        cluster.kill("w1")
        (newcomer,) = cluster.add(1)
        cluster.wait("step.committed", worker=newcomer)
        for number in range(1, 12):
            with Coordinator(cluster.url, env.read_token(cluster.token_file), f"waiting-{number}") as other:
                other.create_job(JobSpec(name="train.py", policy=Policy(min_workers=number)))
                if number % 3 == 0:
                    other.stop(Stop(reason="stopped by ana: the learning rate was wrong"))
        cluster.wait("step.committed", step=cluster.view().workers[0].step + 120)
        cluster.kill("w0")
        for width in SIZES:
            for scheme in ("light", "dark"):
                take(browser, cluster, folder, width, scheme)
    print(f"{len(list(folder.glob('*.png')))} pictures in {folder}")


def take(browser: Any, cluster: Cluster, folder: Path, width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": SIZES[width]}, color_scheme=scheme)
    page = context.new_page()
    page.goto(f"{cluster.url}/#code=wrong")
    page.get_by_text("unknown to the coordinator").wait_for()
    page.screenshot(path=folder / f"door-{width}-{scheme}.png")
    page.goto(f"{cluster.url}/?#code={new_code(cluster.url, cluster.token_file)}")
    page.get_by_role("heading", name="Jobs").wait_for()
    for name, path in VIEWS.items():
        page.goto(cluster.url + path)
        page.locator("main :is(canvas, table, [role=log], .empty)").first.wait_for()
        page.wait_for_load_state("load")
        page.wait_for_timeout(700)  # until plots and lines are drawn
        page.screenshot(path=folder / f"{name}-{width}-{scheme}.png")
    context.close()


if __name__ == "__main__":
    main()
