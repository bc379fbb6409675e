"""Messages about webhooks: create one, look at its deliveries, test it; and the alerts of scripts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from everstep.wire.bounds import MAX_NAME, Bounds, Count, Name, OneOf
from everstep.wire.experiments import LONGEST_PATTERN, LogPattern

DEFAULT_KIND, SLACK = "default", "slack"
WEBHOOK_KINDS = (DEFAULT_KIND, SLACK)

ALERT = "alert"
TRIGGERS = (
    *("experiment-completed", "experiment-failed", "experiment-canceled", "experiment-paused"),
    *("trial-completed", "trial-failed", "trial-canceled", ALERT),
)
USUAL_TRIGGERS = ("experiment-completed", "experiment-failed", ALERT)

ALERT_LEVELS = ("debug", "info", "warning", "error", "critical")

MOST_URL = 2000
MOST_PATTERNS = 20  # of a webhook
MOST_TITLE, MOST_DESCRIPTION = 256, 4000

WAITING_TO_BE_SENT, DELIVERED, GIVEN_UP = "waiting", "delivered", "given up"

Title = Annotated[str, Bounds(min_length=1, max_length=MOST_TITLE)]


@dataclass(frozen=True, kw_only=True, slots=True)
class NewWebhook:
    """A webhook to create. A request that is repeated returns the webhook it created."""

    request: Annotated[str, Bounds(min_length=1, max_length=MAX_NAME)]
    name: Annotated[str, Bounds(min_length=1, max_length=MAX_NAME)]
    url: Annotated[str, Bounds(max_length=MOST_URL)] = field(repr=False)  # it may hold a token
    kind: Annotated[str, OneOf(*WEBHOOK_KINDS)] = DEFAULT_KIND
    triggers: list[Annotated[str, OneOf(*TRIGGERS)]] = field(default_factory=list)
    log_patterns: list[LogPattern] = field(default_factory=list)  # regular expressions, each searched in each line
    experiment: Count = 0  # the only one that it is for; 0: all of its owner's
    is_for_everyone: bool = False  # for the experiments of all people; only administrators
    is_on_request: bool = False  # only for experiments whose file names it

    def problems(self) -> Iterator[str]:
        if not self.triggers and not self.log_patterns:
            yield "neither triggers nor log_patterns: it would never be called"
        if len(self.log_patterns) > MOST_PATTERNS:
            yield f"{len(self.log_patterns)} log_patterns are more than {MOST_PATTERNS}"
        if not all(self.log_patterns):
            yield f"a log pattern is empty; give a regular expression of up to {LONGEST_PATTERN} characters"
        if self.experiment and (self.is_for_everyone or self.is_on_request):
            yield "a webhook for one experiment is neither for everyone nor on request"


@dataclass(frozen=True, kw_only=True, slots=True)
class WebhookView:
    """Without its secret, and without the part of its URL that may hold a token."""

    webhook: int
    name: str
    address: str  # such as https://hooks.example.com/…
    kind: str
    triggers: list[str]
    log_patterns: list[str]
    experiment: int
    owner: str
    is_for_everyone: bool
    is_on_request: bool
    created_at: float
    num_waiting: int = 0  # deliveries
    num_given_up: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class CreatedWebhook:
    webhook: WebhookView
    secret: str = field(repr=False)  # signs its deliveries; shown only here


@dataclass(frozen=True, kw_only=True, slots=True)
class WebhookList:
    webhooks: list[WebhookView]
    hosts: list[str]  # that webhooks may call


@dataclass(frozen=True, kw_only=True, slots=True)
class WebhookAnswer:
    """What a receiver answered to a test."""

    delivery: str
    is_delivered: bool
    status: int  # of the answer; 0: there was none
    reason: str
    took_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryView:
    delivery: str  # its ID, the same at each attempt
    webhook: int
    event: str  # a sentence
    state: Name
    num_attempts: int
    status: int  # of the last answer
    reason: str  # of the last failure
    created_at: float
    next_at: float  # of the next attempt
    ended_at: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryList:
    deliveries: list[DeliveryView]
    num_found: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """From a trial's script. A repeated alert with the same request changes nothing."""

    request: Annotated[str, Bounds(min_length=1, max_length=MAX_NAME)]
    title: Title
    description: Annotated[str, Bounds(max_length=MOST_DESCRIPTION)] = ""
    level: Annotated[str, OneOf(*ALERT_LEVELS)] = "info"


@dataclass(frozen=True, kw_only=True, slots=True)
class AlertKept:
    num_webhooks: int  # that it goes to
