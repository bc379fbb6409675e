"""Nodes described by ADS's variables, as processes: they find each other by a folder, and end together."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from everstep.jobs.entry import attend
from everstep.platforms import status_file
from everstep.process import Child
from lab.command import EVERSTEP, Command, everstep, keyboard, until
from lab.submitted import SCRIPT

Start = Callable[..., Command]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A node of this rank; `of` is the number of nodes."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_bytes(SCRIPT.read_bytes())
    told = {
        "OCI__ENTRY_SCRIPT": "train.py",
        "OCI__WORK_DIR": str(tmp_path / "work"),
        "OCI__CODE_DIR": str(code),
        "HOME": str(tmp_path),
    }
    with keyboard(tmp_path, **told) as type_command:

        def start(rank: int, num_nodes: int, **more: str) -> Command:
            place = {
                "OCI__MODE": "WORKER" if rank else "MAIN",
                "RANK": str(rank),
                "OCI__WORKER_COUNT": str(num_nodes - 1),
            }
            return type_command(*EVERSTEP, "entry", "--log-dir", tmp_path / f"runs-{rank}", **place, **more)

        yield start


def test_nodes_find_each_other_by_a_folder(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "work" / "Undefined"
    folder.mkdir(parents=True, mode=0o700)
    stale = {"coordinator": "http://127.0.0.1:9", "job": "old", "MASTER_ADDR": "127.0.0.1"}
    (folder / "MAIN_config.json").write_text(json.dumps(stale))
    (folder / "everstep.token").write_text("worker:old\n")
    arguments = {"OCI__ENTRY_SCRIPT_ARGS": "--steps 20 'two words'"}

    nodes = [start(1, 2, **arguments), start(0, 2, **arguments)]

    for node in nodes:
        node.finish()
    assert said(tmp_path).count("words ['two words']") == 2
    assert "generation 1 trains with 2 workers" in said(tmp_path)
    assert not (folder / "everstep.token").exists()


def test_the_first_node_is_told_to_go_and_the_job_is_over(start: Start, tmp_path: Path) -> None:
    arguments = {"OCI__ENTRY_SCRIPT_ARGS": "--steps 100000"}
    first, second = start(0, 2, **arguments), start(1, 2, **arguments)
    until(lambda: "trains with 2 workers" in said(tmp_path), lambda: said(tmp_path))

    first.signal(signal.SIGTERM)

    assert first.exit_code() == 1
    assert second.exit_code() != 0
    assert "canceled" in said(tmp_path)


def test_the_only_node_fails_before_it_joins_and_the_job_is_over(start: Start, tmp_path: Path) -> None:
    order = {"job": "j", "name": "j", "script": "train.py", "workdir": str(tmp_path), "setup": ["exit 3"]}
    assert start(0, 1, EVERSTEP_ORDER=json.dumps(order)).exit_code() == 1
    assert "the only node ended (exit code 3) before the job did" in said(tmp_path)


@pytest.mark.parametrize(("state", "code"), [("succeeded", 0), ("running", 143)])
def test_a_job_that_is_over_is_not_stopped_while_its_record_is_written(
    state: Literal["succeeded", "running"], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everstep.jobs.entry._LAST_WORD_S", 0.0)
    status_file.write(tmp_path, state, "as far as the coordinator is")
    agent, coordinator = Child.start(["true"]), Child.start(["sleep", "1"])
    ended = attend(
        coordinator, agent, threading.Event(), folder=tmp_path, grace_s=5.0, is_alone=True, say=lambda _line: None
    )
    assert ended == code


def test_nodes_find_each_other_by_an_address(start: Start, tmp_path: Path) -> None:
    with socket.socket() as held:  # from others; a program that means to listen there still can
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        meeting = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(held.getsockname()[1]),
            "OCI__WORK_DIR": "",
            "EVERSTEP_TOKEN": "secret-word",
        }
        nodes = [start(rank, 2, OCI__ENTRY_SCRIPT_ARGS="--steps 5", **meeting) for rank in (0, 1)]
        for node in nodes:
            node.finish()
    assert "secret-word" not in said(tmp_path)


def test_a_port_that_is_taken_is_left_to_its_owner(start: Start, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.1", 29400))
        except OSError:
            pass  # somebody else has it, which is as good
        start(0, 1, OCI__ENTRY_SCRIPT_ARGS="--steps 3").finish()
    assert "http://127.0.0.1:29400" not in said(tmp_path)


def test_a_command_is_run_instead(tmp_path: Path) -> None:
    assert everstep("entry", "echo", "--it", "works", folder=tmp_path).stdout == "--it works\n"


def test_whoever_is_told_nothing_says_so(tmp_path: Path) -> None:
    done = everstep("entry", folder=tmp_path)
    assert done.returncode == 2
    assert "no order for this node" in done.stderr


def said(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("terminal-*.log")))
