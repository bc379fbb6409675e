"""The one door to the coordinator: each call that `wire.operations` declares is a method, each message a value.

One instance serves all threads of a process and keeps its connections. Every call may be made again
(`retry.patiently`): the coordinator recognizes repetitions. The token is sent, and never shown.
Does not retry, and does not interpret the answers."""

from __future__ import annotations

import contextlib
import importlib
import json
import socket
import sys
import threading
import weakref
from collections.abc import Mapping
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import httpcore  # noqa: F401  httpx would import it when the first client is made: better here than there

from everstep import env
from everstep.client.tls import explain, explain_silence, no_tls, tls_context
from everstep.errors import CoordinatorUnreachable, EverstepError, Refused, UsageError
from everstep.wire import REALM, from_json, to_json
from everstep.wire.operations import HEALTH, Operation, Operations
from everstep.wire.tokens import NEEDED, choose, parse_tokens

if TYPE_CHECKING:
    import httpx
else:
    # Without its command line, for which it would import rich and more: half of the time that the import takes.
    had = sys.modules.setdefault("httpx._main", None)
    httpx = importlib.import_module("httpx")
    if had is None:
        del sys.modules["httpx._main"]

CONNECT_S = 5.0
ANSWER_S = 15.0  # far more than the coordinator needs, in addition to the time for which a call may be held
# A held call sends nothing. Instead, the kernel probes whether the other side is there, and breaks the call if not.
SILENT_S, ASK_S, NUM_ASKED = 5, 2, 3

_KEEP_ALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_S),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ASK_S),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, NUM_ASKED),
    # The kernel does not ask while what was sent is not acknowledged: then this is the limit.
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * (SILENT_S + ASK_S * NUM_ASKED)),
]
_CONNECTED = ("connection.connect_tcp.complete", "connection.start_tls.complete")  # httpcore's names
_TOO_MANY = 429
_HINTS = {
    401: "give this coordinator's token: --token-file FILE or EVERSTEP_TOKEN; that of a run is in runs/JOB/token",
}
_ROLE, _ROLE_HINT = (
    "role-insufficient",
    "a token file may hold one token of each role, a line each: worker:…, user:…, read-only:…",
)


class Coordinator(Operations):
    """One job's view of the coordinator."""

    def __init__(self, url: str, token: str, job: str, *, answer_s: float = ANSWER_S) -> None:
        self.url = url.rstrip("/")
        self.job = job
        self._quoted_job = quote(job, safe="")
        self._headers = _headers(token)
        self._answer_s = answer_s
        self._is_closed = self._has_answered = False
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._sockets_lock = threading.Lock()
        # The transport alone: cookies and redirects double the cost of a call.
        # Plain http needs neither proxies nor certificates, and looking for them takes longer than a call.
        self._http = httpx.HTTPTransport(
            verify=tls_context() if self.url.startswith("https:") else no_tls(),
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=60.0),
            socket_options=_KEEP_ALIVE,
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
        """End all connections. Calls under way, which may be held for a long time, and later ones fail with
        CoordinatorUnreachable."""
        with self._sockets_lock:
            self._is_closed = True
            for sock in self._sockets:
                _shut_down(sock)
        self._http.close()

    def _note_socket(self, event: str, info: Mapping[str, Any]) -> None:
        """Called by httpcore for everything it does (`trace`); nothing else tells which sockets a call waits for."""
        if event not in _CONNECTED:
            return
        sock = info["return_value"].get_extra_info("socket")
        with self._sockets_lock:
            self._sockets.add(sock)
            if self._is_closed:
                _shut_down(sock)

    def perform(self, operation: Operation, values: Mapping[str, Any]) -> Any:
        """Make a call that `Operations` declares."""
        named = {name: quote(str(values[name]), safe="") for name in operation.in_path if name != "job"}
        url = self.url + operation.path.format(job=self._quoted_job, **named)
        if query := _in_query(operation, values):
            url += "?" + urlencode(query)
        message = values[operation.body] if operation.body else None
        body = self._call(operation.method, url, message, operation.role)
        kind = operation.reply
        if kind is bytes or kind is type(None):
            return body if kind is bytes else None
        if kind is str:
            return body.decode()
        try:
            return from_json(kind, body) if hasattr(kind, "__dataclass_fields__") else json.loads(body)
        except (ValueError, TypeError, AttributeError) as error:
            raise CoordinatorUnreachable(
                f"{operation.method} {url}: the answer is not a {kind.__name__} ({error})",
                hint="does this URL belong to an everstep coordinator of this version?",
                code="reply-not-understood",
            ) from None

    def _call(self, method: str, url: str, message: Any, role: str) -> bytes:
        where = f"{method} {url}"
        if self._is_closed:
            raise CoordinatorUnreachable(f"{where}: this client was closed", code="client-closed")
        content = message if message is None or isinstance(message, bytes) else to_json(message)
        timeout = httpx.Timeout(self._answer_s + getattr(message, "wait_s", 0.0), connect=CONNECT_S)
        extensions = {"timeout": timeout.as_dict(), "trace": self._note_socket}
        request = httpx.Request(method, url, headers=self._headers[role], content=content, extensions=extensions)
        try:
            answer = self._http.handle_request(request)
            body = answer.read()
        except httpx.TransportError as error:
            # `from None`: the chained exception would carry the request, and with it the token.
            raise self._explain(error, where) from None
        self._has_answered = True
        if answer.status_code < 300:
            return body
        detail, code = _refusal(answer.status_code, body)
        text = f"{where}: {detail}"
        if answer.status_code == _TOO_MANY:
            wait_s = _seconds(answer.headers.get("retry-after", ""))
            raise CoordinatorUnreachable(text, wait_s=wait_s, code=code)
        if 400 <= answer.status_code < 500:
            sentence = detail.partition(" ")[2]
            hint = _ROLE_HINT if code == _ROLE else _HINTS.get(answer.status_code)
            raise Refused(text, status=answer.status_code, hint=hint, code=code, sentence=sentence)
        raise CoordinatorUnreachable(text, code=code)

    def _explain(self, error: httpx.TransportError, where: str) -> EverstepError:
        """A coordinator that has answered before is the right one: its problem may be temporary."""
        problem = explain(error, self.url)
        if problem is None and not self._has_answered and _is_hanging_up(error):
            problem = explain_silence(self.url)
        if problem is None:
            return CoordinatorUnreachable(f"{where}: {type(error).__name__}: {error}", code="coordinator-silent")
        if self._has_answered:
            return CoordinatorUnreachable(problem.message, hint=problem.hint, code=problem.code)
        return problem


def _shut_down(sock: socket.socket) -> None:
    """Closing a socket would not wake a thread that waits for it. With TLS, its own farewell could wait too."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def is_foreign(url: str) -> bool:
    """Whether something other than an everstep coordinator certainly answers there. No answer: it may be one."""
    transport = httpx.HTTPTransport(verify=tls_context() if url.startswith("https:") else False, trust_env=False)
    timeout = {"timeout": httpx.Timeout(CONNECT_S).as_dict()}
    try:
        with transport:
            answer = transport.handle_request(httpx.Request("GET", url + HEALTH, extensions=timeout))
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
    """Of a Retry-After; a date, which the coordinator never sends, counts as none."""
    return float(text) if text.isascii() and text.isdigit() else 0.0


def _headers(text: str) -> dict[str, httpx.Headers]:
    """By the role that a call needs. Without a token for that role, the coordinator's reply names it."""
    tokens = parse_tokens(text)
    if not tokens:
        raise UsageError("the token is empty", hint=f"see {env.TOKEN_FILE} and {env.TOKEN}", code="token-empty")
    chosen = {role: choose(tokens, role) or tokens[0] for role in NEEDED}
    return {
        role: httpx.Headers({"authorization": f"Bearer {token.word}", "content-type": "application/json"})
        for role, token in chosen.items()
    }


def _in_query(operation: Operation, values: Mapping[str, Any]) -> dict[str, str]:
    if operation.query is not None:
        message = values[operation.query]
        sent = {name: getattr(message, name) for name in operation.in_query}
        values = {name: value for name, value in sent.items() if value != operation.in_query[name]}
    return {name: _as_text(values[name]) for name in operation.in_query if name in values}


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refusal(status: int, body: bytes) -> tuple[str, str]:
    """The coordinator's sentence and code, else what the status means."""
    try:
        refusal = json.loads(body)
        return f"{status} {refusal['detail']}", str(refusal.get("code", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        names = {int(each): each.phrase for each in HTTPStatus}
        return f"{status} {names.get(status, 'unknown status')}", ""
