"""Serve the coordinator: bind, open the store, print its URL, answer until SIGTERM.

May be killed at any moment; started again on the same store and port, everything is as before."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import resource
import secrets
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

import uvicorn

from everstep import env
from everstep.coordinator.edge.certificate import is_loopback, plain_warning, server_context
from everstep.coordinator.edge.connection import HttpConnection
from everstep.coordinator.edge.dispatch import Dispatcher
from everstep.coordinator.edge.guard import Guard, KnownTokens
from everstep.coordinator.edge.page_door import PageDoor
from everstep.coordinator.pool.people import NOBODY, People
from everstep.coordinator.retention import DAYS
from everstep.coordinator.spans.export import open_exporter
from everstep.coordinator.store.store import Store
from everstep.coordinator.trial_tokens import TrialTokens
from everstep.coordinator.turns import Turns
from everstep.coordinator.webhooks.hosts import parse_hosts
from everstep.errors import UsageError
from everstep.page.address import page_address
from everstep.page.sessions import Sessions
from everstep.page.static_files import StaticFiles
from everstep.storage import private_file
from everstep.wire.tokens import parse_tokens

BACKLOG = 4096  # thousands of workers may connect at the same moment
SWITCH_S = 0.0005  # the store's thread waits this long for its turn while calls arrive, not ten times as long
RESERVED_FILES = 128  # of those that may be open: for the store, logs and callers that are turned away with 503
KEEP_ALIVE_S = 120  # longer than any client keeps an idle connection: the client closes first, and no call is lost


class Server(uvicorn.Server):
    """Ends without delay: a call that is held would keep it for as long as it may be held."""

    def __init__(self, config: uvicorn.Config, let_go: Callable[[], None]) -> None:
        super().__init__(config)
        self._let_go = let_go

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._let_go()
        await super().shutdown(sockets)


def serve(
    host: str,
    port: int,
    store_url: str,
    token_file: str | Path,
    *,
    ready_fd: int | None = None,
    ready_file: str | Path | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    code: Path | None = None,
    show_page: Callable[[str], None] | None = None,
    keep_days: float = DAYS,
    people: People = NOBODY,
    on_ready: Callable[[str], None] | None = None,
    otlp_endpoint: str | None = None,
    webhook_hosts: Sequence[str] = (),
) -> None:
    """Answer until SIGTERM or SIGINT. The URL goes to stdout, as one line to `ready_fd` or `ready_file`, and to
    `on_ready`. `show_page` gets the address that opens the page once. `otlp_endpoint`: of an OpenTelemetry
    collector; default: what the standard variables say."""
    tls = server_context(tls_cert, tls_key)
    hosts = parse_hosts(webhook_hosts)
    tokens = parse_tokens(read_or_create_token(Path(token_file)))
    _raise_file_limit()
    _calm_garbage_collector()
    sys.setswitchinterval(SWITCH_S)
    with contextlib.closing(bind(host, port)) as listener:
        url = url_of(listener, "http" if tls is None else "https")
        if tls is None and not is_loopback(listener.getsockname()[0]):
            _tell(plain_warning(url), sys.stderr)

        span_exporter = open_exporter(otlp_endpoint)
        store = Store(store_url)
        known = KnownTokens(tokens, TrialTokens(store.trial_secret))
        sessions = Sessions(tokens, store.sessions())

        def is_ready() -> None:
            _say_ready(url, ready_fd, ready_file)
            if on_ready is not None:
                on_ready(url)
            if show_page is not None:
                show_page(page_address(url, sessions.printed_code(time.time())))

        turns = Turns()
        app = Dispatcher(
            store,
            sessions,
            code,
            is_ready,
            turns,
            keep_days=keep_days,
            people=people,
            span_exporter=span_exporter,
            webhook_hosts=hosts,
        )
        config = uvicorn.Config(
            Guard(app, known, PageDoor(sessions, StaticFiles(), store)),
            http=functools.partial(HttpConnection, turns),  # type: ignore[arg-type]
            limit_concurrency=_max_connections(),
            access_log=False,
            log_level="warning",
            server_header=False,
            date_header=False,
            ws="none",
            lifespan="on",  # one that cannot start ends, and says why
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=3,
            backlog=BACKLOG,
        )
        config.load()
        config.ssl = tls
        Server(config, app.let_go).run(sockets=[listener])


def read_or_create_token(path: Path) -> str:
    """The token in this file; if the file does not exist, create it with a random token, readable by its owner only."""
    try:
        descriptor = private_file.descriptor(path, os.O_WRONLY | os.O_EXCL)
    except FileExistsError:
        if token := env.read_token(path):
            return token
        raise UsageError(
            f"token file {path} is empty", hint="remove it: the coordinator creates a new one", code="token-file-empty"
        ) from None
    token = secrets.token_urlsafe(32)
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
    return token


def bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror}",
            hint="--port 0 takes a free one",
            code="address-unavailable",
        ) from None
    listener.listen(BACKLOG)
    return listener


def url_of(listener: socket.socket, scheme: str) -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _say_ready(url: str, ready_fd: int | None, ready_file: str | Path | None) -> None:
    _tell(f"everstep coordinator at {url}", sys.stdout)
    if ready_fd is not None:
        os.write(ready_fd, f"{url}\n".encode())
        os.close(ready_fd)
    if ready_file is not None:
        private_file.write(Path(ready_file), f"{url}\n".encode())


def _tell(line: str, stream: TextIO) -> None:
    """To its log. A full disk must not keep it from serving."""
    with contextlib.suppress(OSError):
        print(line, file=stream, flush=True)


def _raise_file_limit() -> None:
    """One connection or two per worker."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _max_connections() -> int:
    """Above this, calls are answered 503, which is worth another try; the coordinator needs some files itself."""
    return max(64, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVED_FILES)


def _calm_garbage_collector() -> None:
    """Rosters and ledgers have no cycles; scanning all of them at every collection took a third of the time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
