"""One node's part in a job, from the command line's options."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path
from urllib.parse import urlsplit

from everstep.addresses import address_towards
from everstep.errors import UsageError
from everstep.jobs.options import NodeOptions
from everstep.jobs.tokens import worker_token_path
from everstep.launcher.node import NodeSpec


def node_spec(
    options: NodeOptions,
    *,
    url: str,
    token: Path,
    job: str,
    command: tuple[str, ...],
    num_workers: int,
    directory: Path,
    name: str | None = None,
) -> NodeSpec:
    where = urlsplit(url)
    if where.hostname is None:
        raise UsageError(f"not a URL: {url!r}", hint="such as http://10.0.0.5:7070", code="coordinator-url-invalid")
    return NodeSpec(
        job=job,
        coordinator_url=url,
        token_file=worker_token_path(token, directory),
        command=command,
        num_workers=num_workers,
        directory=directory,
        agent=name or f"{socket.gethostname()}-{secrets.token_hex(3)}",
        address=options.address or address_towards(where.hostname),
        is_address_given=options.address is not None,
        node_rank=-1 if options.node_rank is None else options.node_rank,
    )
