"""The tokens of a job's coordinator: from options or the environment, into files that only this user can read."""

from __future__ import annotations

from pathlib import Path

from everstep import env
from everstep.errors import UsageError
from everstep.storage import private_file
from everstep.wire.tokens import only_for_workers


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
    return write_token(directory / "token", find_token(None))


def worker_token_path(path: Path, directory: Path) -> Path:
    """The file for the agent and its workers. If there is a token for workers, the file holds no other."""
    text = env.read_token(path)
    given = only_for_workers(text)
    return path if given == text else write_token(directory / "worker-token", given)


def write_token(path: Path, token: str) -> Path:
    private_file.write(path, f"{token}\n".encode())
    return path
