"""The controller with one worker, alone: steps, means, errors, what it holds, and where it continues."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

import everstep
from everstep import AllReduceController, RecordIndexService
from everstep.engine import process_engine
from everstep.errors import PeerLost, PermanentError, UsageError
from everstep.wire import LeasePart
from lab.controlled_job import Job, Numbers, batch, end, serve


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    end()


# --- steps ------------------------------------------------------------------------------------------------


def test_a_ghost_that_was_read_ahead_when_all_agreed_on_the_end_is_no_step() -> None:
    service = serve(4)
    job = Job(service).broadcast()
    with job.controller.scope():
        come = iter(DataLoader(Numbers(service), batch_size=4, num_workers=1))
        loss = job.train(next(come))
        ghost = next(come)  # handed out because nothing else is left
        service.end()
        assert job.train(ghost) is loss
        assert next(come, None) is None
    assert len(job.seen) == job.controller.num_steps == 1
    del come


def test_without_a_service_each_call_is_a_step() -> None:
    job = Job().broadcast()
    with job.controller.scope():
        losses = [job.train(batch(number)) for number in (1, 2, 4)]
    assert job.moved == 1 + 2 + 4
    assert job.controller.num_steps == job.optimizer.num_updates == 3
    assert [loss.item() for loss in losses] == [0.0, -1.0 * 2, -3.0 * 4]


def test_without_a_service_the_scope_may_be_left_out() -> None:
    job = Job().broadcast()
    job.train(batch(3))
    assert (job.moved, job.controller.num_steps) == (3, 1)


@pytest.mark.parametrize("epochs", [1, 3])
def test_with_a_service_each_record_is_trained_on_once_per_epoch_and_no_update_is_uncounted(epochs: int) -> None:
    job = Job(serve(12, num_epochs=epochs, shuffle=True)).broadcast().run()
    assert job.moved == pytest.approx(epochs * sum(range(12)) / 4)
    assert job.controller.num_steps == job.optimizer.num_updates == epochs * 3
    assert job.controller.current_epoch == epochs - 1


def test_records_are_reported_to_a_coordinator_when_the_next_step_has_proved_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = serve(12)
    job, told = Job(service).broadcast(), []

    def report(done: Sequence[LeasePart], on_durable: Callable[[], None]) -> None:
        told.append((job.controller.num_steps, [part.start for part in done]))
        on_durable()

    monkeypatch.setattr(RecordIndexService, "is_shared", True)
    monkeypatch.setattr(service, "report", report)
    with job.controller.scope():
        for inputs in job.loader:
            job.train(inputs)
            if job.controller.num_steps == 3:
                break
        assert told == [(2, [0]), (3, [4])]


def test_the_epoch_is_that_of_the_latest_batch() -> None:
    job, epochs = Job(serve(8, num_epochs=2)).broadcast(), list[int]()
    job.after_step = lambda: epochs.append(job.controller.current_epoch)
    assert job.controller.current_epoch == 0
    job.run()
    assert epochs[:4] == [0, 0, 1, 1]


def test_the_function_keeps_its_name_and_its_keywords() -> None:
    job = Job().broadcast()
    assert job.train.__name__ == "train_one_batch"
    assert job.train(inputs=batch(5)).item() == 0


# --- several batches per step -----------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"backward_passes_per_step": 3}, {"global_batch_num_per_step": 3}])
def test_a_step_of_three_batches_takes_the_mean_over_their_records(options: dict[str, int]) -> None:
    job, steps = Job(serve(24), **options).broadcast(), list[int]()
    job.after_step = lambda: steps.append(job.controller.num_steps)
    job.run()
    assert job.moved == pytest.approx(sum(range(12)) / 12 + sum(range(12, 24)) / 12)
    assert steps[:6] == [0, 0, 1, 1, 1, 2]
    assert job.optimizer.num_updates == 2


@pytest.mark.parametrize("options", [{"backward_passes_per_step": 3}, {"global_batch_num_per_step": 3}])
def test_a_short_batch_counts_by_its_records(options: dict[str, int]) -> None:
    service = serve(10)
    service.deliver_tail()
    job = Job(service, **options).broadcast()
    with job.controller.scope():
        for size in (4, 4, 2):
            job.train(batch(*(service.fetch_record_index() for _ in range(size))))
    assert job.moved == pytest.approx(sum(range(10)) / 10)  # the mean of the batches' means would be 5.17
    assert job.optimizer.num_updates == 1


def test_a_last_step_that_is_not_full_is_filled_with_batches_of_no_weight() -> None:
    job = Job(serve(16), backward_passes_per_step=3).broadcast().run()
    assert job.moved == pytest.approx(sum(range(12)) / 12 + sum(range(12, 16)) / 4)
    assert job.optimizer.num_updates == job.controller.num_steps == 2


# --- errors -----------------------------------------------------------------------------------------------


def raising(error: BaseException, at: int, job: Job) -> Callable[[], None]:
    """Raise in the so-manieth call, counted from 0."""

    def act() -> None:
        if len(job.seen) == at + 1:
            raise error

    return act


@pytest.mark.parametrize("where", ["before_step", "after_step"])
@pytest.mark.parametrize("with_service", [False, True])
def test_the_users_own_error_rises_unchanged_is_not_retried_and_micro_batches_the_scope(
    where: str, with_service: bool
) -> None:
    job = Job(serve(16) if with_service else None).broadcast()
    mine = ValueError("mine")
    setattr(job, where, raising(mine, 2, job))
    with pytest.raises(ValueError, match="mine") as caught:
        if with_service:
            job.run()
        else:
            with job.controller.scope():
                for number in range(4):
                    job.train(batch(number))
    assert caught.value is mine
    assert len(job.seen) == 3
    assert job.optimizer.num_updates == job.controller.num_steps == (2 if where == "before_step" else 3)
    with pytest.raises(UsageError, match="has left its scope"), job.controller.scope():
        pass


@pytest.mark.parametrize("where", ["before_step", "after_step"])
@pytest.mark.parametrize("passes", [1, 2])
def test_a_script_that_goes_on_after_its_own_error_still_trains_on_each_record_once(where: str, passes: int) -> None:
    job = Job(serve(32), backward_passes_per_step=passes).broadcast()
    setattr(job, where, raising(ValueError("mine"), 3, job))
    num_errors = 0
    with job.controller.scope():
        for inputs in job.loader:
            try:
                job.train(inputs)
            except ValueError:
                num_errors += 1
    assert num_errors == 1
    assert job.moved == pytest.approx(sum(range(32)) / 4 / passes)


def test_records_that_fail_again_and_again_are_named() -> None:
    job = Job(serve(8)).broadcast()

    def fail() -> None:
        raise ValueError("mine")

    job.before_step = fail
    with pytest.raises(PermanentError, match=r"positions \d to \d .* failed 3 times.*ValueError: mine"):  # noqa: SIM117
        with job.controller.scope():
            for inputs in job.loader:
                try:
                    job.train(inputs)
                except ValueError:
                    pass


def test_a_lost_peer_is_retried_with_the_same_batch() -> None:
    """As told by a collective of the user's own, inside the function."""
    job = Job(serve(12)).broadcast()
    job.before_step = raising(PeerLost("a peer is gone"), 1, job)
    job.run()
    assert job.seen[1] == job.seen[2]
    assert job.moved == pytest.approx(sum(range(12)) / 4)
    assert job.optimizer.num_updates == 3


def test_a_lost_peer_after_the_commit_trains_nothing_twice() -> None:
    job = Job(serve(12)).broadcast()
    job.after_step = raising(PeerLost("a peer is gone"), 1, job)
    job.run()
    assert job.moved == pytest.approx(sum(range(12)) / 4)
    assert job.optimizer.num_updates == 3


# --- wrong use --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"backward_passes_per_step": 0}, "backward_passes_per_step=0"),
        ({"global_batch_num_per_step": -1}, "global_batch_num_per_step=-1"),
        ({"backward_passes_per_step": 2, "global_batch_num_per_step": 6}, "at once"),
        ({"data_shard_service": [1, 2]}, "data_shard_service is a list"),
    ],
)
def test_bad_arguments(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        AllReduceController(**options)
    assert caught.value.hint


def test_a_call_outside_of_the_scope() -> None:
    job = Job(serve(8)).broadcast()
    with pytest.raises(UsageError, match="outside of the scope"):
        job.train(batch(1))


def test_no_optimizer() -> None:
    job = Job()
    job.controller.set_broadcast_model(job.model)
    with pytest.raises(UsageError, match="no optimizer") as caught, job.controller.scope():
        pass
    assert "set_broadcast_optimizer" in str(caught.value.hint)


def test_no_model() -> None:
    job = Job()
    job.controller.set_broadcast_optimizer(job.optimizer)
    with pytest.raises(UsageError, match="no parameter") as caught, job.controller.scope():
        pass
    assert "set_broadcast_model" in str(caught.value.hint)


def test_a_function_without_an_optimizer_step() -> None:
    job = Job().broadcast()
    train = job.controller.elastic_run(lambda inputs: job.model(inputs).backward())
    with pytest.raises(UsageError, match=r"without optimizer.step\(\)"), job.controller.scope():
        train(batch(1))


def test_a_state_that_has_none() -> None:
    with pytest.raises(UsageError, match="without state_dict"):
        Job().controller.set_broadcast_state(object())


# --- what it holds besides --------------------------------------------------------------------------------


def test_a_scheduler_steps_once_per_step_also_over_batches_of_no_weight() -> None:
    job = Job(serve(16), backward_passes_per_step=3).broadcast()
    scheduler = StepLR(job.optimizer, step_size=1, gamma=0.5)
    job.controller.set_broadcast_state(scheduler)
    job.after_step = scheduler.step
    job.run()
    assert scheduler.last_epoch == job.controller.num_steps == 2
    assert len(job.seen) > 2 * 3  # the last step was proved by ghosts
    assert job.moved == pytest.approx(sum(range(12)) / 12 + 0.5 * sum(range(12, 16)) / 4)


def test_a_gradient_scaler_acts_once_per_step() -> None:
    job = Job(serve(16), backward_passes_per_step=3).broadcast()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    job.controller.set_broadcast_state(scaler)

    def train_one_batch(inputs: Tensor) -> None:
        job.optimizer.zero_grad()
        scaler.scale(job.model(inputs)).backward()
        scaler.step(job.optimizer)
        scaler.update()

    train = job.controller.elastic_run(train_one_batch)
    with job.controller.scope():
        for inputs in job.loader:
            train(inputs)
    assert job.moved == pytest.approx(sum(range(12)) / 12 + sum(range(12, 16)) / 4)
    assert scaler.get_scale() == 8.0  # after two steps


def test_any_object_with_a_state_is_part_of_what_newcomers_get() -> None:
    class Counter:
        value = 7

        def state_dict(self) -> dict[str, Any]:
            return {"value": self.value}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.value = state["value"]

    job, counter = Job().broadcast(), Counter()
    job.controller.set_broadcast_state(counter)
    assert {"value": 7} in process_engine.current().registry.state().values()


# --- wrapped models ---------------------------------------------------------------------------------------


def test_our_wrapper_around_the_model() -> None:
    job = Job(serve(12))
    job.model = everstep.DistributedDataParallel(job.model)
    job.broadcast().run()
    assert job.moved == pytest.approx(sum(range(12)) / 4)


def test_torchs_wrapper_around_the_model() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        job = Job(serve(12))
        job.model = TorchDDP(job.model)
        assert job.broadcast().run().moved == pytest.approx(sum(range(12)) / 4)
    finally:
        process_engine.close()
        del job
        gc.collect()  # the wrapper may hang when it goes after its group
        dist.destroy_process_group()
        gc.collect()  # the group's socket


# --- checkpoints ------------------------------------------------------------------------------------------


def parts(job: Job) -> dict[str, Any]:
    return {"model": job.model, "optimizer": job.optimizer, "controller": job.controller}


@pytest.mark.parametrize("batches", [1, 4, 5])
@pytest.mark.parametrize("passes", [1, 2])
def test_who_goes_on_from_a_checkpoint_trains_on_the_other_records(batches: int, passes: int) -> None:
    first = Job(serve(16, num_epochs=2, shuffle=True, dataset_name="numbers"), backward_passes_per_step=passes)
    with first.broadcast().controller.scope():
        for _, inputs in zip(range(batches), first.loader, strict=False):
            first.train(inputs)
    saved = {name: part.state_dict() for name, part in parts(first).items()}
    saved = {name: state if name == "model" else dict(state) for name, state in saved.items()}
    process_engine.close()

    second = Job(serve(16, num_epochs=2, shuffle=True, dataset_name="numbers"), backward_passes_per_step=passes)
    for name, part in parts(second.broadcast()).items():
        part.load_state_dict(saved[name])
    second.run()

    assert second.moved == pytest.approx(2 * sum(range(16)) / 4 / passes)
    assert second.controller.num_steps == 2 * 4 / passes


def test_an_empty_state_is_a_fresh_start() -> None:
    job = Job(serve(8)).broadcast()
    job.controller.load_state_dict({})
    assert job.run().moved == pytest.approx(sum(range(8)) / 4)


def test_a_state_of_other_data_is_refused() -> None:
    saved = Job(serve(16, dataset_name="numbers")).broadcast().run().controller.state_dict()
    process_engine.close()
    job = Job(serve(20, dataset_name="numbers")).broadcast()
    job.controller.load_state_dict(saved)
    with pytest.raises(UsageError, match="size=20, the checkpoint 16"):
        job.run()
