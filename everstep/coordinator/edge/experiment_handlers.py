"""What answers the operations about experiments, trials and checkpoints: see `handlers`."""

from __future__ import annotations

from collections.abc import AsyncIterator

from starlette.responses import Response

from everstep import wire
from everstep.coordinator.edge.code_folder import code_path, keep_code
from everstep.coordinator.edge.guard import TOKEN
from everstep.coordinator.edge.handlers import HttpCall
from everstep.coordinator.edge.packed_reply import packed
from everstep.coordinator.experiments import forking
from everstep.coordinator.experiments.experiment_calls import check_sort
from everstep.errors import Refused


async def upload_code(call: HttpCall, digest: str, content: AsyncIterator[bytes]) -> None:
    await keep_code(call.code, digest, content)


async def create_experiment(call: HttpCall, new: wire.NewExperiment) -> wire.ExperimentView:
    return await call.service.experiment_calls.create(new.spec, call.scope[TOKEN], new.secrets)


async def experiments(
    call: HttpCall,
    start: int = 0,
    limit: int = 100,
    search: str = "",
    state: str = "",
    *,
    is_archived: bool = False,
    label: str = "",
    owner: str = "",
    sort: str = "experiment",
    is_descending: bool = True,
    columns: str = "",
) -> wire.ExperimentList:
    return await call.service.experiment_listing.find(
        start,
        limit,
        search=search,
        states=_parts(state),
        is_archived=is_archived,
        labels=_parts(label),
        owner=owner,
        sort=sort,
        is_descending=is_descending,
        columns=_parts(columns),
    )


async def experiment_columns(call: HttpCall) -> wire.ExperimentColumns:
    return await call.service.experiment_listing.columns()


async def experiment(call: HttpCall, experiment: int) -> wire.ExperimentView:
    return await call.service.experiment_calls.view(experiment)


async def experiment_config(call: HttpCall, experiment: int) -> wire.ExperimentConfig:
    return await call.service.experiment_calls.config(experiment)


async def act(call: HttpCall, experiment: int, message: wire.ExperimentAction) -> wire.ExperimentView:
    return await call.service.experiment_calls.act(experiment, message, call.scope[TOKEN])


async def fork(call: HttpCall, experiment: int, message: wire.ExperimentFork) -> wire.ExperimentView:
    return await forking.fork(call.service.experiment_calls, experiment, message, call.scope[TOKEN])


async def change(call: HttpCall, experiment: int, message: wire.ExperimentChange) -> wire.ExperimentView:
    return await call.service.experiment_calls.change(experiment, message, call.scope[TOKEN])


async def trials(
    call: HttpCall, experiment: int, *, start: int = 0, limit: int = 100, sort: str = "trial"
) -> wire.TrialList:
    return await call.service.experiment_calls.trials(experiment, start, limit, sort)


async def trial_columns(call: HttpCall, experiment: int) -> Response:
    return await packed(call, await call.service.experiment_reads.columns(experiment))


async def trial_curves(call: HttpCall, experiment: int, *, points: int = 50_000, trials: str = "") -> Response:
    numbers = _parts(trials)
    if not all(each.isascii() and each.isdigit() and len(each) < 16 for each in numbers):
        raise Refused(f"trials: {trials[:100]!r} are not numbers with commas", status=422, code="parameter-invalid")
    return await packed(call, await call.service.experiment_reads.curves(experiment, points, [*map(int, numbers)]))


async def rungs(call: HttpCall, experiment: int) -> Response:
    return await packed(call, wire.to_json(await call.service.experiment_reads.rungs(experiment)))


async def experiment_use(call: HttpCall, experiment: int) -> wire.ExperimentUse:
    return await call.service.experiment_reads.use(experiment)


async def code_files(call: HttpCall, experiment: int) -> wire.CodeFileList:
    digest = await call.service.experiment_reads.code_of(experiment)
    return await call.service.experiment_reads.code_files(experiment, code_path(call.code, digest), digest)


async def code_text(call: HttpCall, experiment: int, *, name: str = "") -> wire.CodeText:
    digest = await call.service.experiment_reads.code_of(experiment)
    return await call.service.experiment_reads.code_text(code_path(call.code, digest), name)


async def trial(call: HttpCall, experiment: int, trial: int) -> wire.TrialView:
    return await call.service.experiment_calls.trial(experiment, trial)


async def find_trial(call: HttpCall, trial_id: int) -> wire.TrialView:
    return await call.service.experiment_calls.find_trial(trial_id)


async def kill_trial(call: HttpCall, experiment: int, trial: int) -> wire.TrialView:
    return await call.service.experiment_calls.kill_trial(experiment, trial, call.scope[TOKEN])


async def trial_results(call: HttpCall, experiment: int, trial: int) -> wire.TrialResults:
    return await call.service.experiment_calls.results(experiment, trial)


async def verify_trial(call: HttpCall, experiment: int, trial: int, message: wire.VerifyRequest) -> wire.ExperimentView:
    return await call.service.experiment_calls.verify(experiment, trial, message.request, call.scope[TOKEN])


async def search_events(
    call: HttpCall, experiment: int, *, after: int = 0, limit: int = 100, is_held: bool = False
) -> wire.SearchEvents:
    return await call.service.experiment_calls.events(experiment, after, limit, is_held=is_held)


async def search_state(call: HttpCall, experiment: int) -> wire.SearchState:
    return await call.service.experiment_calls.search_state(experiment)


async def search_operations(call: HttpCall, experiment: int, message: wire.SearchOperations) -> wire.SearchState:
    return await call.service.experiment_calls.search_operations(experiment, message, call.scope[TOKEN])


async def checkpoints(
    call: HttpCall, experiment: int, *, start: int = 0, limit: int = 100, sort: str = "trial", trial: int = 0
) -> wire.CheckpointList:
    check_sort(sort)
    return await call.service.checkpoints.of_experiment(experiment, start, limit, sort, trial)


async def checkpoint(call: HttpCall, uuid: str) -> wire.SavedCheckpoint:
    return await call.service.checkpoints.view(uuid)


async def latest_checkpoint(call: HttpCall) -> wire.SavedCheckpoint:
    return await call.service.checkpoints.latest(call.job_name)


async def report_checkpoint(call: HttpCall, message: wire.CheckpointReport) -> None:
    await call.service.checkpoints.report(call.job_name, message)


async def target(call: HttpCall, message: wire.TargetRequest) -> wire.TrialTarget:
    return await call.service.trials.target(call.job_name, message)


async def report_result(call: HttpCall, message: wire.TrialResult) -> wire.TrialKept:
    return await call.service.trials.result(call.job_name, message)


async def end_trial(call: HttpCall, message: wire.TrialEnd) -> None:
    await call.service.trials.end(call.job_name, message)


def _parts(text: str) -> list[str]:
    return [each for each in text.split(",") if each]
