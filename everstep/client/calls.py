"""The one door to the coordinator: each route as a method, each message as a value.

One instance serves all threads of a process and keeps its connections. Every call may be made again
(`retry.patiently`): the coordinator recognises repetitions. The token is sent and nowhere else shown.
Does not retry, and does not interpret the answers."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import httpcore  # noqa: F401  httpx would import it when the first client is made: better here than there

from everstep import env
from everstep.client.tls import explain, explain_silence, tls_context
from everstep.errors import CoordinatorUnreachable, EverstepError, Refused, UsageError
from everstep.wire import (
    REALM,
    AgentLeave,
    AgentOrders,
    AgentReport,
    Announce,
    Announced,
    Arrive,
    Arrived,
    Broken,
    Datasets,
    DatasetSpec,
    DatasetView,
    GenerationView,
    Health,
    JobSpec,
    JobView,
    Leased,
    LeaseRequest,
    Leave,
    Left,
    MetricReport,
    MetricReports,
    MetricsView,
    RestoreShards,
    Settled,
    ShardCheckpoint,
    Slot,
    SlotRequest,
    Stop,
    Watch,
    Watched,
    WorkerExit,
    from_json,
    to_json,
)
from everstep.wire.tokens import READ_ONLY, ROLES, USER, WORKER, choose, parse_tokens

if TYPE_CHECKING:
    import httpx
else:
    # Without its command line, for which it would import rich and more: half of the time that the import takes.
    had = sys.modules.setdefault("httpx._main", None)
    httpx = importlib.import_module("httpx")
    if had is None:
        del sys.modules["httpx._main"]

T = TypeVar("T")

CONNECT_S = 5.0
ANSWER_S = 15.0  # far more than the coordinator ever holds a call

_TOO_MANY = 429
_HINTS = {
    401: "give this coordinator's token: --token-file FILE or EVERSTEP_TOKEN; that of a run is in runs/JOB/token",
    403: "a token file may hold one token of each role, a line each: worker:…, user:…, read-only:…",
}


class Coordinator:
    """One job's view of the coordinator."""

    def __init__(self, url: str, token: str, job: str, *, answer_s: float = ANSWER_S) -> None:
        self.url = url.rstrip("/")
        self.job = job
        self._root = f"{self.url}/v1/jobs/{quote(job, safe='')}"
        self._headers = _headers(token)
        self._timeout = {"timeout": httpx.Timeout(answer_s, connect=CONNECT_S).as_dict()}
        self._is_closed = self._has_answered = False
        # The transport alone: cookies, redirects and the like cost as much again as the call itself.
        # Neither proxies nor certificates have a say on plain http, and looking for them takes longer than a call.
        self._http = httpx.HTTPTransport(
            verify=tls_context() if self.url.startswith("https:") else False,
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=60.0),
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
        """End all connections; calls made from now on fail with CoordinatorUnreachable."""
        self._is_closed = True
        self._http.close()

    # --- the job ---

    def create_job(self, spec: JobSpec) -> JobView:
        return self._ask("PUT", "", spec, JobView, role=USER)

    def view(self, *, is_brief: bool = False) -> JobView:
        """A brief one tells of no worker: for those who ask again and again."""
        return self._ask("GET", "?is_brief=true" if is_brief else "", None, JobView, role=READ_ONLY)

    def generation(self, number: int) -> GenerationView:
        return self._ask("GET", f"/generations/{number}", None, GenerationView, role=READ_ONLY)

    def stop(self, reason: str) -> None:
        self._call("POST", "/stop", Stop(reason=reason), role=USER)

    def check(self) -> Health:
        """Whether a coordinator answers there and takes our token."""
        return self._ask("GET", "/health", None, Health, role=READ_ONLY, root=f"{self.url}/v1")

    def code(self, sha256: str) -> bytes:
        """The tarball of that name, for nodes."""
        return self._call("GET", f"/code/{sha256}", None, root=f"{self.url}/v1")

    # --- agents ---

    def reserve(self, request: SlotRequest) -> Slot:
        return self._ask("POST", "/workers", request, Slot)

    def report(self, agent: str, report: AgentReport) -> AgentOrders:
        return self._ask("POST", f"/agents/{quote(agent, safe='')}/report", report, AgentOrders)

    def agent_leaves(self, agent: str, message: AgentLeave) -> None:
        self._call("POST", f"/agents/{quote(agent, safe='')}/leave", message)

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

    # --- shards ---

    def register_dataset(self, dataset: str, spec: DatasetSpec) -> DatasetView:
        """Make it known, or find it as it is; refused if it is known with other numbers."""
        return self._ask("PUT", _of_dataset(dataset), spec, DatasetView)

    def report_and_lease(self, worker: str, message: LeaseRequest) -> Leased:
        return self._ask("POST", _of(worker, "lease"), message, Leased)

    def datasets(self) -> Datasets:
        return self._ask("GET", "/datasets", None, Datasets)

    def shard_checkpoint(self, dataset: str) -> ShardCheckpoint:
        return self._ask("GET", _of_dataset(dataset) + "/checkpoint", None, ShardCheckpoint)

    def restore_shards(self, dataset: str, message: RestoreShards) -> DatasetView:
        return self._ask("POST", _of_dataset(dataset) + "/restore", message, DatasetView)

    # --- metrics ---

    def report_metrics(self, reports: Sequence[MetricReport]) -> None:
        """Durable when it returns. Of one kind and batch, the last word counts."""
        self._call("POST", "/metrics", MetricReports(reports=list(reports)))

    def metrics(self, since: int = 0, limit: int = 100) -> MetricsView:
        """Those kept after `since` (a view's `last`), oldest first; the last ones if it is negative."""
        return self._ask("GET", f"/metrics?since={since}&limit={limit}", None, MetricsView, role=READ_ONLY)

    # --- the wire ---

    def _ask(
        self, method: str, path: str, message: Any, kind: type[T], *, role: str = WORKER, root: str | None = None
    ) -> T:
        body = self._call(method, path, message, role=role, root=root)
        try:
            return from_json(kind, body)
        except (ValueError, TypeError, AttributeError) as error:
            raise CoordinatorUnreachable(
                f"{method} {root or self._root}{path}: the answer is not a {kind.__name__} ({error})",
                hint="does this URL belong to an everstep coordinator of this version?",
            ) from None

    def _call(self, method: str, path: str, message: Any, *, role: str = WORKER, root: str | None = None) -> bytes:
        url = (root or self._root) + path
        where = f"{method} {url}"
        if self._is_closed:
            raise CoordinatorUnreachable(f"{where}: this client was closed")
        content = None if message is None else to_json(message)
        request = httpx.Request(method, url, headers=self._headers[role], content=content, extensions=self._timeout)
        try:
            answer = self._http.handle_request(request)
            body = answer.read()
        except httpx.TransportError as error:
            # `from None`: the chained exception would carry the request, and with it the token.
            raise self._explain(error, where) from None
        self._has_answered = True
        if answer.status_code < 300:
            return body
        text = f"{where}: {_words(answer.status_code, body)}"
        if answer.status_code == _TOO_MANY:
            raise CoordinatorUnreachable(text, wait_s=_seconds(answer.headers.get("retry-after", "")))
        if 400 <= answer.status_code < 500:
            raise Refused(text, status=answer.status_code, hint=_HINTS.get(answer.status_code))
        raise CoordinatorUnreachable(text)

    def _explain(self, error: httpx.TransportError, where: str) -> EverstepError:
        """One that has answered before is the right one: whatever is wrong with it now may be put right."""
        problem = explain(error, self.url)
        if problem is None and not self._has_answered and _is_hanging_up(error):
            problem = explain_silence(self.url)
        if problem is None:
            return CoordinatorUnreachable(f"{where}: {type(error).__name__}: {error}")
        return CoordinatorUnreachable(problem.message, hint=problem.hint) if self._has_answered else problem


def is_foreign(url: str) -> bool:
    """Whether what answers there is certainly no coordinator of ours. One that does not answer may be."""
    transport = httpx.HTTPTransport(verify=tls_context() if url.startswith("https:") else False, trust_env=False)
    timeout = {"timeout": httpx.Timeout(CONNECT_S).as_dict()}
    try:
        with transport:
            answer = transport.handle_request(httpx.Request("GET", f"{url}/v1/health", extensions=timeout))
            answer.close()
    except (httpx.RemoteProtocolError, httpx.ReadError):
        return explain_silence(url) is None  # neither http nor https
    except httpx.TransportError:
        return False
    is_ours = f'realm="{REALM}"' in answer.headers.get("www-authenticate", "")
    return not is_ours and answer.status_code not in (_TOO_MANY, 503)


def _is_hanging_up(error: httpx.TransportError) -> bool:
    return isinstance(error, httpx.RemoteProtocolError | httpx.ReadError)


def _seconds(text: str) -> float:
    """Of a Retry-After; a date, which we never send, counts as nothing said."""
    return float(text) if text.isascii() and text.isdigit() else 0.0


def _headers(text: str) -> dict[str, httpx.Headers]:
    """By the role that a call needs. Where we have no token for it, the coordinator says what is missing."""
    tokens = parse_tokens(text)
    if not tokens:
        raise UsageError("the token is empty", hint=f"see {env.TOKEN_FILE} and {env.TOKEN}")
    chosen = {role: choose(tokens, role) or tokens[0] for role in ROLES}
    return {
        role: httpx.Headers({"authorization": f"Bearer {token.word}", "content-type": "application/json"})
        for role, token in chosen.items()
    }


def _of(worker: str, call: str) -> str:
    return f"/workers/{quote(worker, safe='')}/{call}"


def _of_dataset(dataset: str) -> str:
    return f"/datasets/{quote(dataset, safe='')}"


def _words(status: int, body: bytes) -> str:
    """What the coordinator said, else what the status means."""
    try:
        return f"{status} {json.loads(body)['detail']}"
    except (ValueError, KeyError, TypeError):
        names = {int(each): each.phrase for each in HTTPStatus}
        return f"{status} {names.get(status, 'unknown status')}"
