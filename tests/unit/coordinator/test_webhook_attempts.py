"""What follows from an attempt to deliver."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.coordinator.webhooks.attempts import (
    FIRST_PAUSE_S,
    GIVE_UP_S,
    LONGEST_PAUSE_S,
    PostAnswer,
    decide_attempt,
    pause_s,
)
from everstep.coordinator.webhooks.facts import Delivery
from everstep.wire.webhooks import DELIVERED, GIVEN_UP, WAITING_TO_BE_SENT

NEW = Delivery(uuid="u", webhook=1, event={}, created_at=1000.0, next_at=1000.0)
BUSY = PostAnswer(status=503, reason="503: busy")


@pytest.mark.parametrize("status", [200, 202, 204, 299])
def test_an_answer_of_2xx_is_the_end(status):
    done = decide_attempt(NEW, PostAnswer(status=status), 1001.0, 0.5)
    assert (done.state, done.num_attempts, done.status, done.ended_at) == (DELIVERED, 1, status, 1001.0)


@pytest.mark.parametrize("status", [0, 199, 301, 302, 400, 404, 410, 429, 500])
def test_any_other_answer_leads_to_another_attempt_with_the_same_id_and_its_reason_is_kept(status):
    tried = decide_attempt(NEW, PostAnswer(status=status, reason="why"), 1001.0, 0.5)
    assert (tried.state, tried.uuid, tried.reason, tried.num_attempts) == (WAITING_TO_BE_SENT, "u", "why", 1)
    assert 1001.0 + FIRST_PAUSE_S / 2 <= tried.next_at <= 1001.0 + FIRST_PAUSE_S


def test_pauses_double_up_to_an_hour_and_vary_by_chance():
    assert [pause_s(each, 1.0) for each in range(4)] == [1.0, 2.0, 4.0, 8.0]
    assert pause_s(12, 1.0) == pause_s(10_000, 1.0) == LONGEST_PAUSE_S
    assert pause_s(3, 0.0) == 4.0


def test_it_is_given_up_after_a_day_and_says_why():
    late = replace(NEW, num_attempts=30)
    now = NEW.created_at + GIVE_UP_S - LONGEST_PAUSE_S / 2 + 1
    assert decide_attempt(late, BUSY, now - 2, 0.0).state == WAITING_TO_BE_SENT
    gone = decide_attempt(late, BUSY, now, 0.0)
    assert (gone.state, gone.ended_at) == (GIVEN_UP, now)
    assert gone.reason == f"503: busy; given up after 31 attempts in {now - 1000:.0f} s"


def test_a_host_that_is_no_longer_allowed_is_not_called_again():
    gone = decide_attempt(NEW, PostAnswer(reason="not allowed", is_final=True), 1001.0, 0.5)
    assert (gone.state, gone.reason) == (GIVEN_UP, "not allowed")
