"""One node's part in a job, from the command line's options."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path
from urllib.parse import urlsplit

from everstep import env
from everstep.errors import UsageError
from everstep.jobs.options import NodeOptions
from everstep.launcher.agent import node_address
from everstep.launcher.endpoint import private_file
from everstep.launcher.node import NodeSpec
from everstep.wire.tokens import only_for_workers


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
        address=options.address or node_address(where.hostname, where.port or 80),
        is_address_given=options.address is not None,
        node_rank=-1 if options.node_rank is None else options.node_rank,
    )


def find_token(token_file: Path | None) -> str:
    token = env.read_token(token_file) if token_file is not None else env.token()
    if token is None:
        raise UsageError(
            "no token for the coordinator", hint=f"give --token-file or set {env.TOKEN_FILE}", code="token-missing"
        )
    return token


def token_path(token_file: Path | None, directory: Path) -> Path:
    """The file that holds the token; a token from the environment is written to one."""
    if token_file is not None:
        return token_file.resolve()
    return private_file(directory / "token", find_token(None) + "\n")


def worker_token_path(path: Path, directory: Path) -> Path:
    """The file for the agent and its workers. If there is a token for workers, the file holds no other."""
    text = env.read_token(path)
    given = only_for_workers(text)
    return path if given == text else private_file(directory / "worker-token", given + "\n")
