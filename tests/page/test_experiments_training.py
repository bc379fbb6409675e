"""An experiment of the command line, watched in a real browser while it trains for real on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep.wire.tokens import USER
from lab.command import until
from lab.experiment_stage import ADAPTIVE, ExperimentStage, number_of
from lab.page_window import chromium, new_code, serious_findings, window


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


def test_an_adaptive_search_is_watched_to_its_end_without_a_reload(browser: Any, tmp_path: Path) -> None:
    with ExperimentStage(tmp_path, 2) as stage:
        stage.hold(1, 1)
        command = stage.create(stage.write("watched", ADAPTIVE))
        stage.wait_held(1, 1)
        code = new_code(stage.url, stage.files.coordinator.token, USER)
        with window(browser, stage.url) as view:
            page = view.open("/experiments", code)
            row = page.get_by_role("row").filter(has_text="watched")
            row.get_by_text("ACTIVE").wait_for()
            page.evaluate("() => (window.isSamePage = true)")
            page.get_by_role("checkbox", name="Select experiment 1").check()
            page.get_by_role("button", name="Pause").click()
            row.get_by_text("PAUSED").wait_for()
            page.get_by_role("button", name="Activate").click()
            row.get_by_text("ACTIVE").wait_for()
            stage.let_on()
            until(lambda: stage.view(1).state == "COMPLETED", stage.whole_story)
            row.get_by_text("COMPLETED").wait_for()
            row.get_by_text("100%").wait_for()
            assert page.evaluate("() => window.isSamePage") and serious_findings(page) == []
            best = stage.view(1).best
            assert best is not None and f"{best.metric:.4g}" in row.inner_text()
        assert number_of(command.finish()) == 1
