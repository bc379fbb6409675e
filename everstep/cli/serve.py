"""`everstep serve`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from everstep import env
from everstep.cli.options import command, say
from everstep.coordinator.edge.server import serve as serve_coordinator
from everstep.coordinator.pool.people import NOBODY, People
from everstep.coordinator.retention import DAYS
from everstep.launcher.local_coordinator import write_token
from everstep.page.address import show_page
from everstep.settings import setting


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    host: str = setting("127.0.0.1", "Address to listen on", metavar="HOST")
    port: int = setting(7070, "Port to listen on; 0: any free one", metavar="PORT")
    store: str = setting(
        "sqlite:///everstep.db",
        f"Store of the coordinator: sqlite:///FILE or postgresql://…; use {env.STORE} for a URL with a password",
        metavar="URL",
        variables=(env.STORE,),
        shows_default=False,
    )
    token_file: Path = setting(
        Path("everstep.token"),
        "File with the tokens of each role; created if missing",
        metavar="FILE",
        variables=(env.TOKEN_FILE,),
    )
    ready_file: Path | None = setting(None, "Write the URL to this file once the coordinator is ready", metavar="FILE")
    tls_cert: Path | None = setting(
        None, "TLS certificate (PEM), including any intermediate certificates", metavar="FILE"
    )
    tls_key: Path | None = setting(
        None, "Key of the certificate (PEM), readable only by you, without a passphrase", metavar="FILE"
    )
    page: bool = setting(
        False,
        "Print an address that opens the page, even if stderr is not a terminal; on a desktop, open it",
    )
    code: Path | None = setting(None, "Folder with jobs' code (code-SHA256.tar.gz) that nodes may fetch", metavar="DIR")
    pools: Path | None = setting(
        None, "Pool file: pools whose nodes the coordinator creates, and shares of people", metavar="FILE"
    )
    pools_folder: Path | None = setting(
        None,
        "Folder for the records and logs of pools' nodes; default: FILE.nodes, beside the pool file",
        metavar="DIR",
    )
    otlp_endpoint: str | None = setting(
        None,
        "URL of an OpenTelemetry collector (OTLP over HTTP) to send spans to; default: OTEL_EXPORTER_OTLP_ENDPOINT",
        metavar="URL",
    )
    keep_days: float = setting(
        DAYS, "Remove jobs from the store this many days after they ended", metavar="DAYS", above=0
    )
    webhook_hosts: str | None = setting(
        None,
        "Hosts that webhooks may call, separated by commas: HOST, *.SUFFIX, HOST:PORT, http://HOST; default: none",
        metavar="HOSTS",
        variables=(env.WEBHOOK_HOSTS,),
    )


@command(ServeOptions)
def serve(options: ServeOptions) -> None:
    """Run a coordinator: the service that workers and agents connect to."""
    people, on_ready = _read_pools(options)
    write_token(options.token_file)
    serve_coordinator(
        options.host,
        options.port,
        options.store,
        options.token_file,
        ready_file=options.ready_file,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        code=options.code,
        show_page=partial(show_page, say, is_opened=options.page) if options.page or sys.stderr.isatty() else None,
        keep_days=options.keep_days,
        people=people,
        on_ready=on_ready,
        otlp_endpoint=options.otlp_endpoint,
        webhook_hosts=[options.webhook_hosts] if options.webhook_hosts else [],
    )


def _read_pools(options: ServeOptions) -> tuple[People, Callable[[str], None] | None]:
    """The shares of people, and a function that creates the pools' nodes, given the coordinator's URL."""
    if options.pools is None:
        return NOBODY, None
    from everstep.pool.nodes_process import PoolsOfServe, start_keeping
    from everstep.pool.pool_file import read_pool_file

    file = read_pool_file(options.pools)
    folder = options.pools_folder or options.pools.with_name(f"{options.pools.name}.nodes")
    pools = PoolsOfServe(file=options.pools, folder=folder, token_file=options.token_file)
    return file.people, lambda url: start_keeping(pools, url, say)


COMMANDS = {"serve": serve}
