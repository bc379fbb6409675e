"""A token that is missing or wrong is told in a line, with the way out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from everstep.cli.main import app
from everstep.client.calls import Coordinator
from everstep.errors import Refused, UsageError


@pytest.mark.parametrize("command", [["status"], ["run", "train.py"], ["doctor"]])
def test_a_token_file_that_is_not_there_is_refused_also_if_nothing_is_read_from_it(
    command: list[str], tmp_path: Path
) -> None:
    result = CliRunner().invoke(app, [command[0], "--token-file", str(tmp_path / "nope"), *command[1:]])
    assert isinstance(result.exception, UsageError)
    assert result.exception.code == "token-file-missing"
    assert str(tmp_path / "nope") in str(result.exception)


class Strict(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(401)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def strict() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Strict) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_who_has_another_token_is_told_where_the_right_one_is(strict: str) -> None:
    with Coordinator(strict, "wrong", "j") as coordinator, pytest.raises(Refused) as refused:
        coordinator.view()
    assert "--token-file FILE or EVERSTEP_TOKEN; that of a run is in runs/JOB/token" in str(refused.value)
