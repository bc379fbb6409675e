"""A browser as far as the coordinator can tell: headers, a cookie, and a stream of events that it resumes."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from everstep.client.calls import Coordinator
from everstep.wire import PageCodeRequest
from lab.command import until

PAGE = {"x-everstep": "page", "sec-fetch-site": "same-origin"}


def code_of(url: str, token: str) -> str:
    with Coordinator(url, token, "") as coordinator:
        return coordinator.page_code(PageCodeRequest()).code


class Browser:
    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, headers=PAGE, timeout=60)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_error: object) -> None:
        self.http.close()

    def open(self, **given: str) -> httpx.Response:
        return self.http.post("/v1/session", json=given)

    def get(self, path: str, **query: Any) -> Any:
        answer = self.http.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    @property
    def cookie(self) -> str:
        return "; ".join(f"{each.name}={each.value}" for each in self.http.cookies.jar)


def opened(server: Any) -> Browser:
    """With a session."""
    browser = Browser(server.url)
    answer = browser.open(code=code_of(server.url, server.token))
    assert answer.status_code == 200, answer.text
    return browser


@dataclass
class Event:
    kind: str
    data: Any
    id: str = ""


@dataclass
class EventStream:
    """Reads in a thread until it is closed or the connection ends; `resume` goes on after the last event."""

    browser: Browser
    jobs: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    last_id: str = ""
    events: list[Event] = field(default_factory=list)
    error: Exception | None = None

    def __post_init__(self) -> None:
        self._response: httpx.Response | None = None
        self.resume()

    def resume(self) -> None:
        headers = {"last-event-id": self.last_id} if self.last_id else {}
        self._thread = threading.Thread(target=self._read, args=[headers], daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def of(self, kind: str) -> list[Any]:
        return [each.data for each in self.events if each.kind == kind]

    def wait(self, kind: str, is_it: Callable[[Any], bool] = lambda _: True) -> Any:
        until(lambda: any(map(is_it, self.of(kind))), lambda: f"no such {kind}: {self.events[-5:]}")
        return next(each for each in self.of(kind) if is_it(each))

    def close(self) -> None:
        if self._response is not None and not self.has_ended:
            connection = self._response.extensions["network_stream"].get_extra_info("socket")
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads
        self._thread.join(30)

    def _read(self, headers: dict[str, str]) -> None:
        query = {"jobs": ",".join(self.jobs), "topics": ",".join(self.topics)}
        try:
            with self.browser.http.stream("GET", "/v1/stream", params=query, headers=headers) as response:
                self._response = response
                assert response.status_code == 200
                event = Event("", None)
                for line in response.iter_lines():
                    name, _, value = line.partition(": ")
                    if name == "event":
                        event.kind = value
                    elif name == "id":
                        event.id = value
                    elif name == "data":
                        event.data = json.loads(value)
                    elif not line and event.kind:
                        self.last_id = event.id or self.last_id
                        self.events.append(event)
                        event = Event("", None)
        except (httpx.HTTPError, httpx.StreamError) as error:
            self.error = error
