"""`everstep serve`: what it takes from the environment."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from everstep.cli.main import app
from everstep.errors import UsageError
from lab import command


def test_a_store_with_a_password_need_not_be_on_the_command_line(tmp_path: Path) -> None:
    told = {"EVERSTEP_STORE": f"sqlite:///{tmp_path}/nowhere/store.db"}
    result = CliRunner(env=told).invoke(app, ["serve", "--port", "0", "--token-file", str(tmp_path / "token")])
    assert isinstance(result.exception, UsageError)
    assert "nowhere/store.db" in str(result.exception)
    assert "EVERSTEP_STORE" in CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"}).output


def test_one_that_cannot_say_that_it_is_ready_ends_and_says_why(tmp_path: Path) -> None:
    words = [
        "serve",
        "--port",
        "0",
        "--store",
        f"sqlite:///{tmp_path}/store.db",
        "--ready-file",
        tmp_path / "store.db" / "ready",
    ]
    done = command.everstep(*words, "--token-file", tmp_path / "token", folder=tmp_path)
    assert done.returncode != 0
    assert "File exists" in done.stderr
