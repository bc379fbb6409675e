"""Messages about experiments: create one, look at it and its trials, change it; and its search, for programs.

An experiment is a search over trials. A trial is an ordinary job, whose ID is `trial_job(experiment, number)`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any

from everstep.wire.bounds import MAX_NAME, Amount, Bounds, Count, Name, OneOf, Positive
from everstep.wire.encoding import to_json
from everstep.wire.jobs import MAX_CONFIG_BYTES
from everstep.wire.metrics import MAX_DEPTH, Value, value_problems
from everstep.wire.policy import Policy, policy_problems
from everstep.wire.pool import DEFAULT_POOL, DEFAULT_PRIORITY, LEAST_WEIGHT, MOST_PRIORITY, MOST_WEIGHT

PREEMPTION_TIMEOUT_S = 600.0

MOST_EXPERIMENTS = 1000  # in one answer
MOST_TRIALS = 1000  # in one answer
MOST_SEARCH_EVENTS = 1000  # in one answer
MOST_OPERATIONS = 10_000  # of a search program, in one call

MOST_SECRETS = 100  # of an experiment
MOST_LOG_POLICIES, LONGEST_PATTERN = 50, 1000
MOST_WEBHOOK_NAMES = 50  # in the file of an experiment

MOST_STATE = 700_000  # characters of a search program's state: with its operations, less than a body may have

ACTIVE, PAUSED = "ACTIVE", "PAUSED"
STOPPING_COMPLETED, STOPPING_CANCELED, STOPPING_KILLED, STOPPING_ERROR = (
    *("STOPPING_COMPLETED", "STOPPING_CANCELED", "STOPPING_KILLED", "STOPPING_ERROR"),
)
LIVE = (ACTIVE, PAUSED, STOPPING_COMPLETED, STOPPING_CANCELED, STOPPING_KILLED, STOPPING_ERROR)
COMPLETED, CANCELED, ERROR = "COMPLETED", "CANCELED", "ERROR"
ENDED = (COMPLETED, CANCELED, ERROR)

# Of a trial; besides these, one that is over is COMPLETED, CANCELED or ERROR.
QUEUED = "QUEUED"  # wants to train, and has no slot
RUNNING = "RUNNING"  # has a slot
WAITING = "WAITING"  # has reached its target, and waits for the search to decide

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

EXCLUDE_NODE, CANCEL_RETRIES = "exclude_node", "cancel_retries"
LOG_ACTIONS = ("", EXCLUDE_NODE, CANCEL_RETRIES)  # "": the match is only noted

LogPattern = Annotated[str, Bounds(max_length=LONGEST_PATTERN)]

ACTIONS = ("pause", "activate", "cancel", "kill", "archive", "unarchive", "delete")


def trial_job(experiment: int, number: int) -> str:
    """The job of a trial: e12-t7."""
    return f"e{experiment}-t{number}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointsKept:
    """How many checkpoints stay when an experiment is over: the union of these."""

    experiment_best: Count = 0
    trial_best: Count = 1
    trial_latest: Count = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Scheduling:
    """How an experiment shares its pool with others."""

    pool: Name = DEFAULT_POOL
    priority: Annotated[int, Bounds(ge=1, le=MOST_PRIORITY)] = DEFAULT_PRIORITY  # smaller ones first, strictly
    weight: Annotated[float, Bounds(ge=LEAST_WEIGHT, le=MOST_WEIGHT)] = 1.0  # among those of equal priority
    max_slots: Count = 0  # of all its trials together; 0: as many as help
    preemption_timeout_s: Amount = (
        PREEMPTION_TIMEOUT_S  # a trial that must leave and does not is killed after this time
    )
    time_limit_s: Amount = 0.0  # of the experiment, from its first trial's start, without pauses; 0: none


@dataclass(frozen=True, kw_only=True, slots=True)
class LogPolicy:
    """What to do once a line of a trial's log matches. A policy without a pattern is off."""

    pattern: LogPattern = ""  # a regular expression, searched in each line
    name: Name = ""
    action: Annotated[str, OneOf(*LOG_ACTIONS)] = ""

    @property
    def title(self) -> str:
        return self.name or self.pattern


@dataclass(frozen=True, kw_only=True, slots=True)
class LogMatch:
    """The first line that matched a policy, by trial and node."""

    policy: str  # its name, or its pattern
    action: str
    node: str
    line: str
    problem: str = ""  # why the pattern is no longer matched


@dataclass(frozen=True, kw_only=True, slots=True)
class WebhooksUsed:
    """Which webhooks an experiment calls besides those that are for all experiments of its owner."""

    names: list[Name] = field(default_factory=list)
    exclude: bool = False  # only those in `names`


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentSpec:
    """An experiment to create. A request that is repeated returns the experiment it created."""

    request: Name
    name: Name = ""
    description: str = ""
    labels: list[Name] = field(default_factory=list)
    notes: str = ""
    searcher: dict[str, Any]  # as in the file: `everstep.search` reads it
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    seed: Count = 0
    num_micro_batches: Positive = 1  # slots_per_trial: parts of a batch, however many slots serve it
    min_slots: Positive = 1  # of a trial: it trains on at least this many …
    max_slots: Positive = 1  # … and at most this many
    scheduling: Scheduling = field(default_factory=Scheduling)
    max_restarts: Count = 5  # of each trial
    policy: Policy = field(default_factory=Policy)  # of each trial's job; the pool sets how many workers it has
    kept: CheckpointsKept = field(default_factory=CheckpointsKept)
    order: dict[str, Any] = field(default_factory=dict)  # what a node needs to run a trial: a NodeOrder without a job
    config: dict[str, Any] = field(default_factory=dict)  # the whole file, for scripts and for people; no secrets
    written: str = ""  # the file as its author wrote it
    source_trial_id: Count = 0  # warm start: its newest checkpoint; 0: none
    source_checkpoint_uuid: Name = ""
    is_paused: bool = False
    forked_from: Count = 0  # an experiment; 0: none
    verifies: Count = 0  # the ID of a trial that this experiment trains again; 0: none
    trial_seed: Count | None = None  # of every trial; None: as the search draws it
    log_policies: list[LogPolicy] = field(default_factory=list)
    webhooks: WebhooksUsed = field(default_factory=WebhooksUsed)

    def problems(self) -> Iterator[str]:
        for part in (self.searcher, self.hyperparameters, self.order, self.config):
            yield from value_problems(part, MAX_DEPTH + 4)
        yield from policy_problems(self.policy)
        if self.min_slots > self.max_slots:
            yield f"min_slots={self.min_slots} is more than max_slots={self.max_slots}"
        if (num_bytes := len(to_json(self.config))) > MAX_CONFIG_BYTES:
            yield f"the configuration has {num_bytes} bytes, more than {MAX_CONFIG_BYTES}"
        if len(self.log_policies) > MOST_LOG_POLICIES:
            yield f"{len(self.log_policies)} log_policies are more than {MOST_LOG_POLICIES}"
        if len(self.webhooks.names) > MOST_WEBHOOK_NAMES:
            yield f"{len(self.webhooks.names)} webhooks are more than {MOST_WEBHOOK_NAMES}"


def secret_names(order: Mapping[str, Any]) -> list[str]:
    """The environment variables that are secrets."""
    names = order.get("secrets")
    return [each for each in names if isinstance(each, str)] if isinstance(names, list | tuple) else []


@dataclass(frozen=True, kw_only=True, slots=True)
class NewExperiment(ExperimentSpec):
    """With the values of its secrets, which are kept apart, and sent only to the nodes that run its trials."""

    secrets: dict[Name, str] = field(default_factory=dict, repr=False)  # values of environment variables

    def problems(self) -> Iterator[str]:
        yield from ExperimentSpec.problems(self)
        if len(self.secrets) > MOST_SECRETS:
            yield f"{len(self.secrets)} secrets are more than {MOST_SECRETS}"
        for name in self.secrets:
            if not _VARIABLE.fullmatch(name):
                yield f"the secret {name[:64]!r} is not named like an environment variable"
            elif name not in secret_names(self.order):
                yield f"the secret {name} is not in the order's list"

    @property
    def spec(self) -> ExperimentSpec:
        return ExperimentSpec(**{each.name: getattr(self, each.name) for each in fields(ExperimentSpec)})


@dataclass(frozen=True, kw_only=True, slots=True)
class BestResult:
    trial: int
    metric: float
    length: int
    checkpoint: str = ""  # its uuid, if one was saved there


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentView:
    experiment: int
    name: str
    state: str
    reason: str  # the last change's sentence
    searcher: str  # its name
    metric: str
    smaller_is_better: bool
    unit: str  # of lengths: batches, epochs, records, or a metric that counts time
    progress: float  # from 0 to 1
    num_trials: dict[str, int]  # by state
    num_slots: int  # that its trials hold now
    best: BestResult | None
    created_at: float
    started_at: float | None
    ended_at: float | None
    description: str = ""
    labels: list[str] = field(default_factory=list)
    notes: str = ""
    is_archived: bool = False
    forked_from: int = 0
    code: str = ""  # SHA-256 of its tarball
    last_event: int = 0  # of its search
    kept: CheckpointsKept = field(default_factory=CheckpointsKept)
    owner: str = ""  # the person who created it; "": a token without a name
    created_by: str = ""  # the job of the trial whose script created it
    scheduling: Scheduling = field(default_factory=Scheduling)
    ran_s: float = 0.0  # of its time limit: from its first trial's start, without pauses


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentList:
    experiments: list[ExperimentView]
    num_found: int
    values: dict[str, list[Any]] = field(default_factory=dict)  # of the columns asked for, one for each experiment


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentConfig:
    config: dict[str, Any]
    written: str
    spec: ExperimentSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialView:
    experiment: int
    trial: int  # its number in the experiment, from 1
    trial_id: int  # unique at this coordinator
    job: str
    state: str
    reason: str
    hparams: dict[str, Any]
    seed: int
    bracket: int
    target: int | None  # the length to train to; None: to the end of the script
    length: int  # of the last result
    latest: Value | None  # the metric of the last result …
    best: Value | None  # … and of the best one …
    best_length: int  # … and its length
    num_restarts: int
    num_slots: int  # that it holds now
    best_checkpoint: str = ""  # uuids
    latest_checkpoint: str = ""
    batches: int = 0
    created_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    kind: str = ""  # of the machine that it was trained on
    log_matches: list[LogMatch] = field(default_factory=list)  # of its experiment's log policies


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialList:
    trials: list[TrialView]
    num_found: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentAction:
    """Pause: give back all slots, keep all states. Cancel: let trials save first. Kill: do not. Repeated actions
    change nothing."""

    action: Annotated[str, OneOf(*ACTIONS)]
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentFork:
    """A new experiment with the code of another one. A request that is repeated returns the experiment it created."""

    request: Annotated[str, Bounds(min_length=1, max_length=MAX_NAME)]
    written: str = ""  # its file; "": as it is
    is_continued: bool = False  # its trials start with the weights of the best trial of that one, which must be over
    is_paused: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentChange:
    """What people write on an experiment, and how it shares its pool from the next decision on. None: leave it as it
    is."""

    name: Name | None = None
    description: str | None = None
    notes: str | None = None
    labels: list[Name] | None = None
    kept: CheckpointsKept | None = None
    priority: Annotated[int, Bounds(ge=1, le=MOST_PRIORITY)] | None = None
    weight: Annotated[float, Bounds(ge=LEAST_WEIGHT, le=MOST_WEIGHT)] | None = None
    max_slots: Count | None = None
    time_limit_s: Amount | None = None
    pool: Annotated[str, Bounds(min_length=1, max_length=MAX_NAME)] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchEventView:
    """An event of the search, and the operations that followed."""

    number: int  # from 1
    time: float
    event: dict[str, Any]  # as `everstep.search.events.to_plain` writes it; {"kind": "began"} for the first
    operations: list[dict[str, Any]]
    digest: str = ""  # of the weights, if the event is a validation that had one


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchEvents:
    events: list[SearchEventView]
    is_over: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchOperations:
    """From a program that searches: the operations after all events up to `after_event`, applied once. `state` is kept
    with them, for the program to continue from."""

    after_event: Count
    operations: list[dict[str, Any]]  # at most MOST_OPERATIONS
    state: Annotated[str, Bounds(max_length=MOST_STATE)] = ""  # as the program likes

    def problems(self) -> Iterator[str]:
        if len(self.operations) > MOST_OPERATIONS:
            yield f"{len(self.operations)} operations in one call are more than {MOST_OPERATIONS}"
        for number, operation in enumerate(self.operations, 1):
            for problem in value_problems(operation, MAX_DEPTH + 4):
                yield f"operation {number}, {str(operation.get('kind'))[:MAX_NAME]}: {problem}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchState:
    """What a program needs in order to continue its search."""

    after_event: int  # up to here, operations were applied
    state: str
    last_event: int
