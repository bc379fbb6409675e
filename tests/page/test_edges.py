"""The page at its edges: hardly any data, odd numbers, a job that is over, a coordinator that is gone."""

from __future__ import annotations

import re
from typing import Any

from everstep import env, wire
from everstep.client.calls import Coordinator
from everstep.launcher.local_coordinator import CoordinatorFiles, start_coordinator
from lab.log_writer import NOW, Writer
from lab.page_window import signed_in

PHONE = {"width": 390, "height": 844}
ARGUMENTS = " ".join(f"--option-{number}=value" for number in range(12))


def new(url: str, files: CoordinatorFiles, job: str, **config: Any) -> Coordinator:
    coordinator = Coordinator(url, env.read_token(files.token), job)
    coordinator.create_job(wire.JobSpec(name="train.py", config=config))
    return coordinator


def test_hardly_any_data_odd_numbers_and_a_job_that_is_over(browser: Any, files: CoordinatorFiles) -> None:
    process, url = start_coordinator(files)
    try:
        for name, rate in (("reports", "0.1"), ("quiet", "0.2")):
            with new(url, files, name, command=f"{ARGUMENTS} --rate={rate}") as job:
                writer = Writer(job)
                if name == "quiet":
                    writer.say("hello")
                    job.stop(wire.Stop(reason="enough"))
                    continue
                made = [
                    wire.MetricReport(kind="training", step=step, time=NOW, values=values)
                    for step, values in ((1, {"loss": 0.3, "once": 1.0}), (2, {"loss": 0.1 + 0.2}))
                ]
                job.report_metrics(writer.name, wire.MetricReports(reports=made))
        with signed_in(browser, url, files.token, viewport=PHONE) as window:
            page = window.open("/jobs/reports")
            page.get_by_text("1 of 1 point", exact=True).wait_for()
            page.get_by_role("figure").filter(has_text="loss").locator("canvas").wait_for()
            assert page.locator("dd").first.inner_text() == "–"
            page.goto(f"{url}/jobs/reports?from=1e17&to=100000000000000016")
            page.get_by_text("Live", exact=True).wait_for()
            page.get_by_role("figure").first.locator("canvas").wait_for()

            page.goto(f"{url}/compare?jobs=reports,quiet")
            cells = page.get_by_role("row").filter(has_text="command").get_by_role("cell")
            cells.last.wait_for()
            hidden = "all => all.some(cell => [cell, ...cell.children].some(e => e.scrollWidth > e.clientWidth + 1))"
            assert [text[-3:] for text in cells.all_inner_texts()] == ["0.1", "0.2"]
            assert not cells.evaluate_all(hidden)
            assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]

            page.goto(f"{url}/jobs/quiet?view=logs&level=error")
            page.get_by_role("log").get_by_text("No line matches.").wait_for()
            page.goto(f"{url}/jobs/quiet")
            page.get_by_text("This job reported no metrics.").wait_for()
            page.get_by_text("Live", exact=True).wait_for()
            jobs = window.open("/")
            jobs.get_by_text("Live", exact=True).wait_for()

            window.expected += ["net::", "ERR_"]
            process.kill()
            page.get_by_text("The job is over. everstep page quiet shows its record.").wait_for()
            page.get_by_text("Job over", exact=True).wait_for()
            jobs.get_by_text("Reconnecting", exact=True).wait_for()
            for each in (page, jobs):
                assert each.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
            ends = jobs.locator(".link-state, .top button").evaluate_all(
                "all => all.map(e => [e.getBoundingClientRect().left, e.getBoundingClientRect().right]).flat()"
            )
            assert ends == sorted(ends) and ends[-1] <= PHONE["width"]  # side by side, none over another
            jobs.get_by_role("button", name="Sign out").click()
            jobs.get_by_role("alert").get_by_text(re.compile("may still be open")).wait_for()
    finally:
        process.kill()
