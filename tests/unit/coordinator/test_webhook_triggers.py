"""What a change of an experiment leads to: which webhooks hear of it, and what they are told."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import replace

import pytest

from everstep import wire
from everstep.coordinator.experiments.facts import Experiment, Trial
from everstep.coordinator.webhooks.access import may_change
from everstep.coordinator.webhooks.bodies import body_of, headers_of
from everstep.coordinator.webhooks.facts import Webhook
from everstep.coordinator.webhooks.triggers import alert_deliveries, deliveries_of, is_wanted, log_delivery, sentence
from everstep.wire.tokens import ALL, USER, WORKER, Token
from everstep.wire.webhooks import SLACK, TRIGGERS

SPEC = wire.ExperimentSpec(request="r", searcher={"name": "single"})
RUNNING = Experiment(
    number=3, request="r", name="mnist", description="", labels=("a",), notes="", state=wire.ACTIVE, reason="",
    spec=SPEC, kept=wire.CheckpointsKept(), created_at=1.0, started_at=10.0, owner="alice",
)  # fmt: skip
ENDED = replace(RUNNING, state=wire.COMPLETED, reason="all trials are over", ended_at=52.0)
TRIAL = Trial(experiment=3, number=2, trial_id=7, bracket=0, hparams={}, seed=0, created_at=0.0, reason="runs")
ALL_EVENTS = Webhook(number=1, request="x", name="all", address="", triggers=TRIGGERS, owner="alice")


def told(webhooks, before, after, *trials):
    return deliveries_of(webhooks, before, after, trials, now=100.5)


@pytest.mark.parametrize(
    ("before", "after", "trigger"),
    [
        (wire.ACTIVE, wire.COMPLETED, "experiment-completed"),
        (wire.STOPPING_ERROR, wire.ERROR, "experiment-failed"),
        (wire.STOPPING_CANCELED, wire.CANCELED, "experiment-canceled"),
        (wire.ACTIVE, wire.PAUSED, "experiment-paused"),
    ],
)
def test_each_change_of_state_calls_those_that_ask_for_it(before, after, trigger):
    only = [replace(ALL_EVENTS, number=number, triggers=(each,)) for number, each in enumerate(TRIGGERS)]
    (made,) = told(only, replace(RUNNING, state=before), replace(RUNNING, state=after))
    assert TRIGGERS[made.webhook] == trigger
    assert made.event["event_type"] == "EXPERIMENT_STATE_CHANGE" and made.event["condition"] == {"state": after}


@pytest.mark.parametrize(
    ("state", "trigger"),
    [(wire.COMPLETED, "trial-completed"), (wire.ERROR, "trial-failed"), (wire.CANCELED, "trial-canceled")],
)
def test_each_end_of_a_trial_calls_those_that_ask_for_it(state, trigger):
    only = [replace(ALL_EVENTS, number=number, triggers=(each,)) for number, each in enumerate(TRIGGERS)]
    ended = replace(TRIAL, state=state, reason="why")
    (made,) = told(only, RUNNING, RUNNING, (TRIAL, ended), (None, TRIAL))
    assert TRIGGERS[made.webhook] == trigger
    assert (
        made.event["event_data"]["trial"] | {"id": 7, "number": 2, "state": state, "reason": "why"}
        == (made.event["event_data"]["trial"])
    )


def test_what_does_not_change_calls_nobody():
    assert told([ALL_EVENTS], ENDED, replace(ENDED, is_archived=True)) == []
    assert told([ALL_EVENTS], replace(RUNNING, state=wire.PAUSED), RUNNING) == []
    over = replace(TRIAL, state=wire.ERROR)
    assert told([ALL_EVENTS], RUNNING, RUNNING, (over, over)) == []


def test_whose_experiments_call_a_webhook():
    def used(**given):
        return replace(RUNNING, spec=replace(SPEC, webhooks=wire.WebhooksUsed(**given)))

    bob = replace(ALL_EVENTS, owner="bob")
    on_request = replace(ALL_EVENTS, is_on_request=True)
    assert is_wanted(ALL_EVENTS, RUNNING)
    assert not is_wanted(bob, RUNNING)
    assert not is_wanted(bob, used(names=["all"])), "naming another person's webhook is not enough"
    assert is_wanted(replace(bob, is_for_everyone=True), RUNNING)
    assert not is_wanted(on_request, RUNNING)
    assert is_wanted(on_request, used(names=["all"]))
    assert not is_wanted(ALL_EVENTS, used(exclude=True))
    assert is_wanted(ALL_EVENTS, used(exclude=True, names=["all"]))
    assert is_wanted(replace(bob, experiment=3), used(exclude=True))
    assert not is_wanted(replace(ALL_EVENTS, experiment=4), RUNNING)


def test_an_event_has_all_that_a_receiver_needs_and_its_id_is_that_of_its_delivery():
    (made,) = told([ALL_EVENTS], RUNNING, ENDED)
    experiment = made.event["event_data"]["experiment"]
    assert (made.event["event_id"], made.event["timestamp"]) == (made.uuid, 100)
    assert {name: experiment[name] for name in ("id", "name", "state", "owner", "duration")} == {
        "id": 3, "name": "mnist", "state": "COMPLETED", "owner": "alice", "duration": 42,
    }  # fmt: skip
    assert told([ALL_EVENTS], RUNNING, ENDED)[0].uuid != made.uuid


def test_an_alert_or_line_that_is_told_twice_is_one_delivery_and_two_are_two():
    alert = wire.Alert(request="a", title="t")
    (one,) = alert_deliveries([ALL_EVENTS], RUNNING, TRIAL, alert, 1.0)
    (again,) = alert_deliveries([ALL_EVENTS], RUNNING, TRIAL, alert, 2.0)
    (other,) = alert_deliveries([ALL_EVENTS], RUNNING, TRIAL, replace(alert, request="b"), 1.0)
    assert one.uuid == again.uuid != other.uuid
    line = {"node": "n", "worker": "w0", "line": "x"}
    lines = [log_delivery(ALL_EVENTS, RUNNING, TRIAL, pattern, line, 1.0).uuid for pattern in ("x", "x", "y")]
    assert lines[0] == lines[1] != lines[2]
    elsewhere = log_delivery(ALL_EVENTS, RUNNING, replace(TRIAL, number=3), "x", line, 1.0)
    assert elsewhere.uuid != lines[0]


def test_the_signature_is_what_a_receiver_computes():
    (made,) = told([ALL_EVENTS], RUNNING, ENDED)
    body = body_of("default", made.event)
    headers = headers_of(made.uuid, body, "s3cret", 1234.9)
    signed = b"1234," + body
    assert headers["X-Everstep-Timestamp"] == "1234"
    assert headers["X-Everstep-Signature"] == hmac.new(b"s3cret", signed, hashlib.sha256).hexdigest()
    assert headers["X-Everstep-Delivery"] == made.uuid
    assert json.loads(body) == made.event and body == body_of("default", made.event)


def test_slack_gets_a_text_in_which_nothing_is_a_link_or_a_mention():
    hostile = wire.Alert(request="a", title="<!channel> & <https://evil.example|click>", level="error")
    (made,) = alert_deliveries([ALL_EVENTS], RUNNING, TRIAL, hostile, 1.0)
    (text,) = json.loads(body_of(SLACK, made.event)).values()
    assert "<" not in text and ">" not in text
    assert text.startswith("trial 2 of experiment 3 mnist: error: &lt;!channel&gt; &amp; ")
    assert len(json.loads(body_of(SLACK, {**made.event, "webhook": "x"}))["text"]) < 4000


def test_each_event_has_a_sentence():
    (made,) = told([ALL_EVENTS], RUNNING, ENDED)
    assert sentence(made.event) == "experiment 3 mnist: COMPLETED (all trials are over)"
    (ended,) = told([ALL_EVENTS], RUNNING, RUNNING, (TRIAL, replace(TRIAL, state=wire.ERROR, reason="exit code 1")))
    assert sentence(ended.event) == "trial 2 of experiment 3 mnist: ERROR (exit code 1)"


def test_who_may_change_a_webhook():
    alice, bob = (Token(role=USER, word="x", person=each) for each in ("alice", "bob"))
    root, trial = Token(role=ALL, word="x"), Token(role=WORKER, word="x", trial="e3-t2")
    shared = replace(ALL_EVENTS, is_for_everyone=True)
    anyones = replace(ALL_EVENTS, owner="")
    rights = [[may_change(each, who) for who in (root, alice, bob, trial)] for each in (ALL_EVENTS, shared, anyones)]
    assert rights == [[True, True, False, False], [True, False, False, False], [True, True, True, False]]
