"""`everstep serve`: hand over to the coordinator."""

from __future__ import annotations

from pathlib import Path

from everstep.coordinator.edge.server import serve
from everstep.launcher.local_coordinator import write_token


def run_coordinator(
    host: str,
    port: int,
    store_url: str,
    token_file: Path,
    *,
    ready_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    code: Path | None,
) -> None:
    write_token(token_file)
    serve(host, port, store_url, token_file, ready_file=ready_file, tls_cert=tls_cert, tls_key=tls_key, code=code)
