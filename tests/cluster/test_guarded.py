"""`everstep run` at a coordinator with TLS and a token for each role; and at a port that is somebody else's."""

from __future__ import annotations

import json
import os
import socketserver
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from everstep.wire.tokens import ROLES, parse_tokens
from lab.certificates import Authority
from lab.command import CALM_OPTIONS, EVERSTEP, Command, everstep

SCRIPTS = Path(__file__).parent / "scripts"
PLAINLY = {"EVERSTEP_NURSERY": "off"}  # puppets need no torch


@dataclass(frozen=True, kw_only=True)
class Standing:
    url: str
    token_file: Path
    ca_file: Path

    @property
    def options(self) -> list[object]:
        return ["--coordinator", self.url, "--token-file", self.token_file]


@pytest.fixture
def standing(tmp_path: Path) -> Iterator[Standing]:
    """A coordinator with TLS, as somebody starts it by hand."""
    folder = tmp_path / "coordinator"
    folder.mkdir()
    authority = Authority(folder)
    certificate, key = authority.issue("coordinator")
    options = {"--port": 0, "--ready-file": "url", "--tls-cert": certificate, "--tls-key": key}
    flat = [str(part) for option in options.items() for part in option]
    with Command(*EVERSTEP, "serve", *flat, folder=folder) as serving:
        serving.until((folder / "url").exists, "its address")
        url = (folder / "url").read_text().strip()
        yield Standing(url=url, token_file=folder / "everstep.token", ca_file=authority.certificate)


def test_its_workers_train_by_https_and_hold_their_own_token_alone(standing: Standing, tmp_path: Path) -> None:
    options = [
        *CALM_OPTIONS,
        *standing.options,
        "--ca-file",
        standing.ca_file,
        "--nproc-per-node",
        2,
        "--job",
        "guarded",
    ]
    done = everstep("run", *options, SCRIPTS / "puppet.py", 3, folder=tmp_path, **PLAINLY)

    assert done.returncode == 0, done.stderr
    assert "[w1] done" in done.stdout
    assert [token.role for token in parse_tokens(standing.token_file.read_text())] == list(ROLES)
    given = tmp_path / "runs" / "guarded" / "worker-token"
    assert [token.role for token in parse_tokens(given.read_text())] == ["worker"]
    assert stat.S_IMODE(given.stat().st_mode) == 0o600


def test_its_workers_are_told_whom_to_trust(standing: Standing, tmp_path: Path) -> None:
    options = [*CALM_OPTIONS, *standing.options, "--job", "told"]
    user = standing.token_file.read_text()
    ca = os.path.relpath(standing.ca_file, tmp_path)
    done = everstep(
        "run", *options, "--ca-file", ca, SCRIPTS / "tell.py", folder=tmp_path, **PLAINLY, EVERSTEP_TOKEN=user
    )

    assert done.returncode == 0, done.stderr
    seen = json.loads((tmp_path / "env-0.json").read_text())
    assert seen["EVERSTEP_CA"] == str(standing.ca_file)
    assert seen["EVERSTEP_TOKEN_FILE"] == str(tmp_path / "runs" / "told" / "worker-token")
    assert not any(token.word in value for token in parse_tokens(user) for value in seen.values())


def test_without_the_authority_the_way_out_is_told(standing: Standing, tmp_path: Path) -> None:
    done = everstep("run", *standing.options, SCRIPTS / "puppet.py", 3, folder=tmp_path, **PLAINLY)

    assert done.returncode == 2
    assert "the coordinator's certificate is not trusted" in done.stderr
    assert "HINT: EVERSTEP_CA or --ca-file must name the certificate that signed it" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_worker_token_is_not_enough_to_create_a_job(standing: Standing, tmp_path: Path) -> None:
    (word,) = [str(each) for each in parse_tokens(standing.token_file.read_text()) if each.role == "worker"]
    options = ["--coordinator", standing.url, "--ca-file", standing.ca_file]
    done = everstep("run", *options, SCRIPTS / "puppet.py", 3, folder=tmp_path, **PLAINLY, EVERSTEP_TOKEN=word)

    assert done.returncode == 2
    assert "the token's role is worker, and this needs user" in done.stderr
    assert word.partition(":")[2] not in done.stderr + done.stdout


def test_what_an_embedded_coordinator_keeps_is_for_its_owner_alone(tmp_path: Path) -> None:
    done = everstep("run", *CALM_OPTIONS, "--job", "own", SCRIPTS / "puppet.py", 2, folder=tmp_path, **PLAINLY)

    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "own"
    for name in ("token", "worker-token", "coordinator.log", "coordinator.url"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600, name
    assert [token.role for token in parse_tokens((folder / "worker-token").read_text())] == ["worker"]


# --- somebody else's port -------------------------------------------------------------------------


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def foreign_port() -> Iterator[int]:
    """A web server that has nothing to do with us."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield int(server.server_address[1])
        server.shutdown()
        thread.join()


def test_another_program_at_the_endpoint_is_called_what_it_is(foreign_port: int, tmp_path: Path) -> None:
    meeting = ["--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{foreign_port}", "--rdzv-id", "j"]
    done = everstep("run", *meeting, SCRIPTS / "puppet.py", 3, folder=tmp_path, **PLAINLY, HOME=str(tmp_path))

    assert done.returncode == 2
    assert f"the program at 127.0.0.1:{foreign_port} is not an Everstep coordinator" in done.stderr
    assert "HINT: another program has this port" in done.stderr
    assert "TOKEN" not in done.stderr


def test_a_run_does_not_host_a_coordinator_with_tls(tmp_path: Path) -> None:
    meeting = ["--nnodes", 2, "--rdzv-endpoint", "https://127.0.0.1:1", "--rdzv-conf", "is_host=true"]
    done = everstep("run", *meeting, SCRIPTS / "puppet.py", 3, folder=tmp_path, **PLAINLY)

    assert done.returncode == 2
    assert "a run cannot host a coordinator with TLS at https://127.0.0.1:1" in done.stderr
