"""Trials on the page, with real training: one that grew and shrank, several side by side, and checkpoints that become
versions of a model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep.wire.tokens import USER
from lab.command import until
from lab.elastic_trials import ELASTIC, released, single, until_ready, until_slots
from lab.experiment_stage import LOSS, ExperimentStage
from lab.page_window import serious_findings, signed_in

LONG = 60  # batches, so that a further slot pays back
HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
THREE = {"name": "random", "metric": LOSS, "max_trials": 3, "max_length": {"batches": 4}}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[ExperimentStage]:
    with ExperimentStage(tmp_path, slots=3) as made:
        yield made


def test_a_trial_that_grew_and_shrank_shows_it(browser: Any, stage: ExperimentStage) -> None:
    stage.hold(1, 2)
    first = stage.create(stage.write("first", single(LONG), **ELASTIC))
    stage.wait_held(1, 2)
    until_slots(stage, 1, 3)
    until_ready(stage, "e1-t1", 3)
    stage.hold(1, 5)
    stage.let_on(2)
    stage.wait_held(1, 5)
    with signed_in(browser, stage.url, stage.files.coordinator.token, USER) as window:
        page = window.open("/trials/1")
        page.get_by_role("heading", name="Trial 1", exact=True).wait_for()
        page.locator("#sizes", has_text=re.compile("3 workers$")).wait_for()
        second = stage.create(stage.write("second", single(3), **ELASTIC))
        until(lambda: released(stage), stage.whole_story)
        stage.let_on(5)
        stage.end_of(second)
        stage.end_of(first)
        page.get_by_text("COMPLETED").first.wait_for()
        sizes = [int(each) for each in re.findall(r"\d+", page.locator("#sizes").inner_text())]
        grown = sizes.index(3)
        assert min(sizes[grown:]) < 3, sizes
        page.get_by_role("button", name="Table of workers over time").click()
        marks = page.get_by_role("region", name="Workers over time as a table")
        with stage.coordinator("e1-t1") as coordinator:
            kept = coordinator.band().marks
        assert marks.get_by_role("row").count() == len(kept) + 1
        assert [each.size for each in kept if each.kind == "formed" and each.size == 3]

        search = page.get_by_role("region", name="Search")
        assert search.get_by_role("row").last.inner_text().split("\t")[0] == f"{LONG} batches"
        seen = page.get_by_role("region", name="Hyperparameters").get_by_role("row")
        assert seen.filter(has_text="lr").inner_text().split()[0] == "lr"
        assert page.get_by_role("button", name="Kill").count() == 0  # it is over
        assert serious_findings(page) == []
        for view in ("Metrics", "Logs", "Workers", "Configuration"):
            page.get_by_role("link", name=view, exact=True).click()
            page.locator("main :is(figure, table, [role=log])").first.wait_for()
        page.goto(f"{stage.url}/jobs/e1-t1")  # the same view
        page.get_by_role("heading", name="Trial 1", exact=True).wait_for()


def test_three_trials_are_compared_with_a_pinned_one_and_a_checkpoint_becomes_a_version(
    browser: Any, stage: ExperimentStage
) -> None:
    winner, _ = stage.search(stage.write("three", THREE, restarts=0))
    trials = {each.job: each for each in stage.trials.trials(1)}
    with signed_in(browser, stage.url, stage.files.coordinator.token, USER) as window:
        page = window.open("/compare")
        for job in trials:
            page.get_by_label("Job or trial to compare").fill(job)
            page.get_by_role("button", name="Add").click()
            page.get_by_role("list", name="Lines").get_by_role("link", name=job, exact=True).wait_for()
        page.get_by_role("button", name="Pin e1-t2 as the baseline").click()
        page.wait_for_url(re.compile("base=e1-t2"))
        table = page.get_by_role("region", name="Differences")
        assert table.get_by_role("columnheader").all_inner_texts()[1].startswith("e1-t2")
        row = table.get_by_role("row").filter(has=page.get_by_role("rowheader", name="hyperparameters.lr", exact=True))
        base, *others = row.get_by_role("cell").all_inner_texts()
        by = trials["e1-t1"].hparams["lr"] - trials["e1-t2"].hparams["lr"]
        assert "%" not in base and all("%" in each for each in others)
        assert ("+" in others[0]) == (by > 0)
        assert table.get_by_text("hyperparameters.global_batch_size").count() == 0  # the same in all
        page.get_by_role("button", name="Difference to e1-t2").click()
        page.get_by_role("figure").first.locator("canvas").wait_for()
        assert serious_findings(page) == []
        page.reload()
        page.get_by_role("button", name="Baseline is e1-t2").wait_for()

        page.goto(f"{stage.url}/jobs/e1-t{winner}")
        page.get_by_role("button", name="Register").first.click()
        page.get_by_label("Model").fill(HOSTILE[:4] + " best")
        page.get_by_label("Comment").fill(HOSTILE)
        page.get_by_role("dialog").get_by_role("button", name="Register").click()
        page.get_by_role("link", name="<img best 1").click()
        page.get_by_role("heading", name="<img best").wait_for()
        page.get_by_text(HOSTILE).wait_for()
        assert serious_findings(page) == []
        page.get_by_role("button", name="Change", exact=True).click()
        page.get_by_label("Labels").fill("good, small")
        page.get_by_label("Metadata").fill('{"stage": "test"}')
        page.get_by_role("button", name="Save").click()
        page.get_by_role("region", name="Metadata of the model").get_by_text("stage").wait_for()
        page.goto(f"{stage.url}/models?label=small")
        page.get_by_role("region", name="Models").get_by_role("link", name="<img best").click()
        page.get_by_role("button", name="Delete version 1").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        page.get_by_text("No versions yet").wait_for()
        assert page.title() == "<img best – Everstep"
    with stage.coordinator() as coordinator:
        assert [each.labels for each in coordinator.models().models] == [["good", "small"]]
