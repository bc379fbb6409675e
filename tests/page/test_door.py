"""Who may look: one-time codes and tokens at the page's door, in a real browser."""

from __future__ import annotations

import sys
from typing import Any

from everstep import env
from everstep.launcher.local_coordinator import CoordinatorFiles, start_coordinator
from everstep.process import Child
from lab.page_window import new_code, window

SHORT = (
    "import sys; from everstep.page import sessions; sessions.CODE_S = 0.0; from everstep.cli.main import main; main()"
)
REFUSED = "status of 401"


def test_a_code_opens_one_session_and_leaves_the_address(browser: Any, files: CoordinatorFiles) -> None:
    coordinator, url = start_coordinator(files)
    try:
        with window(browser, url) as first:
            code = new_code(url, files.token)
            page = first.open("/?find=x", code)
            page.get_by_text("No job matches").wait_for()
            assert page.url == f"{url}/?find=x"
            page.reload()
            page.get_by_text("No job matches").wait_for()
        with window(browser, url) as second:
            second.expected.append(REFUSED)
            page = second.open("/", code)
            page.get_by_text("This code was used already").wait_for()
            assert page.url == f"{url}/"

            _enter(page, "not-a-token" * 30)  # longer than any code
            page.get_by_text("This is not a token of this coordinator.").wait_for()
            _enter(page, new_code(url, files.token))
            page.get_by_text("No jobs yet").wait_for()
            page.get_by_role("button", name="Sign out").click()
            _enter(page, env.read_token(files.token))
            page.get_by_text("No jobs yet").wait_for()
    finally:
        coordinator.kill()


def test_an_expired_code_is_refused_with_a_sentence(browser: Any, files: CoordinatorFiles) -> None:
    coordinator, url = start_coordinator(files, start=_with_short_codes)
    try:
        with window(browser, url) as made:
            made.expected.append(REFUSED)
            made.open("/", new_code(url, files.token)).get_by_text("This code has expired").wait_for()
    finally:
        coordinator.kill()


def _enter(page: Any, proof: str) -> None:
    page.get_by_label("Code or token").fill(proof)
    page.get_by_role("button", name="Sign in").click()


def _with_short_codes(command: Any, **options: Any) -> Child:
    """The same command, whose codes expire at once."""
    arguments = list(command)
    return Child.start([sys.executable, "-c", SHORT, *arguments[arguments.index("everstep") + 1 :]], **options)
