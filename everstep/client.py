"""The one door to the coordinator: each route as a method, each message as a value.

One instance serves all threads of a process and keeps its connections. Every call may be made again
(`retry.patiently`): the coordinator recognises repetitions. The token is sent and nowhere else shown.
Does not retry, and does not interpret the answers."""

from __future__ import annotations

import json
from http import HTTPStatus
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from everstep.errors import CoordinatorUnreachable, Refused
from everstep.wire import (
    AgentOrders,
    AgentReport,
    Announce,
    Announced,
    Arrive,
    Arrived,
    Broken,
    GenerationView,
    JobSpec,
    JobView,
    Leave,
    Left,
    Settled,
    Slot,
    SlotRequest,
    Stop,
    Watch,
    Watched,
    WorkerExit,
    from_json,
    to_json,
)

T = TypeVar("T")

CONNECT_S = 5.0
ANSWER_S = 15.0  # far more than the coordinator ever holds a call


class Coordinator:
    """One job's view of the coordinator."""

    def __init__(self, url: str, token: str, job: str, *, answer_s: float = ANSWER_S) -> None:
        self.url = url.rstrip("/")
        self.job = job
        self._path = f"/v1/jobs/{quote(job, safe='')}"
        self._http = httpx.Client(
            base_url=self.url,
            headers={"authorization": f"Bearer {token}", "content-type": "application/json"},
            timeout=httpx.Timeout(answer_s, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=60.0),
            # Neither proxies nor certificates have a say on plain http, and looking for them takes longer than a call.
            trust_env=False,
            verify=self.url.startswith("https:"),
        )

    def __repr__(self) -> str:
        return f"Coordinator(url={self.url!r}, job={self.job!r})"

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all connections; calls still under way in other threads fail with CoordinatorUnreachable."""
        self._http.close()

    # --- the job ---

    def create_job(self, spec: JobSpec) -> JobView:
        return self._ask("PUT", "", spec, JobView)

    def view(self) -> JobView:
        return self._ask("GET", "", None, JobView)

    def generation(self, number: int) -> GenerationView:
        return self._ask("GET", f"/generations/{number}", None, GenerationView)

    def stop(self, reason: str) -> None:
        self._call("POST", "/stop", Stop(reason=reason))

    # --- agents ---

    def reserve(self, request: SlotRequest) -> Slot:
        return self._ask("POST", "/workers", request, Slot)

    def report(self, agent: str, report: AgentReport) -> AgentOrders:
        return self._ask("POST", f"/agents/{quote(agent, safe='')}/report", report, AgentOrders)

    def exited(self, worker: str, end: WorkerExit) -> None:
        self._call("POST", _of(worker, "exited"), end)

    # --- workers ---

    def announce(self, worker: str, message: Announce) -> Announced:
        return self._ask("POST", _of(worker, "announce"), message, Announced)

    def watch(self, worker: str, message: Watch) -> Watched:
        return self._ask("POST", _of(worker, "watch"), message, Watched)

    def arrive(self, worker: str, message: Arrive) -> Arrived:
        return self._ask("POST", _of(worker, "arrive"), message, Arrived)

    def broken(self, worker: str, message: Broken) -> None:
        self._call("POST", _of(worker, "broken"), message)

    def settled(self, worker: str, message: Settled) -> None:
        self._call("POST", _of(worker, "settled"), message)

    def leave(self, worker: str, message: Leave) -> Left:
        return self._ask("POST", _of(worker, "leave"), message, Left)

    # --- the wire ---

    def _ask(self, method: str, path: str, message: Any, kind: type[T]) -> T:
        body = self._call(method, path, message)
        try:
            return from_json(kind, body)
        except (ValueError, TypeError, AttributeError) as error:
            raise CoordinatorUnreachable(
                f"{method} {self.url}{self._path}{path}: the answer is not a {kind.__name__} ({error})",
                hint="does this URL belong to an everstep coordinator of this version?",
            ) from None

    def _call(self, method: str, path: str, message: Any) -> bytes:
        try:
            answer = self._http.request(
                method, self._path + path, content=None if message is None else to_json(message)
            )
        except (httpx.TransportError, RuntimeError) as error:  # RuntimeError: the client was closed meanwhile
            # `from None`: the chained exception would carry the request, and with it the token.
            raise CoordinatorUnreachable(
                f"{method} {self.url}{self._path}{path}: {type(error).__name__}: {error}"
            ) from None
        if answer.status_code < 300:
            return answer.content
        text = f"{method} {self.url}{self._path}{path}: {_words(answer.status_code, answer.content)}"
        if 400 <= answer.status_code < 500:
            raise Refused(text, status=answer.status_code)
        raise CoordinatorUnreachable(text)


def _of(worker: str, call: str) -> str:
    return f"/workers/{quote(worker, safe='')}/{call}"


def _words(status: int, body: bytes) -> str:
    """What the coordinator said, else what the status means."""
    try:
        return f"{status} {json.loads(body)['detail']}"
    except (ValueError, KeyError, TypeError):
        names = {int(each): each.phrase for each in HTTPStatus}
        return f"{status} {names.get(status, 'unknown status')}"
