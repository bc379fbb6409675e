"""Experiments and whoever holds slots for their trials: who wants one, who is told to go, and what an end means."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import asynccontextmanager

import pytest

from everstep import wire
from everstep.coordinator.experiments import sweeping
from everstep.coordinator.experiments.seam import AssignmentEnd
from everstep.coordinator.service import Service
from everstep.coordinator.store.store import Store
from everstep.errors import Refused
from everstep.wire import limits
from lab.experiments import spec
from lab.search_programs import create, custom, post, validate


class Slots:
    """As many as there are trials; each is given by hand."""

    def __init__(self):
        self.held, self.released, self.number = {}, [], 0
        self.experiment = 0  # that the story is about

    def holds(self, experiment, trial):
        return len(self.held.get((experiment, trial), ()))

    def is_shrinking(self, experiment, trial):
        return False

    def why_queued(self, experiment, trial):
        return "waits"

    def why_never(self, candidate):
        return None

    async def release(self, experiment, trial, how, reason):
        self.released.append((trial, how))

    def images(self) -> dict[str, set[str]]:
        return {}

    def note_change(self): ...


class Stage:
    def __init__(self, service, slots):
        self.service, self.slots = service, slots

    async def create(self, *given, **named):
        self.slots.experiment = (await self.service.experiment_calls.create(spec(*given, **named))).experiment
        return self.slots.experiment

    def wanting(self):
        found = self.service.experiments.candidates()
        return {each.trial: each for each in found if each.experiment == self.slots.experiment}

    async def place(self, trial):
        candidate = self.wanting()[trial]
        self.slots.number += 1
        held = self.slots.held.setdefault((candidate.experiment, trial), [])
        is_first = not held
        held.append(self.slots.number)
        self.is_placed = await self.service.experiments.placed(candidate, held[-1], "kind", is_first=is_first)
        return candidate

    async def vacate(self, experiment, trial, exit_code=0, *, was_asked=False, is_lost=False, which=0):
        held = self.slots.held[experiment, trial]
        assignment, others = held[which], [*held[:which], *held[which + 1 :]]
        end = AssignmentEnd(exit_code=exit_code, was_asked=was_asked, is_lost=is_lost, reason=f"code {exit_code}")
        await self.service.experiments.vacated(experiment, trial, assignment, end, others)
        held.remove(assignment)
        await self.service.experiments.vacated(experiment, trial, assignment, end, others)  # changes nothing
        if not held:
            del self.slots.held[experiment, trial]

    async def result(self, experiment, trial, length, metric=0.5):
        message = wire.TrialResult(length=length, metric=metric)
        return await self.service.trials.result(wire.trial_job(experiment, trial), message)

    async def target(self, experiment, trial, **asked):
        return await self.service.trials.target(wire.trial_job(experiment, trial), wire.TargetRequest(**asked))

    async def trial(self, experiment, trial):
        return await self.service.experiment_calls.trial(experiment, trial)

    async def act(self, experiment, action):
        return await self.service.experiment_calls.act(experiment, wire.ExperimentAction(action=action))

    async def view(self, experiment):
        return await self.service.experiment_calls.view(experiment)


@pytest.fixture
def staged(store_url):
    """Run a story on a service; `again`: after a restart, with the slots that were held."""

    @asynccontextmanager
    async def open_stage(slots):
        service = Service(Store(store_url))
        await service.experiments.start(slots)
        try:
            yield Stage(service, slots)
        finally:
            service.let_go()
            await service.close()

    def run(*stories):
        slots = Slots()

        async def play():
            told = None
            for story in stories:
                async with open_stage(slots) as stage:
                    told = await story(stage, told) if told is not None else await story(stage)

        asyncio.run(play())

    return run


def test_a_trial_has_a_job_and_keeps_its_slot_until_its_process_has_ended(staged):
    async def story(stage):
        number = await stage.create("random", max_trials=1, policy=wire.Policy(lease_s=30.0, max_restarts=5))
        candidate = await stage.place(1)
        job = await stage.service.job(candidate.job)
        policy = job.kept.policy
        assert (policy.lease_s, policy.max_workers, policy.max_restarts) == (30.0, 1, 0)
        order = stage.service.experiments.order(candidate)
        assert (order.job, order.trial, order.policy["min_workers"]) == (f"e{number}-t1", 1, 1)
        assert (await stage.trial(number, 1)).state == "RUNNING"
        assert (await stage.view(number)).num_slots == 1
        assert (await stage.result(number, 1, 64)).wish == "stop"
        assert (await stage.view(number)).state == "ACTIVE"  # its process has still to end
        assert 1 in stage.wanting()
        await stage.vacate(number, 1)
        view = await stage.view(number)
        assert (view.state, view.num_trials) == ("COMPLETED", {"COMPLETED": 1})
        assert (await stage.service.job(candidate.job)).kept.is_over

    staged(story)


def test_deaths_of_its_own_count_and_end_a_trial_but_never_the_experiment(staged):
    async def story(stage):
        number = await stage.create("random", max_trials=2, max_restarts=1)
        for lost, expected in ((True, 0), (False, 1)):
            await stage.place(1)
            await stage.vacate(number, 1, exit_code=-9, is_lost=lost)
            trial = await stage.trial(number, 1)
            assert (trial.num_restarts, trial.state) == (expected, "QUEUED")
        candidate = await stage.place(1)
        await (await stage.service.job(candidate.job)).stop("no restart is allowed")
        await stage.vacate(number, 1, exit_code=1)
        trial = await stage.trial(number, 1)
        assert (trial.num_restarts, trial.state) == (1, "ERROR")
        assert (await stage.view(number)).state == "ACTIVE"

    staged(story)


def test_a_trial_that_loses_one_of_several_slots_trains_on(staged):
    async def story(stage):
        number = await stage.create("random", max_trials=1, num_micro_batches=3, max_slots=3)
        for _ in range(3):
            await stage.place(1)
        for which, how in ((1, {"was_asked": True, "exit_code": 143}), (0, {"is_lost": True})):
            await stage.vacate(number, 1, which=which, **how)
            trial = await stage.trial(number, 1)
            assert (trial.state, trial.num_restarts, trial.num_slots) == ("RUNNING", 0, 2 - (which == 0))
        await stage.vacate(number, 1, was_asked=True)
        assert (await stage.trial(number, 1)).state == "QUEUED"

    staged(story)


def test_slots_that_fail_together_are_one_restart_and_end_in_any_order(staged):
    async def fail(stage):
        number = await stage.create("random", max_trials=2, max_restarts=1, num_micro_batches=3, max_slots=3)
        for _ in range(3):
            await stage.place(1)
        await stage.vacate(number, 1, exit_code=1, which=2)
        assert (await stage.trial(number, 1)).num_restarts == 1
        return number

    async def fail_again(stage, number):
        await stage.place(1)  # a new one, while the others of the first try have not ended
        await stage.vacate(number, 1, exit_code=1)
        await stage.vacate(number, 1, exit_code=1)
        trial = await stage.trial(number, 1)
        assert (trial.num_restarts, trial.state) == (1, "RUNNING")
        await stage.place(1)
        await stage.vacate(number, 1, exit_code=1)
        await asyncio.sleep(0)
        assert (1, "kill") in stage.slots.released, "it has failed for good"
        assert (await stage.trial(number, 1)).state == "RUNNING"
        return number

    async def end(stage, number):
        """Also after a restart of the coordinator."""
        await asyncio.sleep(0)
        assert stage.slots.released.count((1, "kill")) > 1
        await stage.vacate(number, 1, exit_code=-9, was_asked=True)
        trial = await stage.trial(number, 1)
        assert (trial.state, trial.num_restarts) == ("ERROR", 1)
        assert "code 1" in trial.reason
        assert (await stage.view(number)).state == "ACTIVE"

    staged(fail, fail_again, end)


def test_a_script_that_ends_on_one_slot_after_the_other_is_over_with_the_last(staged):
    async def story(stage):
        number = await stage.create("random", max_trials=1, num_micro_batches=2, max_slots=2)
        candidate = await stage.place(1)
        await stage.place(1)
        await stage.result(number, 1, 64)
        job = await stage.service.job(candidate.job)
        await stage.vacate(number, 1)
        assert (await stage.view(number)).state == "ACTIVE"
        assert stage.wanting()[1].max_slots == 1, "it gets no more"
        await job.stop("its members left together")
        await stage.place(1)
        assert not stage.is_placed and job.kept.is_over, "what ends is not opened again"
        await stage.vacate(number, 1, which=1, is_lost=True)
        await stage.vacate(number, 1)
        assert (await stage.view(number)).state == "COMPLETED"

    staged(story)


def test_a_stopped_trial_whose_node_is_lost_is_over_at_once(staged):
    """The pool counts its slot as held until the end is told."""

    async def story(stage):
        number = await stage.create("random", max_trials=1)
        await stage.place(1)
        assert (await stage.result(number, 1, 64)).wish == "stop"
        end = AssignmentEnd(exit_code=0, was_asked=False, is_lost=True, reason="its node died")
        await stage.service.experiments.vacated(number, 1, stage.slots.number, end, [])
        assert (await stage.view(number)).state == "COMPLETED"

    staged(story)


def test_a_trial_grows_once_its_workers_train_together(staged):
    async def story(stage):
        number = await stage.create("random", max_trials=1, num_micro_batches=4, min_slots=2, max_slots=4)
        assert (stage.wanting()[1].min_slots, stage.wanting()[1].max_slots) == (2, 2)
        candidate = await stage.place(1)
        await stage.place(1)
        job = await stage.service.job(candidate.job)
        workers = [await form(job, f"w{at}", at) for at in range(2)]
        assert (stage.wanting()[1].min_slots, stage.wanting()[1].max_slots) == (2, 2)
        await asyncio.gather(*(job.arrive(name, arrival) for name, arrival in workers))
        found = stage.wanting()[1]
        assert (found.min_slots, found.max_slots, found.batches_left) == (2, 4, 64)
        assert (job.kept.policy.min_workers, job.kept.policy.max_workers) == (2, 4)
        return number

    async def again(stage, _number):
        found = stage.wanting()[1]
        assert (found.min_slots, found.max_slots) == (2, 4), "known from the beginning, so that it loses no slot"

    staged(story, again)


async def form(job, incarnation, port):
    """A worker that stands ready, but for its arrival."""
    name = (await job.reserve(wire.ReserveWorker(agent=f"a-{port}", request=incarnation))).worker
    up = {"incarnation": incarnation, "pid": 1, "address": "127.0.0.1", "store_port": 1 + port, "probe_port": 1}
    await job.announce(name, wire.Announce(**up))
    return name, wire.Arrive(incarnation=incarnation, generation=0, settled=0, step=0, max_workers=4)


def test_a_job_that_was_stopped_is_open_again_for_the_next_try(staged):
    async def story(stage):
        number = await stage.create("random", max_trials=1, max_restarts=3)
        candidate = await stage.place(1)
        await (await stage.service.job(candidate.job)).stop("no restart is allowed")
        await stage.vacate(number, 1, exit_code=1)
        await stage.place(1)
        job = await stage.service.job(candidate.job)
        assert not job.kept.is_over
        reserved = await job.reserve(wire.ReserveWorker(agent="a", request="r"))
        assert reserved.worker

    staged(story)


def test_paused_trials_leave_their_slots_and_are_not_counted(staged):
    async def pause(stage):
        number = await stage.create("random", max_trials=2)
        await stage.place(1)
        await stage.act(number, "pause")
        assert stage.wanting() == {}
        assert (await stage.target(number, 1)).wish == "park"
        return number

    async def go_on(stage, number):
        await asyncio.sleep(0)
        assert (1, "park") in stage.slots.released  # also by a coordinator that has just started
        await stage.vacate(number, 1, was_asked=True)
        assert (await stage.trial(number, 1)).num_restarts == 0
        await stage.act(number, "activate")
        assert sorted(stage.wanting()) == [1, 2]

    staged(pause, go_on)


@pytest.mark.parametrize(
    ("action", "how", "final"), [("cancel", "park", "STOPPING_CANCELED"), ("kill", "kill", "STOPPING_KILLED")]
)
def test_a_canceled_experiment_is_over_when_its_last_process_is(staged, action, how, final):
    async def story(stage):
        number = await stage.create("random", max_trials=2)
        await stage.place(1)
        view = await stage.act(number, action)
        assert (view.state, view.num_trials) == (final, {"RUNNING": 1, "CANCELED": 1})
        await asyncio.sleep(0)
        assert stage.slots.released == [(1, how)]
        await stage.vacate(number, 1, exit_code=143, was_asked=True)
        assert (await stage.view(number)).state == "CANCELED"

    staged(story)


def test_a_waiting_trial_keeps_its_slot_and_one_without_a_slot_wants_none(staged):
    async def story(stage):
        number = await stage.create("async_halving", max_trials=4, num_rungs=2, divisor=4)
        await stage.place(1)
        await stage.result(number, 1, 16, 0.1)
        candidate = stage.wanting()[1]
        assert candidate.is_waiting and candidate.waiting_since > 0.0
        stage.service.experiments.note_parking(number, 1)
        assert (await stage.target(number, 1, seen=1)).wish == "park"
        await stage.vacate(number, 1)  # parked: not counted, not over
        assert 1 not in stage.wanting()
        assert (await stage.trial(number, 1)).state == "WAITING"
        for trial in (2, 3, 4):
            await stage.place(trial)
            await stage.result(number, trial, 16, 0.9)
        assert not stage.wanting()[1].is_waiting  # promoted: it wants a slot again
        await stage.place(1)
        assert (await stage.target(number, 1, seen=1)).length == 64

    staged(story)


def test_a_killed_trial_is_over_when_its_process_is(staged):
    async def story(stage):
        number = await stage.create("random", max_trials=2)
        await stage.place(1)
        await stage.service.experiment_calls.kill_trial(number, 1)
        await asyncio.sleep(0)
        assert stage.slots.released == [(1, "kill")]
        assert (await stage.trial(number, 1)).state == "RUNNING"
        await stage.vacate(number, 1, exit_code=-9)
        assert (await stage.trial(number, 1)).state == "CANCELED"

    staged(story)


def test_invalid_hyperparameters_replace_the_trial_when_its_process_has_ended(staged):
    async def story(stage):
        number = await stage.create("random", max_trials=1)
        await stage.place(1)
        await stage.service.trials.end(f"e{number}-t1", wire.TrialEnd(why="INVALID_HP", reason="too large"))
        assert sorted(stage.wanting()) == [1]
        await stage.vacate(number, 1, exit_code=1)
        assert sorted(stage.wanting()) == [2]

    staged(story)


def test_a_search_that_cannot_ask_its_model_ends_in_error(staged):
    async def story(stage):
        number = await stage.create("random", max_trials=1)
        live = await stage.service.experiments.find(number)
        await stage.service.experiments._fail(live, Refused("no model", code="x"))
        view = await stage.view(number)
        assert (view.state, view.reason) == ("ERROR", "no model")

    staged(story)


def test_a_coordinator_that_starts_again_continues_where_it_was(staged):
    async def first(stage):
        number = await stage.create("random", max_trials=3, max_concurrent_trials=1)
        await stage.place(1)
        await stage.result(number, 1, 32, 0.25)
        return number

    async def second(stage, number):
        trial = await stage.trial(number, 1)
        assert (trial.best, trial.length, trial.state) == (0.25, 32, "RUNNING")
        await stage.result(number, 1, 32, 0.9)  # known
        await stage.result(number, 1, 64, 0.5)
        return number

    async def third(stage, number):
        await stage.vacate(number, 1)
        assert sorted(stage.wanting()) == [2]
        assert (await stage.trial(number, 1)).best == 0.25
        with pytest.raises(Refused):
            await stage.trial(number, 3)

    staged(first, second, third)


def test_trials_get_their_jobs_although_no_others_may_be_opened(staged, monkeypatch):
    monkeypatch.setattr(limits, "MAX_JOBS", 1)

    async def story(stage):
        await stage.create("async_halving", max_trials=2, num_rungs=2, divisor=2)
        await stage.place(1)
        await stage.place(2)
        with pytest.raises(Refused) as refused:
            await stage.service.create("another", wire.JobSpec())
        assert refused.value.code == "too-many-jobs"

    staged(story)


def test_an_experiment_that_is_deleted_during_a_sweep_is_swept_again(staged, monkeypatch):
    swept = []

    async def story(stage):
        experiment = await stage.create("random", max_trials=1)
        loop = asyncio.get_running_loop()

        def delete_files(checkpoints):
            """In a thread."""
            if not swept:
                asyncio.run_coroutine_threadsafe(stage.act(experiment, "delete"), loop).result(60)
            swept.append([each.uuid for each in checkpoints])
            return swept[-1], 0

        sweeper = stage.service.experiments.sweeper
        monkeypatch.setattr(sweeping, "delete_files", delete_files)
        monkeypatch.setattr(stage.service.experiments, "sweep", lambda number: None)  # here, by hand
        report = wire.CheckpointReport(uuid=uuid.uuid4().hex, uri="elsewhere", step=64)
        await stage.service.checkpoints.report(wire.trial_job(experiment, 1), report)
        await stage.act(experiment, "kill")
        await sweeper.sweep(experiment)
        await sweeper.sweep(experiment)
        assert swept == [[], [report.uuid]]

    staged(story)


class Sweep:
    """Of an experiment that keeps nothing: its trial's checkpoint, and what was deleted. `meanwhile`: while it is."""

    def __init__(self, stage, monkeypatch):
        self.stage, self.uuid, self.deleted, self.meanwhile = stage, uuid.uuid4().hex, [], None
        self.experiments = stage.service.experiments
        self._loop = asyncio.get_running_loop()
        monkeypatch.setattr(sweeping, "delete_files", self._delete_files)
        monkeypatch.setattr(self.experiments, "sweep", lambda number: None)  # here, by hand

    async def trained(self, **given):
        """One trial, to 64; it still has its slot."""
        kept = wire.CheckpointsKept(trial_best=0, trial_latest=0)
        number = await self.stage.create("random", max_trials=1, kept=kept, **given)
        await self.placed()
        report = wire.CheckpointReport(uuid=self.uuid, uri="elsewhere", step=64)
        await self.stage.service.checkpoints.report(wire.trial_job(number, 1), report)
        await self.stage.result(number, 1, 64)
        return number

    async def placed(self):
        """Once it is known that it has to train."""
        async with asyncio.timeout(60):
            while 1 not in self.stage.wanting():
                await asyncio.sleep(0.01)
        return await self.stage.place(1)

    async def swept(self, experiment):
        await self.stage.vacate(experiment, 1)
        assert (await self.stage.view(experiment)).state == wire.COMPLETED
        await self.experiments.sweeper.sweep(experiment)

    def _delete_files(self, checkpoints):
        """In a thread."""
        if self.meanwhile is not None:
            asyncio.run_coroutine_threadsafe(self.meanwhile(), self._loop).result(60)
        self.deleted += [each.uuid for each in checkpoints]
        return [each.uuid for each in checkpoints], 0


def test_nothing_begins_with_a_checkpoint_that_is_being_deleted(staged, monkeypatch):
    async def story(stage):
        sweep = Sweep(stage, monkeypatch)

        async def begin_with_it():
            for begins in ({"source_checkpoint_uuid": sweep.uuid}, {"source_trial_id": trial_id}):
                with pytest.raises(Refused) as refused:
                    await stage.service.experiment_calls.create(spec("random", **begins))
                assert refused.value.code in ("checkpoint-deleted", "checkpoint-missing")

        experiment = await sweep.trained()
        trial_id = (await stage.trial(experiment, 1)).trial_id
        sweep.meanwhile = begin_with_it
        await sweep.swept(experiment)
        assert sweep.deleted == [sweep.uuid]

    staged(story)


def test_a_checkpoint_that_a_search_program_begins_a_trial_with_is_not_deleted(staged, monkeypatch):
    async def story(stage):
        sweep = Sweep(stage, monkeypatch)
        experiment = await sweep.trained()
        program = (await stage.service.experiment_calls.create(custom())).experiment
        begun = post(1, {**create("a"), "checkpoint": sweep.uuid}, validate("a", 8))
        await stage.service.experiment_calls.search_operations(program, begun)
        await sweep.swept(experiment)
        assert sweep.deleted == []

    staged(story)


def test_a_trial_does_not_continue_a_checkpoint_that_is_being_deleted(staged, monkeypatch):
    async def story(stage):
        sweep = Sweep(stage, monkeypatch)
        sweep.experiments.note_kinds({"default": frozenset({"kind"})})
        reuse = {"config": {"reuse": True, "data": {"version": uuid.uuid4().hex}}, "hyperparameters": {"lr": 0.1}}

        async def train_it_longer():
            await stage.create("random", max_trials=1, max_length={"batches": 100}, **reuse)
            assert sweep.experiments.order(await sweep.placed()).resume_from == ""

        experiment = await sweep.trained(**reuse)
        sweep.meanwhile = train_it_longer
        await sweep.swept(experiment)
        assert sweep.deleted == [sweep.uuid]

    staged(story)


@pytest.mark.parametrize("is_lost", [False, True])
def test_workers_of_an_assignment_that_is_dead_for_certain_are_not_waited_for(staged, is_lost):
    async def story(stage):
        number = await stage.create("random", max_trials=1)
        job = await stage.service.job((await stage.place(1)).job)
        first = stage.slots.number
        request = wire.ReserveWorker(agent=f"local-{first}", request="r")
        worker = (await job.reserve(request)).worker
        await stage.vacate(number, 1, exit_code=1, is_lost=is_lost)
        assert (job.kept.workers[worker].status == "dead") is not is_lost
        await stage.service.experiments.buried(number, 1, first)
        assert job.kept.workers[worker].status == "dead"

    staged(story)
