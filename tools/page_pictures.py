"""Pictures of every view of the page, light and dark, 390 and 1,440 pixels wide, for people to look at.

    PYTHONPATH=tests python tools/page_pictures.py build/page-pictures

Trains for real: two workers die and one joins while the pictures are taken. Then trials share three slots."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from everstep import env  # noqa: E402
from everstep.client.calls import Coordinator  # noqa: E402
from everstep.testing import Cluster  # noqa: E402
from everstep.wire import JobSpec, NewModel, NewVersion, Policy, Stop  # noqa: E402
from everstep.wire.tokens import USER  # noqa: E402
from lab.elastic_trials import ELASTIC, single, until_ready  # noqa: E402
from lab.experiment_stage import LOSS, ExperimentStage  # noqa: E402
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

TRIALS = {
    "experiments": "/experiments",
    "experiments-chosen": "/experiments?select=1&columns=experiment,name,state,progress,best,hp:lr,hp:hidden,reason",
    "no-experiment-matches": "/experiments?state=paused",
    "pool": "/pools",
    "queue": "/queue",
    "trial": "/trials/1",
    "growing-trial": "/jobs/e2-t1",
    "compare-trials": "/compare?jobs=e1-t1,e1-t2,e1-t3&base=e1-t2",
    "models": "/models",
    "model": "/models/clothes",
}
THREE = {"name": "random", "metric": LOSS, "max_trials": 3, "max_length": {"batches": 6}}
NOTES = "# Clothes\n\nTrained on **8,000 images**. Use `version 1` on small machines."


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
    with tempfile.TemporaryDirectory() as scratch, chromium() as browser:
        take_trials(browser, Path(scratch), folder)
    print(f"{len(list(folder.glob('*.png')))} pictures in {folder}")


def take(browser: Any, cluster: Cluster, folder: Path, width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": SIZES[width]}, color_scheme=scheme)
    page = context.new_page()
    page.goto(f"{cluster.url}/#code=wrong")
    page.get_by_text("unknown to the coordinator").wait_for()
    page.screenshot(path=folder / f"door-{width}-{scheme}.png")
    page.goto(f"{cluster.url}/?#code={new_code(cluster.url, cluster.token_file)}")
    page.get_by_role("heading", name="Jobs").wait_for()
    take_views(page, cluster.url, VIEWS, folder, f"{width}-{scheme}")
    context.close()


def take_trials(browser: Any, scratch: Path, folder: Path) -> None:
    """Three trials that are over, one that has grown, and others that wait."""
    with ExperimentStage(scratch, slots=3) as stage:
        winner, _ = stage.search(stage.write("three", THREE, restarts=0))
        with stage.coordinator() as coordinator:
            uuid = coordinator.trial(1, winner).best_checkpoint
            coordinator.create_model(NewModel(request="1", name="clothes", notes=NOTES, labels=["small", "images"]))
            version = NewVersion(checkpoint=uuid, comment="the best of three", metadata={"stage": "production"})
            coordinator.register_version("clothes", version)
        stage.hold(1, 2)
        stage.create(stage.write("grows", single(60), **ELASTIC))
        stage.wait_held(1, 2)
        until_ready(stage, "e2-t1", 3)
        stage.create(stage.write("waits", {**THREE, "max_trials": 8}, restarts=0))
        url, token_file = stage.url, stage.files.coordinator.token
        for width in SIZES:
            for scheme in ("light", "dark"):
                context = browser.new_context(viewport={"width": width, "height": SIZES[width]}, color_scheme=scheme)
                page = context.new_page()
                page.goto(f"{url}/#code={new_code(url, token_file, USER)}")
                page.get_by_role("heading", name="Jobs").wait_for()
                take_views(page, url, TRIALS, folder, f"{width}-{scheme}")
                context.close()
        stage.let_on()


def take_views(page: Any, url: str, views: dict[str, str], folder: Path, suffix: str) -> None:
    for name, path in views.items():
        page.goto(url + path)
        page.locator("main :is(canvas, table, [role=log], .empty)").first.wait_for()
        page.wait_for_load_state("load")
        page.wait_for_timeout(700)  # until plots and lines are drawn
        page.screenshot(path=folder / f"{name}-{suffix}.png")


if __name__ == "__main__":
    main()
