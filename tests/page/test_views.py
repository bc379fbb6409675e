"""What each view of the page shows, in a real browser before a real coordinator. The jobs are nothing but their record:
what they reported and printed is sent as workers and agents send it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep import env, wire
from everstep.client.calls import Coordinator
from everstep.launcher.local_coordinator import CoordinatorFiles, private_directory, start_coordinator
from everstep.wire.metrics import MOST_REPORTS
from lab.command import until
from lab.log_writer import NOW, Writer
from lab.page_window import Window, chromium, signed_in
from lab.relay import relay

NUM_STEPS = 6000
PEAK = 1234
PHONE = {"width": 390, "height": 844}
NO_SHARED_WORKER = "Object.defineProperty(window, 'SharedWorker', {value: undefined})"


class Jobs:
    """A coordinator, and jobs on it."""

    def __init__(self, url: str, token_file: Path) -> None:
        self.url, self.token_file = url, token_file

    def new(self, job: str, *, name: str = "train.py", **policy: Any) -> Coordinator:
        coordinator = Coordinator(self.url, env.read_token(self.token_file), job)
        coordinator.create_job(wire.JobSpec(name=name, policy=wire.Policy(**policy)))
        return coordinator


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: Any) -> Iterator[Jobs]:
    files = CoordinatorFiles(directory=private_directory(tmp_path_factory.mktemp("coordinator") / "c"))
    process, url = start_coordinator(files)
    made = Jobs(url, files.token)
    with made.new("curves", lease_s=77) as coordinator:
        report(coordinator, Writer(coordinator).name, 1, NUM_STEPS)
    yield made
    process.kill()


@pytest.fixture
def view(browser: Any, jobs: Jobs) -> Iterator[Window]:
    with signed_in(browser, jobs.url, jobs.token_file) as made:
        yield made


def report(coordinator: Coordinator, worker: str, first: int, last: int, kind: str = "training") -> None:
    """A loss with one peak, and epochs of 1,000 steps."""
    for start in range(first, last + 1, MOST_REPORTS):
        steps = range(start, min(start + MOST_REPORTS, last + 1))
        values = [{"loss": 90.0 if step == PEAK else 1 + step % 7, "epochs": step / 1000} for step in steps]
        made = [
            wire.MetricReport(kind=kind, step=step, time=NOW + step, values=dict(each))
            for step, each in zip(steps, values, strict=True)
        ]
        coordinator.report_metrics(worker, wire.MetricReports(reports=made))


def test_a_plot_is_looked_at_in_every_way_and_the_address_says_how(view: Window) -> None:
    page = view.open("/jobs/curves?find=loss&from=1200&to=1260")
    plot = page.get_by_role("figure")
    canvas = plot.locator("canvas")
    canvas.wait_for()
    plot.get_by_text("61 of 61 points").wait_for()
    plain = _drawn(canvas)
    assert "loss: 6,000 points up to step 6,000; last 2, from 1 to 90." in plot.locator("figcaption").inner_text()

    for change, parameter in (
        (lambda: page.get_by_role("button", name="log y").click(), "logy=1"),
        (lambda: page.get_by_role("button", name="log x").click(), "logx=1"),
        (lambda: page.get_by_label("Smoothing").fill("0.9"), "smooth=0.9"),
    ):
        before = _drawn(canvas)
        change()
        until(lambda before=before: _drawn(canvas) != before)  # type: ignore[misc]
        assert parameter in page.url
    page.reload()
    canvas.wait_for()
    assert page.get_by_role("button", name="log y").get_attribute("aria-pressed") == "true"

    page.goto(f"{view.url}/jobs/curves?find=loss&from=1200&to=1260")
    canvas.wait_for()
    until(lambda: _drawn(canvas) == plain)
    for axis, place in (("epoch", r"at [0-6](\.\d+)?$"), ("time", r"at \d\d:\d\d:\d\d$"), ("step", r"at [1-6],\d{3}$")):
        page.get_by_label("x axis").select_option(axis)
        until(lambda place=place: re.search(place, _pointed(canvas, plot)))  # type: ignore[misc]


def _drawn(canvas: Any) -> str:
    return str(canvas.evaluate("canvas => canvas.toDataURL()"))


def _pointed(canvas: Any, plot: Any) -> str:
    plot.locator(".u-over").hover()
    return str(plot.locator(".value").inner_text())


def test_peaks_are_drawn_at_every_zoom_and_zooming_works_by_mouse_and_by_keyboard(view: Window) -> None:
    page = view.open("/jobs/curves?find=loss")
    plot = page.get_by_role("figure")
    canvas = plot.locator("canvas")
    canvas.wait_for()
    drawn, total = re.fullmatch(r"([\d,]+) of ([\d,]+) points", plot.locator("footer span").first.inner_text()).groups()  # type: ignore[union-attr]
    assert total == "6,000" and int(drawn.replace(",", "")) < NUM_STEPS
    made = page.evaluate(
        """async () => {
          const {curve} = await import("/static/curve.js");
          const {series} = await (await fetch("/v1/jobs/curves/series")).json();
          const loss = series.find(each => each.name == "training/loss").series;
          const window = await (await fetch(`/v1/jobs/curves/series/${loss}?columns=100`)).json();
          return {counts: window.counts.length, y: curve(window, step => step).y};
        }"""
    )
    assert made["counts"] and 90.0 in made["y"] and len(made["y"]) < 1000

    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 + 80, box["y"] + 60, steps=4)
    page.mouse.up()
    page.wait_for_url(re.compile(r"from=\d.*to=\d"))
    plot.locator(".u-over").dblclick()
    page.wait_for_url(lambda url: "from=" not in url)

    page.get_by_label("Find metrics").focus()
    for _ in range(30):  # to the button, by nothing but Tab
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('aria-label')") == "Zoom in":
            break
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("from=.*to="))


@pytest.fixture
def writer(jobs: Jobs) -> Iterator[Writer]:
    with jobs.new("long-log") as coordinator:
        yield Writer(coordinator)


def test_a_long_log_opens_at_its_end_and_earlier_lines_come_as_one_scrolls_up(view: Window, writer: Writer) -> None:
    for start in range(0, 7000, 500):
        writer.say(*(f"line {number}." for number in range(start, start + 500)))
    page = view.open("/jobs/long-log?view=logs")
    log = page.get_by_role("log")
    log.get_by_text("line 6999.").wait_for()
    log.get_by_text("line 6000.").wait_for()  # perhaps by a further call: each takes limited time
    assert log.get_by_text("line 5999.").count() == 0
    assert "The last 1,000 lines" in page.locator("#found").inner_text()

    writer.say("a new line")
    log.get_by_text("a new line").wait_for()
    _is_seen(log, "a new line")  # followed

    def to_top() -> None:
        log.evaluate("log => log.scrollTop = 0")

    seen = set(_numbers(log))
    while 0 not in seen:
        first = min(_numbers(log))
        to_top()
        until(lambda first=first: min(_numbers(log)) < first)  # type: ignore[misc]
        _is_seen(log, f"line {first}.")  # what was read stays where it was
        seen |= set(_numbers(log))
        assert _numbers(log) == list(range(min(_numbers(log)), max(_numbers(log)) + 1))
    assert seen == set(range(7000)) and len(_numbers(log)) <= 5000
    log.get_by_text("The log begins here.").wait_for()
    assert "stay=1" in page.url and page.get_by_role("button", name="Later lines").count() == 1

    last = max(_numbers(log))
    page.get_by_role("button", name="Later lines").press("Enter")  # a mouse scrolls there first, which may be enough
    until(lambda: max(_numbers(log)) > last)
    assert _numbers(log) == list(range(min(_numbers(log)), max(_numbers(log)) + 1))
    page.get_by_role("button", name="Follow").click()
    log.get_by_text("a new line").wait_for()
    _is_seen(log, "a new line")

    page.get_by_label("Search the log").fill("line 12")
    page.get_by_text("111 lines found", exact=True).wait_for()
    assert _numbers(log)[0] == 12


def _numbers(log: Any) -> list[int]:
    texts = log.locator("code").all_inner_texts()
    return [int(text[5:-1]) for text in texts if text.startswith("line ")]


def _is_seen(log: Any, text: str) -> None:
    """Within the box, without scrolling."""
    inside = """(line, log) => {
      const [a, b] = [line.getBoundingClientRect(), document.querySelector("[role=log]").getBoundingClientRect()];
      return a.top >= b.top - 40 && a.bottom <= b.bottom + 40;
    }"""
    until(lambda: log.get_by_text(text, exact=True).evaluate(inside))


def test_the_jobs_are_sorted_filtered_and_searched_and_only_rows_that_are_seen_are_there(
    view: Window, jobs: Jobs
) -> None:
    for number in range(250):
        with jobs.new(f"many-{number:03}", name=f"script{number % 2}.py") as job:
            if number % 10 == 0:
                job.stop(wire.Stop(reason="wrong rate"))
    page = view.open("/")
    page.get_by_text(re.compile(r"^25\d jobs$")).wait_for()
    assert page.locator("tbody tr").count() < 100
    assert int(page.get_by_role("table").get_attribute("aria-rowcount")) > 250
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.get_by_role("link", name="curves", exact=True).wait_for()  # the oldest one
    page.evaluate("scrollTo(0, 0)")

    page.get_by_role("combobox").select_option("stopped")
    page.get_by_label("Search jobs").fill("many-1")
    page.get_by_role("button", name="Job", exact=True).click()
    page.locator("summary", has_text="Columns").click()
    page.get_by_label("Generation").check()
    first = page.locator("tbody tr a").first
    until(lambda: first.inner_text() == "many-190")
    page.get_by_role("button", name=re.compile("^Job")).click()
    until(lambda: first.inner_text() == "many-100")
    for part in ("state=stopped", "find=many-1", "sort=job", "up=1", "columns=job,"):
        assert part in page.url
    page.reload()
    page.get_by_text(re.compile(r"^10 of 25\d jobs$")).wait_for()
    assert page.locator("tbody tr a").all_inner_texts() == [f"many-{number}" for number in range(100, 200, 10)]
    assert page.get_by_role("columnheader", name="Generation").is_visible()


def test_jobs_are_compared_by_what_differs(view: Window, jobs: Jobs) -> None:
    for name, last in (("one", 40), ("two", 50)):
        with jobs.new(name, min_workers=last) as coordinator:
            worker = Writer(coordinator).name
            report(coordinator, worker, 1, last)
            report(coordinator, worker, 1, 30, kind="same")
    jobs.new("silent").close()
    page = view.open("/?find=o&sort=job")
    for name in ("one", "two"):
        page.get_by_label(f"Compare {name}").check()
    page.get_by_role("link", name="Compare 2 jobs").click()
    page.get_by_text("The same in all jobs: same/epochs, same/loss.").wait_for()
    assert page.get_by_role("figure").locator("h3").all_inner_texts() == ["training/loss"]
    table = page.get_by_role("region", name="Differences")
    assert table.get_by_role("row").filter(has_text="policy.min_workers").inner_text().split() == [
        "policy.min_workers",
        "40",
        "50",
    ]
    assert table.get_by_text("policy.hang_s").count() == 0
    page.get_by_role("button", name="Show all").click()
    table.get_by_text("policy.hang_s").wait_for()
    assert "same/loss" in page.get_by_role("figure").locator("h3").all_inner_texts()

    page.goto(f"{view.url}/compare?jobs=one,silent,gone")
    page.get_by_text("No metrics from silent.").wait_for()
    page.get_by_text("Unknown to the coordinator: gone").wait_for()
    assert page.get_by_role("figure").first.get_by_text("only one").is_visible()
    page.goto(f"{view.url}/compare?jobs=silent")
    page.get_by_text("This job has not reported any numbers.").wait_for()


def test_checkpoints_configuration_and_system_metrics_are_shown(view: Window, jobs: Jobs) -> None:
    with jobs.new("full", lease_s=77) as coordinator:
        writer = Writer(coordinator)
        saved = {"uuid": "1234-abcd", "size": 12.0}
        made = wire.MetricReport(kind="checkpoint", step=300, time=NOW, details=saved)
        busy = wire.MetricReport(kind=f"system/{writer.name}", step=int(NOW), time=NOW, values={"cpu_cores": 1.5})
        coordinator.report_metrics(writer.name, wire.MetricReports(reports=[made, busy]))
    page = view.open("/jobs/full")
    page.get_by_role("link", name="Checkpoints").click()
    row = page.get_by_role("region", name="Checkpoints").get_by_role("row").last
    assert row.inner_text().split("\t")[0::2] == ["300", "1234-abcd"]
    page.get_by_role("link", name="Configuration").click()
    policy = page.get_by_role("region", name="Policy of the job")
    assert policy.get_by_role("row").filter(has_text="lease_s").first.inner_text().split() == ["lease_s", "77"]
    page.get_by_role("link", name="System").click()
    page.get_by_role("figure").filter(has_text="cpu_cores").get_by_text("1.5").first.wait_for()


def test_on_a_phone_nothing_is_off_screen_and_the_controls_are_one_row(browser: Any, jobs: Jobs) -> None:
    paths = ["/", "/compare?jobs=curves", *(f"/jobs/curves?view={each}" for each in ("", "logs", "workers", "system"))]
    with signed_in(browser, jobs.url, jobs.token_file, viewport=PHONE) as made:
        page = made.open("/")
        for path in paths:
            page.goto(made.url + path)
            page.locator("main :is(figure, table, [role=log], .empty)").first.wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"], path
            ends = page.locator("main :is(button, a, select, input)").evaluate_all(
                "all => all.filter(each => each.checkVisibility() && !each.closest('.scroll'))"
                ".map(each => each.getBoundingClientRect().right)"
            )
            assert max(ends, default=0) <= PHONE["width"], path
            heights = page.locator(".bar").evaluate_all("all => all.map(e => e.clientHeight)")
            assert max(heights, default=0) <= 40, path
        page.goto(f"{made.url}/jobs/curves")
        page.get_by_role("button", name="Options").click()
        page.get_by_role("button", name="log y").click()
        page.wait_for_url(re.compile("logy=1"))
        page.get_by_role("button", name="Options 1 changed").wait_for()


def test_dark_or_light_stays_as_chosen(browser: Any, jobs: Jobs) -> None:
    with signed_in(browser, jobs.url, jobs.token_file, color_scheme="light") as made:
        page = made.open("/")
        page.get_by_role("button", name="Switch to dark").click()
        page.reload()
        page.get_by_role("button", name="Switch to light").wait_for()
        assert page.locator("html").get_attribute("data-theme") == "dark"


def test_without_a_shared_worker_each_tab_has_a_stream_of_its_own(browser: Any, jobs: Jobs) -> None:
    with (
        jobs.new("alone") as job,
        relay(int(jobs.url.rsplit(":", 1)[1])) as between,
        signed_in(browser, between.url, jobs.token_file) as made,
    ):
        worker = Writer(job).name
        made.context.add_init_script(NO_SHARED_WORKER)
        tabs = [made.open("/jobs/alone") for _ in range(2)]
        for page in tabs:
            page.get_by_text("Live", exact=True).wait_for()
        until(lambda: len(between.streams) == 2)
        report(job, worker, 1, 30)
        for page in tabs:
            page.get_by_role("figure").filter(has_text="loss").get_by_text(re.compile("of 30 points")).wait_for()
        tabs[0].close()
        until(lambda: len(between.streams) == 1)
        report(job, worker, 31, 40)
        tabs[1].get_by_role("figure").filter(has_text="loss").get_by_text(re.compile("of 40 points")).wait_for()
        tabs[1].close()
        made.context.close()
