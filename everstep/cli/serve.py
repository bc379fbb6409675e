"""`everstep serve`: hand over to the coordinator."""

from __future__ import annotations

from pathlib import Path

from everstep.coordinator.server import serve


def run_coordinator(host: str, port: int, store_url: str, token_file: Path, ready_file: Path | None) -> None:
    serve(host, port, store_url, token_file, ready_file=ready_file)
