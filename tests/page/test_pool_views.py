"""Pools and queues on the page, with real agents and trials: who holds which slot, why others wait, and what people
change there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep.wire.tokens import READ_ONLY, USER
from lab.browser import PAGE
from lab.command import until
from lab.page_pool import PagePool
from lab.page_window import serious_findings, signed_in
from lab.people import ALICE, BOB, ROOT
from lab.pool_stage import PoolStage

PHONE = {"width": 390, "height": 844}
HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
FIELDS = "main :is(button, a, select, input)"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[PoolStage]:
    with PoolStage(tmp_path) as made:
        yield made


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[PagePool]:
    with PagePool(tmp_path) as made:
        yield made


def test_the_queue_says_why_an_experiment_waits_and_a_new_priority_starts_it(browser: Any, stage: PoolStage) -> None:
    stage.join("a")
    first = stage.trials.create(1, "--hold")
    stage.trials.wait_starts(1)
    second = stage.trials.create(1, "--hold")
    with signed_in(browser, stage.url, stage.token_file, USER) as window:
        page = window.open("/queue")
        before, waiting = (page.locator(f"tbody[data-experiment='{each}']") for each in (first, second))
        waiting.get_by_text("needs 1 slot; 0 are free; 1 other trial is running").wait_for()
        assert _numbers(waiting)[0] == "1" and _numbers(waiting)[-3:] == ["0", "0", "1"]
        assert _numbers(before)[0] == "–" and _numbers(before)[-3:] == ["1", "1", "1"]
        assert serious_findings(page) == []

        priority = page.get_by_label(f"Priority of experiment {second}")
        priority.fill("100")
        priority.press("Enter")
        assert priority.evaluate("input => input.validity.rangeOverflow")
        assert stage.trials.view(second).scheduling.priority == 42
        priority.fill("7")
        priority.press("Enter")
        page.get_by_text(f"Experiment {second} has priority 7 now.").wait_for()
        stage.trials.wait_starts(2)
        before.get_by_text("needs 1 slot").wait_for()
        until(lambda: _numbers(waiting)[-3:] == ["1", "1", "1"])
        assert stage.trials.starts[1]["facts"]["key"].endswith(f"-e{second}-t1")

        page.goto(f"{stage.url}/pools")
        page.get_by_role("link", name=f"e{second}-t1").wait_for()
        page.get_by_text("1 of 1 slot in use").wait_for()
        stage.trials.let_go()


def _numbers(rows: Any) -> list[str]:
    return list(rows.locator("tr").first.locator("td.number").all_inner_texts())


def test_the_pool_shows_who_holds_each_slot_and_agents_are_drained_there(browser: Any, stage: PoolStage) -> None:
    for name in ("node-1", "node-2"):
        stage.join(name)
    experiment = stage.trials.create(2, "--hold")
    stage.trials.wait_starts(2)
    with signed_in(browser, stage.url, stage.token_file, USER) as window:
        page = window.open("/pools")
        nodes = page.get_by_role("region", name="Nodes and slots")
        for slot in stage.trials.held():
            nodes.get_by_role("link", name=f"e{experiment}-t{slot.trial}").wait_for()
        page.get_by_label("Find nodes").fill("node-2")
        page.get_by_text("1 of 2 nodes").wait_for()
        page.get_by_role("button", name="Change node-2").click()
        page.get_by_label("Reason").fill(HOSTILE)
        assert serious_findings(page) == []
        page.get_by_role("button", name="Drain").click()
        nodes.get_by_text(HOSTILE).wait_for()
        nodes.get_by_text("free", exact=True).wait_for()
        assert {each.agent: each.state for each in stage.trials.pool().agents} == {
            "node-1": "enabled",
            "node-2": "draining",
        }
        page.get_by_role("button", name="Change node-2").click()
        page.get_by_role("button", name="Enable").click()
        nodes.get_by_role("link", name=f"e{experiment}-t").wait_for()  # its trial came back
        until(lambda: len(stage.trials.held()) == 2)
        stage.trials.let_go()

        page.get_by_role("img", name="no owner").wait_for()
        page.get_by_role("button", name="Table of use").click()
        today = page.get_by_role("region", name="Use as a table").get_by_role("row").nth(1)
        assert float(today.get_by_role("cell").last.inner_text()) > 0
        assert page.title() == "Pool default – Everstep"


def test_who_may_only_read_finds_no_buttons_and_others_change_what_is_theirs(browser: Any, pool: PagePool) -> None:
    pool.join("a", 2)
    mine, other = pool.create(ALICE, max_trials=4), pool.create(BOB, name=HOSTILE, max_trials=2)
    change, refused = f"/v1/experiments/{other}/change", {"priority": 1}
    with pool.signed_in(browser, ALICE, READ_ONLY) as window:
        for path in ("/pools", "/queue"):
            page = window.open(path)
            page.get_by_role("table").wait_for()
            assert page.locator("main tbody :is(button, input)").count() == 0
        agents = {"state": "draining", "agents": ["a"]}
        for call, body in ((change, refused), ("/v1/pools/default/agents", agents)):
            answer = window.context.request.post(pool.url + call, headers=PAGE, data=body)
            assert (answer.status, answer.json()["code"]) == (403, "role-insufficient")
    with pool.signed_in(browser, ALICE) as window:
        page = window.open("/queue")
        page.get_by_text(f"{other} {HOSTILE}").first.wait_for()
        page.get_by_label(f"Weight of experiment {mine}").wait_for()
        assert page.get_by_label(f"Weight of experiment {other}").count() == 0
        answer = window.context.request.post(pool.url + change, headers=PAGE, data=refused)
        assert (answer.status, answer.json()["code"]) == (403, "experiment-of-another")
        page.get_by_label(f"Weight of experiment {mine}").fill("2.5")
        page.keyboard.press("Tab")
        page.get_by_text(f"Experiment {mine} has weight 2.5 now.").wait_for()
        assert page.title() == "Queue default – Everstep"


def test_a_pool_fits_a_phone_and_an_empty_one_says_what_to_do(browser: Any, pool: PagePool) -> None:
    with pool.signed_in(browser, ROOT, viewport=PHONE) as window:
        page = window.open("/pools")
        page.get_by_text("everstep pool join").wait_for()
        page.goto(f"{pool.url}/queue")
        page.get_by_text("Nothing runs or waits").wait_for()
        page.goto(f"{pool.url}/pools/none")
        page.get_by_text("No such pool").wait_for()
        pool.join("a", 2)
        experiment = pool.create(BOB, name="w" * 200, max_trials=40)
        pool.until_held(experiment, 2)
        for path in ("/pools", "/queue"):
            page.goto(pool.url + path)
            page.get_by_role("table").wait_for()
            assert page.locator("main").evaluate("main => main.scrollWidth") <= PHONE["width"], path
            ends = page.locator(FIELDS).evaluate_all(
                "all => all.filter(each => each.checkVisibility() && !each.closest('.scroll'))"
                ".map(each => each.getBoundingClientRect().right)"
            )
            assert max(ends, default=0) <= PHONE["width"], path
        page.get_by_text("All 14 waiting trials").click()
        page.get_by_role("link", name=f"e{experiment}-t16").wait_for()
        assert serious_findings(page) == []
