"""Events are told if they can be; nobody fails because they cannot."""

from __future__ import annotations

import json
import logging
import os

import pytest

from everstep import env, events
from everstep.events import emit


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    for name, value in (("_file", None), ("_is_torn", False), ("num_dropped", 0)):
        monkeypatch.setattr(events, name, value)


@pytest.mark.parametrize("path", ["/dev/full", "/proc/version", "/nowhere/events.jsonl"])
def test_a_disk_that_takes_nothing_is_told_once_and_fails_nobody(path, monkeypatch, caplog):
    monkeypatch.setenv(env.EVENTS, path)

    with caplog.at_level(logging.WARNING):
        for step in range(3):
            emit("step.committed", step=step)

    assert events.num_dropped == 3
    (told,) = caplog.messages
    assert path in told


def test_a_fact_that_is_no_json_fails_nobody(tmp_path, monkeypatch):
    monkeypatch.setenv(env.EVENTS, str(tmp_path / "events.jsonl"))

    emit("odd", fact=object())

    assert events.num_dropped == 1


def test_a_line_that_was_cut_short_does_not_spoil_the_next_one(tmp_path, monkeypatch):
    path = tmp_path / "events.jsonl"
    monkeypatch.setenv(env.EVENTS, str(path))
    write = os.write
    with monkeypatch.context() as full:  # a disk with room for a few bytes
        full.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:5]))
        emit("first")
    emit("second")

    torn, whole = path.read_text().splitlines()
    assert torn == '{"eve'
    assert json.loads(whole)["event"] == "second"
