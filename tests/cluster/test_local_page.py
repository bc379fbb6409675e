"""`everstep page` without a job: the experiments of this machine, for as long as the command runs."""

from __future__ import annotations

import signal

from lab.browser import Browser
from lab.command import EVERSTEP, Command
from lab.local_stage import LocalStage

ADDRESS = r"(http://127\.0\.0\.1:\d+)/experiments#code=([\w-]+)"


def test_the_experiments_of_this_machine_are_looked_at_and_changed(tmp_path):
    with LocalStage(tmp_path) as stage:
        words = ("page", "--no-browser", "--may-change")
        with Command(*EVERSTEP, *words, folder=tmp_path, **stage.env) as command:
            url, code = command.wait_said(ADDRESS).groups()
            command.wait_said("press Ctrl-C to stop")
            with Browser(url) as browser:
                assert browser.open(code=code).json()["role"] == "user"
                assert browser.get("/v1/experiments")["num_found"] == 0
            command.signal(signal.SIGINT)
            command.finish()
