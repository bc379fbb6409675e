# mypy: disable-error-code="empty-body"
"""Each HTTP call to the coordinator, declared once: a method of `Operations` that says what goes in and what comes out.

Parameters that the path names go there, those with a default go into the query, and the one that remains is the body;
a GET has none: there, the fields of that message go into the query.
The client inherits these methods. Routing, roles, validation, OpenAPI and the table in docs/protocol.md are made from
them. The coordinator answers with the function of the same name in `everstep.coordinator.edge.handlers` or
`experiment_handlers`, or else with the method of `everstep.coordinator.job.CoordinatedJob`.

To add a call, add a method here and its handler there."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints

from everstep import wire
from everstep.wire.bounds import MAX_INT, Bounds, Count, Name, PathName, Positive
from everstep.wire.logs import SearchText
from everstep.wire.metrics import MOST_COLUMNS, MOST_REPORTS, MOST_SERIES
from everstep.wire.page_bounds import (
    MOST_CURVE_POINTS,
    MOST_DAYS,
    MOST_JOBS,
    MOST_MARKS,
    ColumnNames,
    FilePath,
    JobNames,
    TrialNumbers,
)
from everstep.wire.tokens import READ_ONLY, USER, WORKER, WORKER_OR_USER

_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True, eq=False)
class Operation:
    name: str  # of the client's method and of the handler
    method: str
    path: str
    role: str
    summary: str
    parameters: tuple[str, ...]
    signature: Callable[..., Any]

    @functools.cached_property
    def in_path(self) -> tuple[str, ...]:
        """`job`, which a client knows by itself, and parameters."""
        return tuple(re.findall(r"\{(\w+)\}", self.path))

    @functools.cached_property
    def in_query(self) -> Mapping[str, Any]:
        """Names and defaults."""
        if self.query is not None:
            return {each.name: each.default for each in fields(get_type_hints(self.signature)[self.query])}
        return self._optional

    @functools.cached_property
    def _optional(self) -> Mapping[str, Any]:
        return {
            name: parameter.default
            for name, parameter in inspect.signature(self.signature).parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }

    @functools.cached_property
    def _message(self) -> str | None:
        rest = [name for name in self.parameters if name not in self.in_path and name not in self._optional]
        assert len(rest) <= 1, f"{self.name}: only one of {rest} can be the body"
        return rest[0] if rest else None

    @functools.cached_property
    def body(self) -> str | None:
        return None if self.method == "GET" else self._message

    @functools.cached_property
    def query(self) -> str | None:
        """The message whose fields are the query."""
        return self._message if self.method == "GET" else None

    @functools.cached_property
    def types(self) -> Mapping[str, Any]:
        """Of the parameters, and of the reply as `return`. Evaluated late: workers use few of them."""
        types = get_type_hints(self.signature, include_extras=True)
        return types if self.query is None else types | get_type_hints(types[self.query], include_extras=True)

    @functools.cached_property
    def request(self) -> Any:
        return self.types[self.body] if self.body else None

    @functools.cached_property
    def reply(self) -> Any:
        """A message, `bytes` of a file, `str` for a text, `dict` for a document, or NoneType for an empty object."""
        return self.types["return"]


def operation(method: str, path: str, role: str) -> Callable[[_F], _F]:
    def declare(signature: _F) -> _F:
        code = signature.__code__
        parameters = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
        declared = Operation(
            name=signature.__name__,
            method=method,
            path=path,
            role=role,
            summary=(signature.__doc__ or "").partition("\n")[0],
            parameters=parameters,
            signature=signature,
        )

        @functools.wraps(signature)
        def call(client: Operations, *values: Any, **named: Any) -> Any:
            signature(client, *values, **named)  # raises the usual TypeError if they do not fit
            return client.perform(declared, dict(zip(parameters, values, strict=False)) | named)

        call.operation = declared  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return declare


HEALTH = "/v1/health"
METRICS = "/metrics"  # where Prometheus looks
_JOB = "/v1/jobs/{job}"
_AGENT = f"{_JOB}/agents/{{agent}}"
_WORKER = f"{_JOB}/workers/{{worker}}"
_DATASET = f"{_JOB}/datasets/{{dataset}}"
_TRIAL = f"{_JOB}/trial"
_EXPERIMENTS = "/v1/experiments"
_EXPERIMENT = f"{_EXPERIMENTS}/{{experiment}}"
_POOL = "/v1/pools/{pool}"
_CHECKPOINT = "/v1/checkpoints/{uuid}"
_MODEL = "/v1/models/{model}"
_VERSION = f"{_MODEL}/versions/{{version}}"
_TEMPLATE = "/v1/templates/{template}"
_WEBHOOKS = "/v1/webhooks"
_WEBHOOK = f"{_WEBHOOKS}/{{webhook}}"
_MOST_ROWS = 1000  # of experiments, trials, events or checkpoints, in one answer
_Rows = Annotated[int, Bounds(ge=1, le=_MOST_ROWS)]


class Operations:
    """All there is to call. *Held*: answered as soon as something changes, or after about a second at the latest; after
    half a minute for the watch of a worker that an agent vouches for."""

    def perform(self, operation: Operation, values: Mapping[str, Any]) -> Any:
        raise NotImplementedError  # by the client

    @operation("GET", HEALTH, READ_ONLY)
    def check(self) -> wire.Health:
        """Check that the coordinator is up and accepts the token, and get its time."""

    @operation("GET", "/v1/openapi.json", READ_ONLY)
    def openapi(self) -> dict[str, Any]:
        """Get the whole protocol as OpenAPI 3.1, for tools; the tests check the service against it."""

    @operation("GET", METRICS, READ_ONLY)
    def prometheus(self) -> str:
        """Get numbers about pools, queues and the coordinator in Prometheus's text format."""

    @operation("GET", "/v1/code/{digest}", WORKER)
    def code(self, digest: PathName) -> bytes:
        """Node: get a submitted job's code as a tarball, by its SHA-256."""

    @operation("POST", "/v1/codes", READ_ONLY)
    def page_code(self, message: wire.PageCodeRequest) -> wire.PageCode:
        """Get a code that opens the page once. A browser's session cannot get one."""

    @operation("GET", "/v1/jobs", READ_ONLY)
    def jobs(
        self,
        start: Count = 0,
        limit: Annotated[int, Bounds(ge=1, le=MOST_JOBS)] = 100,
        sort: Name = "created_at",
        is_descending: bool = True,
        search: SearchText = "",
        state: Name = "",
    ) -> wire.JobList:
        """List the jobs that match `search` and have one of the comma-separated states, from position `start`."""

    @operation("GET", "/v1/compare", READ_ONLY)
    def compare(self, jobs: JobNames = "") -> wire.JobComparison:
        """Compare the configuration and the values of several jobs (comma-separated IDs)."""

    @operation("PUT", _JOB, USER)
    def create_job(self, spec: wire.JobSpec) -> wire.JobView:
        """Create the job, or return it unchanged if it exists."""

    @operation("GET", _JOB, READ_ONLY)
    def view(self, *, is_brief: bool = False) -> wire.JobView:
        """Get the job and its workers; `is_brief` omits the workers, for callers that poll."""

    @operation("GET", f"{_JOB}/about", READ_ONLY)
    def about(self) -> wire.JobAbout:
        """Get what the job was started with, and its newest checkpoints."""

    @operation("GET", f"{_JOB}/band", READ_ONLY)
    def band(self, after: Count = 0, limit: Annotated[int, Bounds(ge=1, le=MOST_MARKS)] = 1000) -> wire.Band:
        """Get what happened to the job's workers, mark by mark; `after` is the number of a mark."""

    @operation("POST", f"{_JOB}/stop", USER)
    def stop(self, message: wire.Stop) -> None:
        """Stop the job for this reason."""

    @operation("GET", f"{_JOB}/generations/{{number}}", READ_ONLY)
    def generation(self, number: Count) -> wire.GenerationView:
        """Get the members of a generation and their addresses."""

    @operation("POST", f"{_JOB}/workers", WORKER)
    def reserve(self, message: wire.ReserveWorker) -> wire.ReservedWorker:
        """Agent: reserve a worker ID; IDs are never reused."""

    @operation("POST", f"{_AGENT}/report", WORKER)
    def report(self, agent: PathName, message: wire.AgentReport) -> wire.AgentOrders:
        """Agent: report a node and its workers. Reply: which attempt to start or end, which workers to kill. Held."""

    @operation("POST", f"{_AGENT}/leave", WORKER)
    def agent_leaves(self, agent: PathName, message: wire.AgentLeave) -> None:
        """Agent: the node leaves cleanly, with all its workers."""

    @operation("POST", f"{_WORKER}/exited", WORKER)
    def exited(self, worker: PathName, message: wire.WorkerExit) -> None:
        """Agent: confirm that the process has ended, with its exit code and micro-batch."""

    @operation("POST", f"{_WORKER}/announce", WORKER)
    def announce(self, worker: PathName, message: wire.Announce) -> wire.Announced:
        """Worker: the process is up, is reachable here, and will form or join a generation."""

    @operation("POST", f"{_WORKER}/watch", WORKER)
    def watch(self, worker: PathName, message: wire.Watch) -> wire.Watched:
        """Worker: ask what changed; also a heartbeat if no agent vouches for the worker. Held."""

    @operation("POST", f"{_WORKER}/arrive", WORKER)
    def arrive(self, worker: PathName, message: wire.Arrive) -> wire.Arrived:
        """Worker: ready for the next generation. Held until it is formed."""

    @operation("POST", f"{_WORKER}/broken", WORKER)
    def broken(self, worker: PathName, message: wire.Broken) -> None:
        """Worker: a collective failed; closes the generation. `is_fatal` (members only) stops the job."""

    @operation("POST", f"{_WORKER}/settled", WORKER)
    def settled(self, worker: PathName, message: wire.Settled) -> None:
        """Worker: the worker holds the state of this generation."""

    @operation("POST", f"{_WORKER}/leave", WORKER)
    def leave(self, worker: PathName, message: wire.Leave) -> wire.Left:
        """Worker: ask to leave after the committed step. Held until the worker is released."""

    @operation("POST", f"{_WORKER}/lease", WORKER)
    def report_and_lease(self, worker: PathName, message: wire.LeaseRequest) -> wire.Leased:
        """Worker: report samples done, returned, and failed. Reply: new leases. Held while others hold all samples."""

    @operation("GET", f"{_JOB}/datasets", READ_ONLY)
    def datasets(self) -> wire.Datasets:
        """Get the progress of each dataset by epoch, and the failed shards."""

    @operation("PUT", _DATASET, WORKER)
    def register_dataset(self, dataset: PathName, spec: wire.DatasetSpec) -> wire.DatasetView:
        """Worker: register the dataset, or return it if it exists; 409 if it was registered with other numbers."""

    @operation("GET", f"{_DATASET}/checkpoint", READ_ONLY)
    def shard_checkpoint(self, dataset: PathName) -> wire.ShardCheckpoint:
        """Worker: get the samples done, to save with the model."""

    @operation("POST", f"{_DATASET}/restore", WORKER)
    def restore_shards(self, dataset: PathName, message: wire.RestoreShards) -> wire.DatasetView:
        """Worker: replace the record of samples done; all leases become void."""

    @operation("POST", f"{_WORKER}/metrics", WORKER)
    def report_metrics(self, worker: PathName, message: wire.MetricReports) -> wire.MetricsKept:
        """Worker: report metrics, durable before the reply; those of an older history do not replace newer ones."""

    @operation("POST", f"{_AGENT}/metrics", WORKER)
    def report_node_metrics(self, agent: PathName, message: wire.MetricReports) -> wire.MetricsKept:
        """Agent: report how busy the node and its workers are; no history fences these."""

    @operation("GET", f"{_JOB}/series", READ_ONLY)
    def series(
        self,
        after: Count = 0,
        limit: Annotated[int, Bounds(ge=1, le=MOST_SERIES)] = MOST_SERIES,
        *,
        is_own: bool = False,
    ) -> wire.SeriesList:
        """Get series of metrics after the one with number `after`; `is_own`: leave out system metrics."""

    @operation("GET", f"{_JOB}/series/{{series}}", READ_ONLY)
    def series_window(
        self,
        series: Count,
        *,
        start: Count = 0,
        stop: Count = MAX_INT,
        columns: Annotated[int, Bounds(ge=1, le=MOST_COLUMNS)] = 1000,
        is_full: bool = False,
    ) -> wire.SeriesWindow:
        """Get steps of a series, to draw in this many columns; `is_full`: all points; continue at `stop`."""

    @operation("GET", f"{_JOB}/reports", READ_ONLY)
    def reports(
        self,
        since: Annotated[int, Bounds(ge=-MOST_REPORTS, le=MAX_INT)] = 0,
        limit: Annotated[int, Bounds(ge=1, le=MOST_REPORTS)] = 100,
    ) -> wire.ReportsView:
        """Get what was reported besides numbers after `since` (a view's `last`); a negative `since` gets the newest."""

    @operation("POST", f"{_AGENT}/logs", WORKER)
    def send_logs(self, agent: PathName, message: wire.LogChunks) -> wire.LogsKept:
        """Agent: send chunks of what workers printed, kept before the reply. Reply: where to continue."""

    @operation("GET", f"{_JOB}/logs", READ_ONLY)
    def logs(self, request: wire.LogsRequest) -> wire.LogsView:
        """Get matching lines after `cursor` (`next`), held if none; with `tail`, those before it (`previous`)."""

    # --- experiments ------------------------------------------------------------------------------

    @operation("PUT", "/v1/code/{digest}", WORKER_OR_USER)
    def upload_code(self, digest: PathName, content: bytes) -> None:
        """Store the code of an experiment: a tarball, by its SHA-256."""

    @operation("POST", _EXPERIMENTS, WORKER_OR_USER)
    def create_experiment(self, new: wire.NewExperiment) -> wire.ExperimentView:
        """Create an experiment, or return it if this request created one before."""

    @operation("GET", _EXPERIMENTS, READ_ONLY)
    def experiments(
        self,
        start: Count = 0,
        limit: _Rows = 100,
        search: SearchText = "",
        state: Name = "",
        *,
        is_archived: bool = False,
        label: Name = "",
        owner: Name = "",
        sort: Name = "experiment",
        is_descending: bool = True,
        columns: ColumnNames = "",
    ) -> wire.ExperimentList:
        """List experiments. `columns`: metric:NAME and hp:NAME, with commas, of the best trial; also to sort by."""

    @operation("GET", "/v1/experiment-columns", READ_ONLY)
    def experiment_columns(self) -> wire.ExperimentColumns:
        """Get the columns of the list of experiments, and the labels and owners in it."""

    @operation("GET", _EXPERIMENT, READ_ONLY)
    def experiment(self, experiment: Positive) -> wire.ExperimentView:
        """Get an experiment."""

    @operation("GET", f"{_EXPERIMENT}/config", READ_ONLY)
    def experiment_config(self, experiment: Positive) -> wire.ExperimentConfig:
        """Get the configuration and the file that the experiment was created with."""

    @operation("POST", f"{_EXPERIMENT}/action", USER)
    def act(self, experiment: Positive, message: wire.ExperimentAction) -> wire.ExperimentView:
        """Pause, activate, cancel, kill, archive, unarchive, or delete the experiment."""

    @operation("POST", f"{_EXPERIMENT}/fork", USER)
    def fork(self, experiment: Positive, message: wire.ExperimentFork) -> wire.ExperimentView:
        """Create an experiment with the code and the file of another one, as it is or changed."""

    @operation("POST", f"{_EXPERIMENT}/change", USER)
    def change(self, experiment: Positive, message: wire.ExperimentChange) -> wire.ExperimentView:
        """Change what people write on an experiment, the checkpoints it keeps, or how it shares its pool."""

    @operation("GET", f"{_EXPERIMENT}/trials", READ_ONLY)
    def trials(
        self, experiment: Positive, *, start: Count = 0, limit: _Rows = 100, sort: Name = "trial"
    ) -> wire.TrialList:
        """List an experiment's trials; `sort`: trial, or metric for the best first."""

    @operation("GET", f"{_EXPERIMENT}/columns", READ_ONLY)
    def trial_columns(self, experiment: Positive) -> wire.TrialColumns:
        """Get all trials of an experiment as columns, with the hyperparameters that are searched."""

    @operation("GET", f"{_EXPERIMENT}/curves", READ_ONLY)
    def trial_curves(
        self,
        experiment: Positive,
        *,
        points: Annotated[int, Bounds(ge=1, le=MOST_CURVE_POINTS)] = 50_000,
        trials: TrialNumbers = "",
    ) -> wire.TrialCurves:
        """Get the results of all trials, or of these (numbers with commas); thinned to this many points."""

    @operation("GET", f"{_EXPERIMENT}/rungs", READ_ONLY)
    def rungs(self, experiment: Positive) -> wire.Rungs:
        """Get which trials were compared at which length, by which numbers, and which of them continued."""

    @operation("GET", f"{_EXPERIMENT}/use", READ_ONLY)
    def experiment_use(self, experiment: Positive) -> wire.ExperimentUse:
        """Get the slots that an experiment has held over time."""

    @operation("GET", f"{_EXPERIMENT}/files", READ_ONLY)
    def code_files(self, experiment: Positive) -> wire.CodeFileList:
        """List the files of an experiment's code."""

    @operation("GET", f"{_EXPERIMENT}/file", READ_ONLY)
    def code_text(self, experiment: Positive, *, name: FilePath = "") -> wire.CodeText:
        """Get the text of one of these files, or its beginning if it is long."""

    @operation("GET", f"{_EXPERIMENT}/trials/{{trial}}", READ_ONLY)
    def trial(self, experiment: Positive, trial: Positive) -> wire.TrialView:
        """Get a trial by its number."""

    @operation("GET", "/v1/trials/{trial_id}", READ_ONLY)
    def find_trial(self, trial_id: Positive) -> wire.TrialView:
        """Get a trial by its ID."""

    @operation("POST", f"{_EXPERIMENT}/trials/{{trial}}/kill", USER)
    def kill_trial(self, experiment: Positive, trial: Positive) -> wire.TrialView:
        """End a trial at once; the search continues without it."""

    @operation("GET", f"{_EXPERIMENT}/trials/{{trial}}/results", READ_ONLY)
    def trial_results(self, experiment: Positive, trial: Positive) -> wire.TrialResults:
        """Get all results of a trial, with the digests of its weights."""

    @operation("POST", f"{_EXPERIMENT}/trials/{{trial}}/verify", USER)
    def verify_trial(self, experiment: Positive, trial: Positive, message: wire.VerifyRequest) -> wire.ExperimentView:
        """Train a trial again, as a separate experiment that is not listed."""

    @operation("GET", f"{_EXPERIMENT}/events", READ_ONLY)
    def search_events(
        self, experiment: Positive, *, after: Count = 0, limit: _Rows = 100, is_held: bool = False
    ) -> wire.SearchEvents:
        """Get the events of the search after the one with number `after`; `is_held`: wait for one."""

    @operation("GET", f"{_EXPERIMENT}/search", WORKER_OR_USER)
    def search_state(self, experiment: Positive) -> wire.SearchState:
        """Search program: get the state that was stored with the last operations."""

    @operation("POST", f"{_EXPERIMENT}/search", WORKER_OR_USER)
    def search_operations(self, experiment: Positive, message: wire.SearchOperations) -> wire.SearchState:
        """Search program: apply operations once; a second post after the same event is ignored."""

    @operation("GET", f"{_EXPERIMENT}/checkpoints", READ_ONLY)
    def checkpoints(
        self, experiment: Positive, *, start: Count = 0, limit: _Rows = 100, sort: Name = "trial", trial: Count = 0
    ) -> wire.CheckpointList:
        """List an experiment's checkpoints, or one trial's; `sort`: trial, or metric for the best first."""

    @operation("GET", _CHECKPOINT, READ_ONLY)
    def checkpoint(self, uuid: PathName) -> wire.SavedCheckpoint:
        """Find a checkpoint of any job by its UUID."""

    @operation("GET", f"{_CHECKPOINT}/files", READ_ONLY)
    def checkpoint_files(self, uuid: PathName) -> wire.CheckpointFiles:
        """List the files of a checkpoint that the coordinator can reach."""

    @operation("POST", f"{_CHECKPOINT}/change", USER)
    def change_checkpoint(self, uuid: PathName, message: wire.CheckpointChange) -> wire.SavedCheckpoint:
        """Add or remove metadata of a checkpoint."""

    @operation("POST", f"{_CHECKPOINT}/remove", USER)
    def remove_files(self, uuid: PathName, message: wire.CheckpointRemoval) -> wire.SavedCheckpoint:
        """Remove files of a checkpoint by pattern; all files: delete it. One that is registered or in use is kept."""

    @operation("GET", f"{_JOB}/checkpoints/latest", READ_ONLY)
    def latest_checkpoint(self) -> wire.SavedCheckpoint:
        """Find the checkpoint that this job has reported last."""

    @operation("POST", f"{_JOB}/checkpoints", WORKER)
    def report_checkpoint(self, message: wire.CheckpointReport) -> None:
        """Worker: a checkpoint has become durable."""

    @operation("POST", f"{_TRIAL}/target", WORKER)
    def target(self, message: wire.TargetRequest) -> wire.TrialTarget:
        """Trial: ask how long to train, after the target that was seen. Held."""

    @operation("POST", f"{_TRIAL}/result", WORKER)
    def report_result(self, message: wire.TrialResult) -> wire.TrialKept:
        """Trial: report the searcher's metric, durable before the reply."""

    @operation("POST", f"{_TRIAL}/end", WORKER)
    def end_trial(self, message: wire.TrialEnd) -> None:
        """Trial: the script is done, or its hyperparameters are invalid."""

    @operation("POST", f"{_TRIAL}/alert", WORKER)
    def alert(self, message: wire.Alert) -> wire.AlertKept:
        """Trial: send an alert to the experiment's webhooks, durable before the reply."""

    # --- webhooks ---------------------------------------------------------------------------------

    @operation("POST", _WEBHOOKS, USER)
    def create_webhook(self, new: wire.NewWebhook) -> wire.CreatedWebhook:
        """Create a webhook, or return it if this request created one before."""

    @operation("GET", _WEBHOOKS, USER)
    def webhooks(self) -> wire.WebhookList:
        """List the webhooks that the caller may change, and the hosts that webhooks may call."""

    @operation("POST", f"{_WEBHOOK}/test", USER)
    def test_webhook(self, webhook: Positive) -> wire.WebhookAnswer:
        """Send a test to a webhook at once, and get the answer."""

    @operation("POST", f"{_WEBHOOK}/delete", USER)
    def delete_webhook(self, webhook: Positive) -> None:
        """Delete a webhook and its deliveries."""

    @operation("GET", f"{_WEBHOOK}/deliveries", USER)
    def deliveries(self, webhook: Positive, *, start: Count = 0, limit: _Rows = 100) -> wire.DeliveryList:
        """List the deliveries of a webhook, newest first, with what went wrong."""

    # --- models and templates ---------------------------------------------------------------------

    @operation("POST", "/v1/models", USER)
    def create_model(self, new: wire.NewModel) -> wire.ModelView:
        """Create a model, or return it if this request created one before."""

    @operation("GET", "/v1/models", READ_ONLY)
    def models(
        self,
        start: Count = 0,
        limit: _Rows = 100,
        search: SearchText = "",
        label: Name = "",
        sort: Name = "model",
        *,
        is_descending: bool = False,
        is_archived: bool = False,
    ) -> wire.ModelList:
        """List models; `search`: in name, description and labels; `is_archived`: also archived ones."""

    @operation("GET", "/v1/model-labels", READ_ONLY)
    def model_labels(self) -> wire.ModelLabels:
        """List the labels of all models."""

    @operation("GET", _MODEL, READ_ONLY)
    def model(self, model: PathName) -> wire.ModelView:
        """Get a model by its name or ID."""

    @operation("POST", f"{_MODEL}/change", USER)
    def change_model(self, model: PathName, message: wire.ModelChange) -> wire.ModelView:
        """Change what people write on a model; archive or unarchive it."""

    @operation("POST", f"{_MODEL}/delete", USER)
    def delete_model(self, model: PathName) -> None:
        """Delete a model with its versions; their checkpoints are then kept as the experiments say."""

    @operation("POST", f"{_MODEL}/versions", USER)
    def register_version(self, model: PathName, new: wire.NewVersion) -> wire.ModelVersionView:
        """Register a checkpoint, which is kept from then on, as the next version, or return the version that it is."""

    @operation("GET", f"{_MODEL}/versions", READ_ONLY)
    def model_versions(
        self, model: PathName, *, start: Count = 0, limit: _Rows = 100, is_descending: bool = False
    ) -> wire.ModelVersionList:
        """List the versions of a model with their checkpoints, by number."""

    @operation("GET", _VERSION, READ_ONLY)
    def model_version(self, model: PathName, version: Positive) -> wire.ModelVersionView:
        """Get a version of a model with its checkpoint."""

    @operation("POST", f"{_VERSION}/change", USER)
    def change_version(self, model: PathName, version: Positive, message: wire.VersionChange) -> wire.ModelVersionView:
        """Change what people write on a version."""

    @operation("POST", f"{_VERSION}/delete", USER)
    def delete_version(self, model: PathName, version: Positive) -> None:
        """Delete a version; its checkpoint is then kept as its experiment says."""

    @operation("PUT", _TEMPLATE, USER)
    def set_template(self, template: PathName, text: wire.TemplateText) -> wire.TemplateView:
        """Create or replace a template: a piece of configuration for experiments."""

    @operation("GET", "/v1/templates", READ_ONLY)
    def templates(self, start: Count = 0, limit: _Rows = 100) -> wire.TemplateList:
        """List templates by name."""

    @operation("GET", _TEMPLATE, READ_ONLY)
    def template(self, template: PathName) -> wire.TemplateView:
        """Get a template."""

    @operation("POST", f"{_TEMPLATE}/delete", USER)
    def delete_template(self, template: PathName) -> None:
        """Delete a template. Experiments that were created with it keep their configuration."""

    # --- pools ------------------------------------------------------------------------------------

    @operation("GET", "/v1/pools", READ_ONLY)
    def pools(self) -> wire.PoolList:
        """Get all pools with their agents and slots."""

    @operation("GET", _POOL, READ_ONLY)
    def pool(self, pool: PathName) -> wire.PoolView:
        """Get a pool's agents and slots."""

    @operation("GET", f"{_POOL}/queue", READ_ONLY)
    def queue(self, pool: PathName) -> wire.QueueView:
        """Get the experiments that hold slots of a pool or wait for some, with the reasons."""

    @operation("POST", f"{_POOL}/agents", USER)
    def change_agents(self, pool: PathName, message: wire.AgentsChange) -> wire.PoolView:
        """Enable, drain or disable agents of a pool."""

    @operation("POST", f"{_POOL}/nodes", USER)
    def report_nodes(self, pool: PathName, message: wire.PoolNodes) -> None:
        """What makes a pool's nodes: report how many there are, and why."""

    @operation("GET", f"{_POOL}/use", READ_ONLY)
    def pool_use(self, pool: PathName, *, days: Annotated[int, Bounds(ge=1, le=MOST_DAYS)] = 7) -> wire.PoolUse:
        """Get the seconds that each person has held slots, by day in UTC, today included."""

    @operation("POST", f"{_POOL}/agents/{{agent}}/report", WORKER)
    def report_pool(self, pool: PathName, agent: PathName, message: wire.PoolReport) -> wire.PoolOrders:
        """Pool's agent: report slots and assignments. Reply: all that should run here. Held."""

    @operation("POST", f"{_POOL}/agents/{{agent}}/leave", WORKER)
    def pool_agent_leaves(self, pool: PathName, agent: PathName, message: wire.AgentLeave) -> None:
        """Pool's agent: the node leaves; nothing runs there any more."""


def declared(operations: type[Operations]) -> tuple[Operation, ...]:
    return tuple(each.operation for each in vars(operations).values() if hasattr(each, "operation"))


OPERATIONS = declared(Operations)


def markdown(operations: Iterable[Operation] = OPERATIONS) -> str:
    """The table of docs/protocol.md."""
    rows = [f"| `{each.method} {each.path}` | {_arrow(each)} | {each.role} | {each.summary} |" for each in operations]
    return "\n".join(["| call | message → reply | role | what for |", "| --- | --- | --- | --- |", *rows])


def _arrow(each: Operation) -> str:
    sent = [f"`?{name}=`" for name in each.in_query]
    if each.request:
        sent = ["gzip" if each.request is bytes else f"`{each.request.__name__}`"]
    kind = get_origin(each.reply) or each.reply
    reply = {bytes: "gzip", dict: "JSON", type(None): ""}.get(kind, f"`{kind.__name__}`")
    return " ".join([*sent, *(["→", reply] if reply else [])])
