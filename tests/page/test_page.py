"""The page in a real browser, before a real coordinator and real training: what people see of deaths, joins and logs.

Most stories watch one job; those that hurt it have one of their own. The script reports a metric and prints lines that
try to be HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep.testing import Cluster
from everstep.wire import Policy
from lab.command import until
from lab.page_window import Window, chromium, new_code, serious_findings, signed_in, window
from lab.relay import relay

SCRIPT = Path(__file__).parent / "training.py"
CALM = Policy(lease_s=60, arrive_s=60, stall_s=60)
JOB = "/jobs/test"
HOSTILE_PATH = "%3Cimg%20src%3Dx%20onerror%3D%22document.title%3D'owned'%22%3E"
VIEWS = ("", "logs", "workers", "checkpoints", "system", "configuration")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(SCRIPT, ["--hostile"], workers=3, policy=CALM) as cluster:
        cluster.wait("step.committed", step=5)
        yield cluster


@pytest.fixture
def view(browser: Any, cluster: Cluster) -> Iterator[Window]:
    """A window with a session."""
    with signed_in(browser, cluster.url, cluster.token_file) as made:
        yield made


@pytest.fixture
def own(browser: Any) -> Iterator[tuple[Window, Cluster]]:
    """A job to hurt, and a window before it."""
    with Cluster(SCRIPT, workers=3, policy=CALM) as cluster:
        cluster.wait("step.committed", step=5)
        with signed_in(browser, cluster.url, cluster.token_file) as made:
            yield made, cluster


LAST_STEP = (0, 1)  # it may have died after it had done its part of the next one, which the others have committed


def test_two_deaths_and_a_join_are_three_marks_at_the_right_steps(own: tuple[Window, Cluster]) -> None:
    view, cluster = own
    page = view.open(JOB)
    page.get_by_role("button", name="Table of workers over time").click()
    table = page.get_by_role("region", name="Workers over time as a table")
    table.wait_for()

    cluster.kill("w1")
    assert _mark(table, "Death", "w1") - _steps(cluster, "w1")[-1] in LAST_STEP
    (newcomer,) = cluster.add(1)
    cluster.wait("step.committed", worker=newcomer)
    assert _mark(table, "Join", newcomer) == _steps(cluster, newcomer)[0] - 1
    cluster.kill("w0")
    assert _mark(table, "Death", "w0") - _steps(cluster, "w0")[-1] in LAST_STEP

    page.get_by_role("button", name="Table of workers over time").click()
    mark = page.get_by_role("img", name=re.compile("Death .* w0 died: killed by SIGKILL"))
    said = page.locator(".sentence")
    for point in (mark.focus, mark.hover):
        point()
        assert said.inner_text().endswith("w0 died: killed by SIGKILL")
        mark.blur()
        page.get_by_role("heading", name="Workers over time").hover()
        assert "Point at a mark" in said.inner_text()
    assert page.get_by_role("img", name=re.compile("leads")).first.is_visible()
    assert "2 deaths, 1 join" in page.locator(".band header").inner_text()

    page.get_by_role("link", name="Workers", exact=True).click()
    (leader,) = [each.worker for each in cluster.view().workers if each.rank == 0]
    row = page.get_by_role("region", name="Workers").get_by_role("row").filter(has_text="leads")
    row.filter(has_text=leader).filter(has_text="member").wait_for()
    died = page.get_by_role("region", name="Workers").get_by_role("row").filter(has_text="died: killed by SIGKILL")
    assert died.count() == 2
    assert page.get_by_role("region", name="Nodes").get_by_role("row").filter(has_text="yes").count() == 2


def _mark(table: Any, what: str, worker: str) -> int:
    """The step of the mark, as soon as it is there."""
    cell = table.page.get_by_role("cell", name=worker, exact=True)
    row = table.get_by_role("row").filter(has_text=what).filter(has=cell).first
    row.wait_for()
    return int(row.get_by_role("cell").first.inner_text().replace(",", ""))


def _steps(cluster: Cluster, worker: str) -> list[int]:
    return sorted(event["step"] for event in cluster.events("step.committed", worker=worker))


def test_the_log_is_searched_and_followed(view: Window, cluster: Cluster) -> None:
    page = view.open(f"{JOB}?view=logs")
    log = page.get_by_role("log")
    log.get_by_text(re.compile("^step 3: loss")).first.wait_for()

    page.get_by_label("Search the log").fill("step 4: loss")
    log.locator("mark", has_text="step 4: loss").first.wait_for()
    assert all("step 4: loss" in line for line in log.locator("code").all_inner_texts())
    assert "find=step+4" in page.url

    page.get_by_label("Search the log").fill("no such words")
    log.get_by_text("No line matches.").wait_for()

    page.get_by_label("Search the log").fill("")
    step = cluster.view().workers[-1].step + 20
    log.get_by_text(re.compile(rf"step {step}\b")).first.wait_for()  # it comes by itself


def test_names_and_lines_of_users_are_text(view: Window) -> None:
    page = view.open(JOB)
    page.get_by_role("heading", name="<img src=x").wait_for()
    page.goto(f"{view.url}{JOB}?view=logs&find=script>")
    page.get_by_role("log").get_by_text("<script>document.title='owned'</script>").first.wait_for()
    page.goto(f"{view.url}/jobs/{HOSTILE_PATH}")
    page.get_by_text("The coordinator does not know").wait_for()
    assert page.locator("main img, main script").count() == 0
    assert "owned'" not in page.title() or "<img" in page.title()
    view.expected.append("status of 404")


def test_zoom_stays_while_points_come_and_peaks_are_drawn(view: Window, cluster: Cluster) -> None:
    page = view.open(f"{JOB}?find=loss&from=40&to=60")
    plot = page.get_by_role("figure").filter(has=page.get_by_role("button", name="Table of training/loss"))
    plot.get_by_text(re.compile(r"^\d+ of 21 points$")).wait_for()
    plot.get_by_role("button", name="Table of training/loss").click()
    peak = plot.get_by_role("row").filter(has=page.get_by_role("cell", name="50", exact=True))
    assert float(peak.get_by_role("cell").last.inner_text()) > 2

    step = int(page.locator("dd").first.inner_text().replace(",", ""))
    until(lambda: int(page.locator("dd").first.inner_text().replace(",", "")) > step + 5)
    assert "from=40&to=60" in page.url
    assert plot.get_by_text(re.compile(r"^\d+ of 21 points$")).is_visible()
    page.get_by_role("button", name="All", exact=True).click()
    plot.get_by_text(re.compile(r"^\d{2,} of (?!21 )\d+ points$")).wait_for()


def test_two_tabs_share_one_stream(browser: Any, cluster: Cluster) -> None:
    with relay(int(cluster.url.rsplit(":", 1)[1])) as between, window(browser, between.url) as made:
        first = made.open(JOB, new_code(cluster.url, cluster.token_file))
        first.get_by_text("Live", exact=True).wait_for()
        second = made.open("/")
        second.get_by_text("Live", exact=True).wait_for()
        for page, place in ((first, "dd"), (second, "td.number")):
            _moves(page.locator(place).first)
        assert len(between.streams) == 1
        first.close()
        _moves(second.locator("td.number").first)
        assert len(between.streams) == 1
        second.close()
        made.context.close()


def _moves(number: Any) -> None:
    number.wait_for()
    before = number.inner_text()
    until(lambda: number.inner_text() != before)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_keeps_people_out(browser: Any, cluster: Cluster, scheme: str) -> None:
    with window(browser, cluster.url, color_scheme=scheme) as made:
        page = made.open("/", new_code(cluster.url, cluster.token_file))
        page.get_by_role("link", name="test", exact=True).wait_for()
        found = serious_findings(page)
        for name in VIEWS:
            page.goto(f"{made.url}{JOB}?view={name}")
            page.locator("main :is(figure, table, [role=log], .empty)").first.wait_for()
            found += serious_findings(page)
        page.goto(f"{made.url}/compare?jobs=test")
        page.get_by_role("heading", name="What differs").wait_for()
        found += serious_findings(page)
        page.get_by_role("button", name="Sign out").click()
        page.get_by_label("Code or token").wait_for()
        found += serious_findings(page)
    assert not found


def test_the_coordinator_dies_and_comes_back_and_the_page_goes_on(own: tuple[Window, Cluster]) -> None:
    view, cluster = own
    page = view.open(JOB)
    page.get_by_text("Live", exact=True).wait_for()
    page.evaluate("window.isSame = true")
    cluster.kill_coordinator()
    page.get_by_text("Reconnecting").wait_for()
    assert page.get_by_role("heading", name="test").is_visible()
    cluster.start_coordinator()
    page.get_by_text("Live", exact=True).wait_for()
    _moves(page.locator("dd").first)
    _moves(page.locator("figure .value").first)
    assert page.evaluate("window.isSame")
    view.expected += ["ERR_CONNECTION", "ERR_INCOMPLETE", "ERR_EMPTY", "net::"]
