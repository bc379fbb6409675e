"""`everstep run --page` while it runs, and `everstep page` when it is over: a death is on the band, at its step."""

from __future__ import annotations

import re
import signal
from contextlib import ExitStack

import pytest

from lab.browser import Browser, EventStream, code_of
from lab.command import EVERSTEP, ROOT, keyboard, until
from lab.page_window import chromium, serious_findings, window

SCRIPT = ROOT / "tests" / "cluster" / "scripts" / "reported_loop.py"
ADDRESS = r"(http://127\.0\.0\.1:\d+)/(?:jobs/([\w.-]+))?#code=([\w-]+)"


@pytest.fixture
def start(tmp_path):
    with keyboard(tmp_path, EVERSTEP_HOME=str(tmp_path / "home")) as start:
        yield lambda *words: start(*EVERSTEP, *words)


@pytest.fixture
def opened():
    """Opens the address that a command has printed: the browser, and the job."""
    with ExitStack() as stack:

        def open_(command):
            url, job, code = command.wait_said(ADDRESS).groups()
            browser = stack.enter_context(Browser(url))
            assert browser.open(code=code).status_code == 200
            return browser, job

        yield open_


def test_a_run_is_watched_while_it_runs_and_when_it_is_over(start, opened, tmp_path):
    run = start("run", "--page", "--nproc-per-node", 3, SCRIPT)
    browser, job = opened(run)
    stream = EventStream(browser, (job,))
    run.wait_said("trains with 3 workers")  # a late one joins the others
    stream.wait("points")
    run.kill("w1")
    marks = stream.wait("band", lambda data: any(mark["kind"] == "died" for mark in data["marks"]))["marks"]
    died = next(mark for mark in marks if mark["kind"] == "died")
    assert (died["worker"], died["reason"]) == ("w1", "w1 died: killed by SIGKILL")
    said = run.finish()
    until(lambda: stream.has_ended, lambda: "the stream goes on without a coordinator")
    live = [mark for data in stream.of("band") for mark in data["marks"]]
    formed = next(mark for mark in live if mark["kind"] == "formed" and mark["number"] > died["number"])
    assert died["step"] > 0 and formed["parted"] == ["w1"]
    assert formed["step"] - died["step"] in (0, 1)  # w1 may have done its part of a step that the others then committed
    assert f"everstep page {job}" in said
    _codes_are_in_no_file(tmp_path, run)

    over = start("page", job, "--no-browser")
    record, same = opened(over)
    (listed,) = record.get("/v1/jobs")["jobs"]
    assert (same, listed["state"], listed["num_deaths"], listed["step"]) == (job, "finished", 1, 192)
    kept = record.get(f"/v1/jobs/{job}/band")["marks"]
    assert [mark for mark in kept if mark["number"] in {each["number"] for each in live}] == live
    (loss,) = [each for each in record.get(f"/v1/jobs/{job}/series")["series"] if each["name"] == "loss"]
    assert loss["count"] == 192
    assert "epoch 0 is over" in {each["text"] for each in record.get(f"/v1/jobs/{job}/logs")["lines"]}
    assert record.get(f"/v1/jobs/{job}/about")["config"]["workers"] == 3
    refused = record.http.post(f"/v1/jobs/{job}/stop", json={"reason": "x"})
    assert (refused.status_code, refused.json()["code"]) == (409, "record-read-only")
    silent = EventStream(record, (job,))
    silent.wait("hello")
    silent.close()
    over.signal(signal.SIGINT)
    over.exit_code()


def _codes_are_in_no_file(folder, run):
    """But in what the terminal shows."""
    code = re.search(ADDRESS, run.said)[3].encode()
    files = [each for each in folder.rglob("*") if each.is_file() and not each.name.startswith("terminal-")]
    assert files and not [each for each in files if code in each.read_bytes()]


def test_a_standing_coordinator_prints_an_address_and_gives_others(start, opened, tmp_path):
    serve = start("serve", "--page", "--port", 0, "--token-file", "token")
    browser, _ = opened(serve)
    assert browser.get("/v1/jobs")["num_jobs"] == 0
    url = serve.wait_said(r"coordinator at (\S+)")[1]
    again = start("page", "--coordinator", url, "--token-file", "token", "--no-browser")
    other, _ = opened(again)
    assert again.exit_code() == 0 and other.get("/v1/session")["role"] == "read-only"
    third, _ = opened(start("page", "--coordinator", url, "--token-file", "token", "--no-browser", "--may-change"))
    assert third.get("/v1/session")["role"] == "user"
    assert code_of(url, (tmp_path / "token").read_text())


def test_without_a_terminal_no_address_is_printed_unless_asked_for(start):
    serve = start("serve", "--port", 0, "--token-file", "token")
    serve.wait_said("coordinator at")
    assert "#code=" not in serve.said


def test_a_page_of_nothing_is_refused_with_words(start, tmp_path):
    assert "none-such" in start("page", "none-such").finish(is_good=False)


def test_the_folder_of_a_run_that_is_over_is_looked_at_in_a_browser(start, tmp_path):
    run = start("run", "--page", "--nproc-per-node", 2, SCRIPT)
    job = run.wait_said(ADDRESS)[2]
    run.wait_said(r"step \d+")
    run.kill("w1")
    run.finish()
    folder = (tmp_path / "runs" / job).rename(tmp_path / "elsewhere")
    over = start("page", folder, "--no-browser")
    url, _, code = over.wait_said(ADDRESS).groups()
    with chromium() as browser, window(browser, url) as made:
        page = made.open(f"/jobs/{job}", code)
        page.get_by_role("heading", name=job).wait_for()
        assert page.locator(".head .state").inner_text() == "finished"
        plot = page.get_by_role("figure").filter(has_text="loss")
        plot.locator("canvas").wait_for()
        plot.get_by_text(re.compile(r"^\d+ of 192 points$")).wait_for()
        page.get_by_role("img", name=re.compile("Death .* w1 died: killed by SIGKILL")).wait_for()
        page.get_by_role("link", name="Logs").click()
        page.get_by_role("log").get_by_text("epoch 11 is over").first.wait_for()
        page.get_by_label("Search the log").fill("epoch 3 is")
        page.get_by_role("log").locator("mark", has_text="epoch 3 is").first.wait_for()
        page.get_by_role("link", name="Configuration").click()
        page.get_by_role("row").filter(has_text="workers").first.wait_for()
        found = serious_findings(page)
    over.signal(signal.SIGINT)
    over.exit_code()
    assert not found
