"""A real browser (Debian's chromium, driven by playwright) for stories about the page.

Each window remembers what went wrong in it: errors of the console, exceptions, and requests to any other host than the
coordinator's. Closing it raises them, so that every story is also about these."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from everstep import env
from everstep.client.calls import Coordinator
from everstep.wire import PageCodeRequest
from everstep.wire.tokens import READ_ONLY, parse_tokens
from lab.required import missing
from tools import page_vendor

ROOT = Path(__file__).parents[2]
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
WAIT_MS = 60_000  # for anything to appear; the machine may be busy
SIZE = {"width": 1440, "height": 900}


@dataclass
class Window:
    """One browser profile with its tabs, and what went wrong in them."""

    context: Any
    url: str
    problems: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)  # parts of console messages that belong to the story

    def tab(self) -> Any:
        page = self.context.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda error: self.problems.append(f"exception: {error}"))
        page.on(
            "console",
            lambda said: said.type == "error" and self.problems.append(f"console: {said.text} {said.location['url']}"),
        )
        return page

    def open(self, path: str = "/", code: str = "") -> Any:
        """A tab with the page; the code opens a session."""
        page = self.tab()
        page.goto(f"{self.url}{path}#code={code}" if code else f"{self.url}{path}")
        return page

    def hear(self, request: Any) -> None:
        if not request.url.startswith(("data:", "blob:")) and urlsplit(request.url).netloc != urlsplit(self.url).netloc:
            self.problems.append(f"request to another host: {request.url}")

    def unexpected(self) -> list[str]:
        return [each for each in self.problems if not any(part in each for part in self.expected)]


@contextmanager
def chromium() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        missing("browser", str(error))
    program = shutil.which("chromium")
    if program is None:
        missing("browser", "chromium is not installed; make setup brings it")
    if not page_vendor.is_fresh():
        missing("browser", "the page's scripts are missing, or older than their sources; make page builds them")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, headless=True, args=list(FLAGS))
        yield browser
        browser.close()


@contextmanager
def window(browser: Any, url: str, **options: Any) -> Iterator[Window]:
    context = browser.new_context(**{"viewport": SIZE} | options)
    made = Window(context=context, url=url)
    context.on("request", made.hear)
    yield made
    context.close()
    assert not made.unexpected(), made.unexpected()


@contextmanager
def signed_in(browser: Any, url: str, token_file: Path, role: str = READ_ONLY, **options: Any) -> Iterator[Window]:
    """A window with a session."""
    with window(browser, url, **options) as made:
        page = made.open("/", new_code(url, token_file, role))
        page.get_by_role("heading", name="Jobs", level=1).wait_for()
        page.close()
        yield made


def new_code(url: str, token_file: Path, role: str = READ_ONLY) -> str:
    return code_of(url, env.read_token(token_file), role)


def code_of(url: str, token: str, role: str) -> str:
    """`token`: one, or a file of them."""
    word = next((each.word for each in parse_tokens(token) if each.role == role), token)
    with Coordinator(url, word, "none") as coordinator:
        return coordinator.page_code(PageCodeRequest(role=role)).code


def serious_findings(page: Any) -> list[str]:
    """What axe-core finds on the page as it is now, of those findings that keep people out."""
    page.evaluate(AXE.read_text())
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [
        f"{each['impact']} {each['id']}: {each['help']}: {[node['html'][:200] for node in each['nodes'][:3]]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
