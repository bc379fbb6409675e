"""`everstep doctor` on this machine and over hosts with networks of their own; `run --check` before a start."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchmarks import footprint
from everstep.doctor.nodes import read_reports
from everstep.doctor.world_needs import FILES, MEMORY_BYTES, THREADS
from everstep.launcher.local_coordinator import CoordinatorFiles, start_coordinator
from everstep.testing.network import Network, can_make_hosts
from lab.command import CALM_OPTIONS, EVERSTEP, Command
from lab.ports import reserved_port

TELL = Path(__file__).parent / "scripts" / "tell.py"

needs_hosts = pytest.mark.skipif(
    not can_make_hosts() or shutil.which("tc") is None, reason="needs root, iproute2 and nftables"
)


def node(*arguments: object, home: Path, inside: Sequence[str] = (), **added: str) -> Command:
    """Started in a folder of its own; nodes of the same `home` share a token."""
    folder = home / f"node{len(list(home.iterdir()))}"
    folder.mkdir()
    given = {"HOME": str(home), "OMP_NUM_THREADS": "1", **added}
    return Command(*inside, *EVERSTEP, *arguments, folder=folder, are_errors_apart=True, **given)


def doctor(*arguments: object, home: Path, **added: str) -> tuple[int, dict[str, Mapping[str, Any]]]:
    """Its exit code, and its findings by check."""
    with node("doctor", "--json", *arguments, home=home, **added) as typed:
        code = typed.exit_code()
    ((_, findings),) = json.loads(typed.said)["nodes"].items()
    return code, {finding["check"]: finding for finding in findings}


def test_this_machine_is_examined(tmp_path: Path) -> None:
    coordinator, url = start_coordinator(CoordinatorFiles(directory=tmp_path))
    with coordinator:
        code, found = doctor("--coordinator", url, "--token-file", tmp_path / "token", home=tmp_path)
    assert code == 0
    assert found.keys() == {
        "python", "torch", "devices", "shared memory", "disk", "open files", "threads", "memory", "ports",
        "name", "clock", "nccl",
    }  # fmt: skip
    assert found["torch"]["level"] == found["clock"]["level"] == "ok"
    assert found["nccl"]["text"].startswith("not measured: there is ")


def test_an_error_is_an_exit_code_and_a_way_out(tmp_path: Path) -> None:
    code, found = doctor(home=tmp_path, PYTHON_EXEC="/bin/false")
    assert code == 1
    assert (found["torch"]["level"], found["torch"]["hint"]) == ("error", "pip install torch")


def test_the_table_is_for_people(tmp_path: Path) -> None:
    with node("doctor", home=tmp_path) as typed:
        typed.exit_code()
        told = typed.said
    assert socket.gethostname() in told
    assert [line.split()[:2] for line in told.splitlines()][1][0] == "python"


def test_a_node_whose_probe_fails_is_left_out(tmp_path: Path) -> None:
    with reserved_port() as port:
        # Neither begins before the other is there, however late; then they begin at once.
        run = ["run", "--check", "--nnodes=1:2", f"--rdzv-endpoint=127.0.0.1:{port}", "--last-call-s=60", *CALM_OPTIONS]
        with (
            node(*run, TELL, home=tmp_path) as good,
            node(*run, TELL, home=tmp_path, PYTHON_EXEC="/bin/false") as bad,
        ):
            good.finish()
            bad.finish()
    assert good.said == "[w0] out of 0: an apple\n"
    assert "is left out: its probe failed: exit code 1" in good.errors
    assert "left out, a spare from now on: its probe failed: exit code 1" in bad.errors


def test_nccl_is_measured_within_nodes_and_between_them(tmp_path: Path) -> None:
    """With processes and gloo in place of GPUs and NCCL: the same code."""
    with reserved_port() as port:
        start = ["doctor", "--json", "--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{port}"]
        stand_in = {"EVERSTEP_BACKEND": "stand-in"}
        with node(*start, home=tmp_path, **stand_in) as one, node(*start, home=tmp_path, **stand_in) as other:
            told = [json.loads(each.finish())["nodes"] for each in (one, other)]
    everywhere = next(nodes for nodes in told if len(nodes) == 2)
    for findings in everywhere.values():
        texts = [finding["text"] for finding in findings if finding["check"] == "nccl"]
        assert any("within the node" in text for text in texts), everywhere
        assert any("between nodes" in text or " to GPU " in text for text in texts), everywhere
        assert not [text for text in texts if "not measured" in text]


def test_a_process_that_dies_while_it_measures_is_named_and_nothing_hangs(tmp_path: Path) -> None:
    with reserved_port() as port:
        alone = {
            "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "EVERSTEP_BACKEND": "stand-in", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        words = [sys.executable, "-m", "everstep.doctor.measuring_worker", tmp_path]
        with Command(*words, folder=tmp_path, are_errors_apart=True, **alone) as measuring:
            measuring.until(lambda: _gpu_workers(tmp_path), "a process for each GPU")
            os.kill(_gpu_workers(tmp_path)[0], signal.SIGKILL)
            ((report,),) = (read_reports(line)[1] for line in [measuring.finish().splitlines()[-1]])
    assert report.gpu_problem.startswith("GPU ") and "killed by SIGKILL" in report.gpu_problem


def _gpu_workers(folder: Path) -> list[int]:
    """The processes that were started in this folder and already run their own program."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            words = (process / "cmdline").read_bytes().split(bytes(1))
            if words[1:3] == [b"-m", b"everstep.doctor.gpu_worker"] and os.readlink(process / "cwd") == str(folder):
                found.append(int(process.name))
    return found


@needs_hosts
@pytest.mark.root
def test_the_host_with_the_slow_cable_is_named(tmp_path: Path) -> None:
    with Network(3) as network:
        network.slow_down(2, mbit_per_s=50)
        told = on_all_hosts(network, tmp_path, "doctor", "--json", "--nnodes=3")
    everywhere = next(nodes for nodes in (json.loads(out)["nodes"] for out, _ in told) if len(nodes) == 3)
    levels = {
        title.split()[-1].strip("()"): {finding["check"]: finding["level"] for finding in findings}
        for title, findings in everywhere.items()
    }
    slow = {address for address, found in levels.items() if found["network"] == "warning"}
    assert slow == {network.address(2)}
    assert all(found["gloo"] == found["clock"] == "ok" for found in levels.values())


@needs_hosts
@pytest.mark.root
@pytest.mark.slow
def test_the_host_with_the_slow_cable_is_left_out_of_the_run(tmp_path: Path) -> None:
    with Network(3) as network:
        network.slow_down(2, mbit_per_s=50)
        options = ["--nnodes=2:3", "--last-call-s=60", *CALM_OPTIONS]  # all three are waited for, and nobody else
        told = on_all_hosts(network, tmp_path, "run", "--check", *options, TELL)
    (first_out, first_err), (slow_out, slow_err), (third_out, third_err) = told
    assert sorted([first_out, third_out]) == ["[w0] out of 0: an apple\n", "[w1] out of 0: an apple\n"], told
    assert slow_out == ""
    assert "MB/s to its best neighbor, the median is" in slow_err.split("left out, a spare from now on: ")[1]
    assert " is left out: " in first_err
    assert " is left out: " in third_err


def on_all_hosts(network: Network, home: Path, command: str, *arguments: str | Path) -> list[tuple[str, str]]:
    """What each of three hosts prints; the first one has the endpoint."""
    endpoint = f"--rdzv-endpoint={network.address(1)}:29400"
    start = [command, endpoint, *arguments]
    with ExitStack() as running:
        nodes = [
            running.enter_context(node(*start, home=home, inside=network.inside(host), GLOO_SOCKET_IFNAME="eth0"))
            for host in (1, 2, 3)
        ]
        return [(each.finish(), each.errors) for each in nodes]


def test_workers_of_a_real_world_need_what_the_doctor_says() -> None:
    """If this fails after a change to how connections grow, run python benchmarks/footprint.py."""
    held = footprint.measure(4)
    for name, need in (("files", FILES.at(4)), ("threads", THREADS.at(4)), ("memory_mb", MEMORY_BYTES.at(4) / 2**20)):
        assert held[name] <= need, f"{name}: more than foreseen"
        assert 3 * held[name] >= need, f"{name}: far less than foreseen"
