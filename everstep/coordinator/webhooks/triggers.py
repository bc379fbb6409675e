"""Which webhooks hear of an event, and what they get. Pure.

An event's ID is its delivery's: a delivery that is repeated has the same. Alerts and lines of logs may come twice, so
their IDs are made of what they are about."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from everstep import wire
from everstep.coordinator.experiments.facts import Experiment, Trial
from everstep.coordinator.webhooks.facts import Delivery, Webhook
from everstep.wire.webhooks import ALERT

EXPERIMENT_EVENT, TRIAL_EVENT = "EXPERIMENT_STATE_CHANGE", "TRIAL_STATE_CHANGE"
LOG_EVENT, ALERT_EVENT, TEST_EVENT = "TASK_LOG", "CUSTOM", "TEST"

_EXPERIMENT_TRIGGERS = {
    wire.COMPLETED: "experiment-completed",
    wire.ERROR: "experiment-failed",
    wire.CANCELED: "experiment-canceled",
    wire.PAUSED: "experiment-paused",
}
_TRIAL_TRIGGERS = {
    wire.COMPLETED: "trial-completed",
    wire.ERROR: "trial-failed",
    wire.CANCELED: "trial-canceled",
}
_NAMESPACE = uuid.UUID("6f1c9a52-6d1b-4c1e-9c1f-6b7f0f1f7a55")


def is_wanted(webhook: Webhook, facts: Experiment) -> bool:
    """Whether the webhook hears of this experiment."""
    if webhook.experiment:
        return webhook.experiment == facts.number
    if not (webhook.is_for_everyone or webhook.owner == facts.owner):
        return False
    used = facts.spec.webhooks
    return webhook.name in used.names or not (webhook.is_on_request or used.exclude)


def listening(webhooks: Iterable[Webhook], facts: Experiment, trigger: str) -> list[Webhook]:
    return [each for each in webhooks if trigger in each.triggers and is_wanted(each, facts)]


def deliveries_of(
    webhooks: Sequence[Webhook],
    before: Experiment,
    after: Experiment,
    trials: Iterable[tuple[Trial | None, Trial]],
    now: float,
) -> list[Delivery]:
    """What a change of an experiment and its trials (before and after) leads to. A new experiment that begins paused
    was not paused by anyone."""
    if not webhooks:
        return []
    made: list[Delivery] = []
    for was, trial in trials:
        trigger = _TRIAL_TRIGGERS.get(trial.state)
        if trigger is not None and (was is None or was.state != trial.state):
            for each in listening(webhooks, after, trigger):
                made.append(_delivery(each, TRIAL_EVENT, {"state": trial.state}, _told(after, trial), now))
    trigger = _EXPERIMENT_TRIGGERS.get(after.state)
    if trigger is not None and before.state != after.state:
        for each in listening(webhooks, after, trigger):
            made.append(_delivery(each, EXPERIMENT_EVENT, {"state": after.state}, _told(after), now))
    return made


def alert_deliveries(
    webhooks: Iterable[Webhook], facts: Experiment, trial: Trial, alert: wire.Alert, now: float
) -> list[Delivery]:
    data = {"title": alert.title, "description": alert.description, "level": alert.level}
    return [
        _delivery(
            each,
            ALERT_EVENT,
            {"level": alert.level},
            {**_told(facts, trial), "data": data},
            now,
            about=f"alert {trial.job} {alert.request}",
        )
        for each in listening(webhooks, facts, ALERT)
    ]


def log_delivery(
    webhook: Webhook, facts: Experiment, trial: Trial, pattern: str, line: Mapping[str, Any], now: float
) -> Delivery:
    """One for each trial and pattern: the first line that matches."""
    about = f"log {trial.job} {pattern}"
    data = {**_told(facts, trial), "task_log": dict(line)}
    return _delivery(webhook, LOG_EVENT, {"regex": pattern}, data, now, about=about)


def test_event(webhook: Webhook, now: float) -> Delivery:
    return _delivery(webhook, TEST_EVENT, {}, {}, now)


def _delivery(
    webhook: Webhook, kind: str, condition: Mapping[str, Any], data: Mapping[str, Any], now: float, *, about: str = ""
) -> Delivery:
    found = uuid.uuid5(_NAMESPACE, f"{webhook.number} {webhook.request} {about}") if about else uuid.uuid4()
    event = {
        "event_id": str(found),
        "event_type": kind,
        "timestamp": int(now),
        "webhook": webhook.name,
        "condition": dict(condition),
        "event_data": dict(data),
    }
    return Delivery(uuid=str(found), webhook=webhook.number, event=event, created_at=now, next_at=now)


def _told(facts: Experiment, trial: Trial | None = None) -> dict[str, Any]:
    began, ended = facts.started_at, facts.ended_at
    told: dict[str, Any] = {
        "experiment": {
            "id": facts.number,
            "name": facts.name,
            "state": facts.state,
            "reason": facts.reason,
            "owner": facts.owner,
            "labels": list(facts.labels),
            "duration": int(ended - began) if began is not None and ended is not None else None,
            "resource_pool": facts.scheduling.pool,
            "slots_per_trial": facts.spec.max_slots,
            "best": facts.summary.get("best"),
        }
    }
    if trial is not None:
        told["trial"] = {
            "id": trial.trial_id,
            "number": trial.number,
            "job": trial.job,
            "state": trial.state,
            "reason": trial.reason,
            "length": trial.length,
            "latest": trial.latest,
            "best": trial.best,
            "restarts": trial.num_restarts,
        }
    return told


def sentence(event: Mapping[str, Any]) -> str:
    """An event for people: one line."""
    data = event["event_data"]
    experiment, trial = data.get("experiment", {}), data.get("trial", {})
    whole = f"experiment {experiment.get('id')} {experiment.get('name')}".rstrip()
    one = f"trial {trial.get('number')} of {whole}"
    kind = event["event_type"]
    if kind == EXPERIMENT_EVENT:
        return _with_reason(f"{whole}: {experiment['state']}", experiment["reason"])
    if kind == TRIAL_EVENT:
        return _with_reason(f"{one}: {trial['state']}", trial["reason"])
    if kind == LOG_EVENT:
        return f"{one}: its log matches {event['condition']['regex']}: {data['task_log']['line']}"
    if kind == ALERT_EVENT:
        told = data["data"]
        return f"{one}: {told['level']}: {told['title']}" + (f": {told['description']}" if told["description"] else "")
    return f"a test of the webhook {event['webhook']}"


def _with_reason(text: str, reason: str) -> str:
    return f"{text} ({reason})" if reason else text
