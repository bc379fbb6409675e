"""The view of one experiment, in a real browser: an adaptive search with real training from the command line, hostile
texts, and ten thousand trials."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep import env
from everstep.client.calls import Coordinator
from everstep.launcher.local_coordinator import CoordinatorFiles, private_directory, start_coordinator
from lab.command import until
from lab.experiment_stage import ADAPTIVE, FULL, RUNG, ExperimentStage, number_of
from lab.experiments import ToyTrials, spec
from lab.many_trials import NAN_EVERY, NOTHING_EVERY, fill_trials
from lab.page_window import serious_findings, signed_in

HOSTILE = "<img src=x onerror=alert(1)>"
PHONE = {"width": 390, "height": 844}
MANY = 10_000


def shown(metric: float) -> float:
    """As the page rounds it."""
    return float(f"{metric:.4g}")


def table(page: Any, label: str) -> list[list[str]]:
    rows = page.get_by_role("region", name=label, exact=True).locator("tbody tr:not([aria-hidden])")
    return [row.locator("td").all_inner_texts() for row in rows.all()]


def test_an_adaptive_search_is_watched_to_its_end_and_its_rungs_are_those_of_the_search(
    browser: Any, tmp_path: Path
) -> None:
    with ExperimentStage(tmp_path, slots=2) as stage:
        stage.hold(1, 1)
        command = stage.create(stage.write("watched", ADAPTIVE))
        stage.wait_held(1, 1)
        with stage.trials.connect() as coordinator:
            number = coordinator.experiments().experiments[0].experiment
        with signed_in(browser, stage.url, stage.files.coordinator.token) as window:
            page = window.open(f"/experiments/{number}")
            page.get_by_role("heading", name="watched").wait_for()
            page.locator(".head").get_by_text("ACTIVE").wait_for()
            page.evaluate("window.isTheSame = true")
            stage.let_on()

            page.locator(".head").get_by_text("COMPLETED").wait_for()
            assert number_of(command.finish()) == number
            view, events = stage.view(number), stage.events(number)
            assert page.locator("#reason").inner_text() == view.reason
            assert page.get_by_role("progressbar").get_attribute("aria-valuenow") == "100"
            assert view.best is not None
            best = f"trial {view.best.trial} at {view.best.length} batches"
            page.locator(".facts").get_by_text(best).wait_for()

            results = [each.event for each in events if each.event["kind"] == "validated"]
            operations = [each for event in events for each in event.operations]
            promoted = {each["trial"] for each in operations if each["kind"] == "train_to" and each["length"] == FULL}
            assert len(promoted) == 2
            curves = page.get_by_role("figure").filter(has_text="Learning curves")
            curves.get_by_text(f"6 trials, {len(results)} results").wait_for()
            for length in (RUNG, FULL):
                found = {each["trial"]: each["metric"] for each in results if each["length"] == length}
                page.get_by_role("button", name=f"Trials at {length} batches").click()
                label = f"Trials at {length} batches"
                until(lambda label=label, found=found: len(table(page, label)) == len(found))  # type: ignore[misc]
                rows = table(page, label)
                told = {int(trial.split()[1]): float(metric) for trial, metric, *_ in rows}
                assert told == {trial: shown(metric) for trial, metric in found.items()}
                assert [*told] == sorted(found, key=lambda trial, found=found: (found[trial], trial))  # type: ignore[misc]
                outcomes = {int(row[0].split()[1]): row[2] for row in rows}
                if length == RUNG:
                    assert outcomes == {each: "continued" if each in promoted else "cut" for each in found}
                    for each in (
                        each for each in operations if each["kind"] == "stop" and each["trial"] not in promoted
                    ):
                        (row,) = (row for row in rows if row[0] == f"trial {each['trial']}")
                        assert row[4].split(";")[0] in each["reason"], each  # "3rd of 6"
                else:
                    assert outcomes == dict.fromkeys(promoted, "full length")
            (rung, full) = table(page, "Rungs")
            assert [rung[0], rung[1], rung[2], rung[3]] == [f"{RUNG} batches", "6", "2", "4"]
            assert [full[0], full[1], full[2]] == [f"{FULL} batches", "2", "2 at full length"]
            assert page.evaluate("window.isTheSame")
            assert serious_findings(page) == []

            for name in ("Best validation_loss over time", "Best validation_loss over slot-hours"):
                figure = page.get_by_role("figure").filter(has_text=name)
                assert f"by trial {view.best.trial}" in figure.locator("figcaption").inner_text()

            page.get_by_role("link", name="Hyperparameters").click()
            parallel = page.get_by_role("figure").filter(has_text="Parallel coordinates")
            parallel.locator("canvas").first.wait_for()
            assert "over hidden, lr, best validation_loss" in parallel.locator("figcaption").inner_text()
            titles = page.get_by_role("figure").locator("h3").all_inner_texts()
            assert titles[1:] == [
                *("best validation_loss by hidden", "best validation_loss by lr"),
                "best validation_loss by hidden and lr",
            ]
            assert "log axis" in page.get_by_role("figure").nth(2).locator("figcaption").inner_text()
            assert serious_findings(page) == []

            page.get_by_role("link", name="Configuration").click()
            page.get_by_role("row").filter(has_text="searcher.max_trials").get_by_text("6", exact=True).wait_for()
            page.get_by_role("link", name="Code").click()
            page.get_by_role("link", name="train.py").click()
            page.locator("pre").get_by_text("import").first.wait_for()
            assert page.evaluate("window.isTheSame")


@pytest.fixture(scope="module")
def files(tmp_path_factory: Any) -> CoordinatorFiles:
    made = CoordinatorFiles(directory=private_directory(tmp_path_factory.mktemp("coordinator") / "c"))
    fill_trials(made.store_url, 1, MANY)
    fill_trials(made.store_url, 2, 1000)
    return made


@pytest.fixture(scope="module")
def url(files: CoordinatorFiles) -> Iterator[str]:
    process, url = start_coordinator(files)
    yield url
    process.kill()


def test_hostile_names_notes_and_metrics_are_text(browser: Any, url: str, files: CoordinatorFiles) -> None:
    token = env.read_token(files.token)
    notes = f"# {HOSTILE}\n\n[click](javascript:alert(1)) **bold** {HOSTILE}\n\n- [site](https://example.org/)\n\n```\n{HOSTILE}\n```"
    given = spec(
        "adaptive_asha",
        max_trials=4,
        divisor=2,
        bracket_rungs=[2],
        metric=HOSTILE,
        name=HOSTILE,
        notes=notes,
        description=HOSTILE,
        labels=[HOSTILE],
        hyperparameters={HOSTILE: {"choice": [HOSTILE, "b"]}, "lr": {"log": [1e-3, 1]}},
        config={HOSTILE: HOSTILE},
    )
    with Coordinator(url, token, "none") as coordinator:
        number = coordinator.create_experiment(given).experiment
    toy = ToyTrials(url, token, number)
    toy.train_all()
    toy.close()
    with signed_in(browser, url, files.token) as window:
        page = window.open(f"/experiments/{number}")
        page.on("dialog", lambda dialog: window.problems.append(f"dialog: {dialog.message}"))
        page.get_by_role("heading", name=HOSTILE, level=1).wait_for()
        page.get_by_role("heading", name=f"Learning curves: {HOSTILE}").wait_for()
        for tab, text in (
            ("trials", f"Best {HOSTILE}"),
            ("charts", f"best {HOSTILE} by lr"),
            ("configuration", HOSTILE),
            ("notes", "click](javascript:alert(1))"),
        ):
            page.goto(f"{url}/experiments/{number}/{tab}")
            page.locator("main .views ~ *").get_by_text(text).locator("visible=true").first.wait_for()
            assert page.locator("main img").count() == 0
            assert serious_findings(page) == []
        article = page.get_by_role("article", name="Notes")
        assert article.get_by_role("link").all_inner_texts() == ["site"]
        assert article.get_by_role("link").get_attribute("href") == "https://example.org/"
        assert article.locator("strong").inner_text() == "bold"
        assert article.locator("pre").inner_text() == HOSTILE


def test_ten_thousand_trials_are_sorted_filtered_and_shown_by_rows_in_sight(
    browser: Any, url: str, files: CoordinatorFiles
) -> None:
    with Coordinator(url, env.read_token(files.token), "none") as coordinator:
        columns = coordinator.trial_columns(1)
    known = {
        trial: (best, lr) for trial, best, lr in zip(columns.trials, columns.best, columns.hparams["lr"], strict=True)
    }
    with_best = [trial for trial, (best, _) in known.items() if best is not None]
    assert len(known) == MANY and len(with_best) == sum(1 for n in known if n % NAN_EVERY and n % NOTHING_EVERY)
    with signed_in(browser, url, files.token) as window:
        page = window.open("/experiments/1/trials")
        page.get_by_text("10,000 trials", exact=True).first.wait_for()
        rows = page.get_by_role("region", name="Trials").locator("tbody tr:not([aria-hidden])")

        def trials() -> list[int]:
            return [int(each) for each in rows.locator("td.name").all_inner_texts()]

        by_best = sorted(with_best, key=lambda trial: (known[trial][0], trial))
        until(lambda: trials()[:5] == by_best[:5])
        assert rows.count() < 100
        page.get_by_role("button", name=re.compile("^Best loss")).click()
        until(lambda: trials()[:5] == sorted(with_best, key=lambda trial: (-(known[trial][0] or 0), trial))[:5])
        page.get_by_role("button", name="lr", exact=True).click()
        until(lambda: trials()[:5] == sorted(known, key=lambda trial: (-known[trial][1], trial))[:5])
        assert "sort=hp.lr" in page.url
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        last = sorted(known, key=lambda trial: (-known[trial][1], trial))[-1]
        until(lambda: trials()[-1] == last)
        page.evaluate("scrollTo(0, 0)")

        page.locator("summary", has_text="lr").click()
        page.locator("details[open]").get_by_label("From").fill("0.05")
        page.keyboard.press("Tab")
        passing = [trial for trial in known if known[trial][1] >= 0.05]
        page.get_by_text(f"{len(passing):,} of 10,000 trials", exact=True).wait_for()
        page.get_by_role("combobox", name=re.compile("^State")).select_option("CANCELED")
        few = [trial for trial in passing if trial % NOTHING_EVERY == 0]
        page.get_by_text(f"{len(few)} of 10,000 trials", exact=True).wait_for()
        page.reload()
        page.get_by_text(f"{len(few)} of 10,000 trials", exact=True).wait_for()
        assert sorted(trials()) == few
        page.get_by_role("button", name="Clear all").click()
        page.get_by_role("combobox", name=re.compile("^State")).select_option("")
        page.get_by_label("Search trials").fill("trial 9999")
        page.get_by_text("1 of 10,000 trials", exact=True).wait_for()
        assert trials() == [9999]
        assert serious_findings(page) == []


def test_a_thousand_trials_are_brushed_by_mouse_and_by_keyboard(
    browser: Any, url: str, files: CoordinatorFiles
) -> None:
    with Coordinator(url, env.read_token(files.token), "none") as coordinator:
        columns = coordinator.trial_columns(2)
    with signed_in(browser, url, files.token) as window:
        page = window.open("/experiments/2/charts")
        parallel = page.get_by_role("figure").filter(has_text="Parallel coordinates")
        canvas = parallel.locator("canvas").last
        canvas.wait_for()
        without = sum(each is None for each in columns.best)
        parallel.get_by_text(f"all 1,000 trials, {without} without a number for best loss", exact=True).wait_for()
        box = canvas.bounding_box()
        page.mouse.move(box["x"] + 64, box["y"] + 40)  # on the first axis, near its high end
        page.mouse.down()
        page.mouse.move(box["x"] + 64, box["y"] + 120, steps=4)
        page.mouse.up()
        page.wait_for_url(re.compile("only="))
        only = json.loads(page.evaluate("new URLSearchParams(location.search).get('only')"))
        (name,) = only
        low, high = only[name]["range"]
        passing = sum(low <= value <= high for value in columns.hparams[name])
        assert 0 < passing < 1000
        parallel.get_by_text(f"{passing} of 1,000 trials pass").wait_for()
        page.get_by_text(f"means of {passing} of 1,000 trials").wait_for()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.get_by_role("button", name="Clear all").click()
        parallel.get_by_text(re.compile("^all 1,000 trials")).wait_for()

        page.locator("summary", has_text="optimizer").focus()
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        page.keyboard.press("Space")
        kept = sum(value != "adam" for value in columns.hparams["optimizer"])
        parallel.get_by_text(f"{kept} of 1,000 trials pass").wait_for()
        parallel.get_by_role("button", name="Table of Parallel coordinates").click()
        assert "adam" not in parallel.get_by_role("table").inner_text()


def test_an_experiment_fits_a_phone(browser: Any, url: str, files: CoordinatorFiles) -> None:
    with signed_in(browser, url, files.token, viewport=PHONE, color_scheme="dark") as window:
        page = window.open("/")
        for tab in ("", "/trials", "/charts", "/configuration", "/notes"):
            page.goto(f"{url}/experiments/2{tab}")
            page.locator("main .views ~ *").first.wait_for()
            page.get_by_text("Live", exact=True).wait_for(state="attached")
            assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"], tab
            assert serious_findings(page) == []
