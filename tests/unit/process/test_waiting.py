"""One function waits: with a deadline, and one line about what it waits for."""

from __future__ import annotations

import time

import pytest

from everstep import waiting
from everstep.errors import CoordinatorUnreachable, TemporaryError
from everstep.retry import patiently
from everstep.waiting import wait_until


@pytest.fixture
def passing(monkeypatch) -> list[float]:
    """Pauses pass at once, and are listed."""
    now, pauses = [0.0], []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return pauses


def test_the_first_true_answer_is_returned_without_a_word(passing) -> None:
    answers, said = iter([None, None, "here"]), list[str]()

    assert wait_until(lambda: next(answers), 10.0, "it", say=said.append) == "here"
    assert not said and len(passing) == 2


def test_after_the_deadline_the_last_answer_is_returned(passing) -> None:
    assert wait_until(lambda: 0, 1.0, "it", pause_s=0.3) == 0
    assert sum(passing) == pytest.approx(1.0)


def test_a_long_wait_is_explained_once(passing) -> None:
    said: list[str] = []

    wait_until(lambda: False, 60.0, lambda: "w3 to end", say=said.append)

    assert said == ["waiting for w3 to end"]
    assert waiting.SAID_AFTER_S < 5.0


def test_pauses_grow_up_to_the_longest(passing) -> None:
    wait_until(lambda: False, 60.0, "it", pause_s=0.1, longest_pause_s=2.0)

    assert passing[0] == 0.1 and max(passing) == 2.0 and passing == sorted(passing[:-1]) + passing[-1:]


def test_retries_are_explained_once_too(monkeypatch) -> None:
    clock, said = iter(range(0, 1000, 2)), list[str]()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))

    def fail() -> None:
        raise TemporaryError("it is away")

    with pytest.raises(CoordinatorUnreachable) as gave_up:
        patiently(fail, 20.0, say=said.append)
    assert said == ["still trying: it is away"]
    assert gave_up.value.code == "retries-exhausted"
