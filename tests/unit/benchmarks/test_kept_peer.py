"""A peer that ends or hangs ends the benchmark with an error that says so, and leaves no process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from benchmarks.kept_peer import KeptPeer, PeerFailed

READY = "import json, os, sys, threading; print(json.dumps({'is_ready': True}), flush=True); sys.stdin.readline(); "


def peer(script: str, answer_s: float = 60.0) -> KeptPeer:
    return KeptPeer("some peer", [sys.executable, "-c", READY + script], 60.0, answer_s)


def test_a_kept_peer_answers_each_time_it_is_asked() -> None:
    again = "print(json.dumps({'n': 1}), flush=True); sys.stdin.readline(); print(json.dumps({'n': 2}), flush=True)"
    kept = peer(again)
    assert [kept.search(), kept.search()] == [{"n": 1}, {"n": 2}]
    kept.close()


def test_a_peer_that_dies_is_an_error_with_its_last_words() -> None:
    kept = peer("sys.exit('out of actors')")
    with pytest.raises(PeerFailed, match=r"some peer ended with 1:\nout of actors"):
        kept.search()
    kept.close()


def test_a_peer_that_hangs_is_an_error_and_its_processes_end(tmp_path: Path) -> None:
    """Its child inherits a pipe: the pipe's end is seen once both are gone."""
    pipe = tmp_path / "alive"
    os.mkfifo(pipe)
    kept = peer(f"alive = open({str(pipe)!r}, 'w'); os.fork(); threading.Event().wait()", answer_s=1.0)
    reader = os.fdopen(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
    with pytest.raises(PeerFailed, match="some peer did not answer within 1 s"):
        kept.search()
    kept.close()
    os.set_blocking(reader.fileno(), True)
    assert reader.read() == ""
