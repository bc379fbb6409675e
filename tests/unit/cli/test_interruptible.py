"""Signals to a command that follows an experiment."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from everstep.cli.experiment_follow import Interrupted, interruptible


@pytest.fixture(autouse=True)
def former() -> Iterator[None]:
    handler = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, handler)


def test_a_closing_terminal_may_hang_up_twice() -> None:
    with pytest.raises(Interrupted), interruptible():
        signal.raise_signal(signal.SIGHUP)  # to this thread: one sent to the process may reach another one first
        pytest.fail("it did not end the command")
    os.kill(os.getpid(), signal.SIGHUP)  # from the kernel, after the shell's: the experiment is about to be paused


def test_under_nohup_a_closing_terminal_means_nothing() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with interruptible():
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_afterwards_signals_are_what_they_were() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with interruptible():
        assert signal.getsignal(signal.SIGHUP) != signal.SIG_DFL
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
