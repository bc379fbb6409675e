"""A coordinator with a pool whose agents only say that they run what they are told to: for the page to look at."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.launcher.local_coordinator import CoordinatorFiles, private_directory, start_coordinator
from everstep.wire.tokens import USER
from lab.command import until
from lab.experiments import spec
from lab.page_window import Window, code_of, window
from lab.people import ALICE, ROOT, TakingAgent, as_, write_tokens

PAUSE_S = 0.2  # between an agent's reports


class PagePool:
    def __init__(self, folder: Path) -> None:
        self.files = CoordinatorFiles(directory=private_directory(folder / "coordinator"))
        write_tokens(self.files.directory)
        self.url = ""
        self._is_over = threading.Event()
        self._stack = ExitStack()

    def __enter__(self) -> PagePool:
        process, self.url = start_coordinator(self.files)
        self._stack.callback(process.kill)
        self._stack.callback(self._is_over.set)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def as_(self, token: str = ROOT, job: str = "none") -> Coordinator:
        return as_(self, token, job)

    def join(self, name: str, num_slots: int) -> TakingAgent:
        """An agent that reports until the end of the story."""
        agent = TakingAgent(self, num_slots, name)

        def report() -> None:
            while not self._is_over.wait(PAUSE_S):
                agent.report()

        thread = threading.Thread(target=report, daemon=True)
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(self._is_over.set)
        until(lambda: any(each.agent == name for each in self.view().agents))
        return agent

    @contextmanager
    def signed_in(self, browser: Any, token: str, role: str = USER, **options: Any) -> Iterator[Window]:
        """A window with a session of this person."""
        with window(browser, self.url, **options) as made:
            page = made.open("/", code_of(self.url, token, role))
            page.get_by_role("heading", name="Jobs", exact=True).wait_for()
            page.close()
            yield made

    def view(self) -> wire.PoolView:
        with self.as_() as coordinator:
            return coordinator.pool("default")

    def create(self, token: str = ALICE, **given: Any) -> int:
        with self.as_(token) as coordinator:
            return coordinator.create_experiment(spec("random", **given)).experiment

    def until_held(self, experiment: int, number: int) -> None:
        def held() -> int:
            return sum(slot.experiment == experiment for agent in self.view().agents for slot in agent.slots)

        until(lambda: held() == number, lambda: f"{self.view()}")
