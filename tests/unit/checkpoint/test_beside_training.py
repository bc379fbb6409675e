"""A save holds what the state held when it was called, whatever training does right after it."""

from __future__ import annotations

import copy
import logging
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import everstep
from everstep.checkpoint.copier import Copier, Copy
from everstep.checkpoint.copy_gate import GATE
from everstep.checkpoint.state_snapshot import CLONED_BYTES, take
from everstep.errors import CheckpointFailed


class Training:
    """Parameters that grow by one with each step."""

    def __init__(self, size: int = 1000) -> None:
        self.model = nn.Sequential(nn.Linear(size, 1, bias=False), nn.BatchNorm1d(1))
        nn.init.zeros_(self.model[0].weight)
        self.optimizer = torch.optim.SGD([self.model[0].weight], lr=1.0)
        GATE.hang()
        self.step(0.0)

    def step(self, amount: float = 1.0) -> None:
        self.model[0].weight.grad = torch.full_like(self.model[0].weight, -amount)
        self.optimizer.step()

    @property
    def weight(self) -> Tensor:
        return self.model[0].weight.detach()


class Slow:
    """A copy that begins when it may."""

    def __init__(self, training: Training) -> None:
        self.image = torch.empty_like(training.weight)
        self.may_begin = threading.Event()
        self.problems: list[Any] = []
        self.has_ended = threading.Event()
        source = training.weight
        self.copier = Copier()
        self.copy = Copy(take({"weight": source}), lambda: self._pairs(source), self._end)
        self.copier.start(self.copy)

    def _pairs(self, source: Tensor) -> list[tuple[Tensor, Tensor]]:
        assert self.may_begin.wait(60)
        return [(self.image, source)]

    def _end(self, problem: BaseException | None) -> None:
        self.problems.append(problem)
        self.has_ended.set()

    def finish(self) -> None:
        self.may_begin.set()
        assert self.has_ended.wait(60)
        self.copier.close()


@pytest.mark.parametrize("change", ["step", "load_state_dict"])
def test_a_change_of_the_parameters_waits_for_the_copy(change: str) -> None:
    training = Training()
    take(training.model)  # it is known from now on
    slow = Slow(training)
    other = {name: torch.ones_like(value) for name, value in training.model.state_dict().items()}
    acts = {"step": training.step, "load_state_dict": lambda: training.model.load_state_dict(other)}
    thread = threading.Thread(target=acts[change])
    thread.start()
    thread.join(0.1)
    is_waiting = thread.is_alive()
    slow.finish()
    thread.join(60)
    assert is_waiting
    assert slow.problems == [None]
    assert (slow.image == 0).all()
    assert (training.weight == 1).all()


def test_forward_and_backward_do_not_wait() -> None:
    training = Training()
    slow = Slow(training)
    training.model(torch.randn(4, 1000)).sum().backward()
    slow.finish()
    assert slow.problems == [None]


def test_all_that_is_no_parameter_is_copied_at_once(tmp_path: Path) -> None:
    training, average, history = Training(), torch.zeros(1000), [1]
    scale = nn.Parameter(torch.zeros(3))  # of no optimizer
    with everstep.Checkpointer(tmp_path) as checkpointer:
        for step in range(1, 20):
            checkpointer.save(
                step, {"model": training.model, "average": average, "history": history, "scale": scale, "n": step}
            )
            average += 1
            history.append(step + 1)
            with torch.no_grad():
                scale.add_(1)
            training.model(torch.randn(4, 1000))  # changes batch norm's statistics
            training.step()
            checkpointer.wait()
            state = checkpointer.load()
            assert (state["average"] == step - 1).all() and (state["scale"] == step - 1).all()
            assert state["history"] == list(range(1, step + 1))
            assert (state["model"]["0.weight"] == step - 1).all()
            assert state["model"]["1.num_batches_tracked"] == step - 1


def test_much_that_may_change_makes_the_save_wait(tmp_path: Path) -> None:
    average = torch.zeros(CLONED_BYTES // 4 + 1)
    with everstep.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"average": average})
        average += 1
        checkpointer.wait()
        assert (checkpointer.load()["average"] == 0).all()


def test_a_parameter_that_is_changed_without_its_optimizer_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = Training()
    slow = Slow(training)
    with torch.no_grad():
        training.model[0].weight.clamp_(-1, 1)
    slow.finish()
    assert "1 tensors" in str(slow.problems[0])
    assert take({"weight": training.weight}).late == []  # from now on it is copied at once


def test_a_save_whose_copy_was_spoilt_says_so_and_is_not_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The copier is kept busy by another copy, so that the change comes before this one."""
    training = Training()
    with everstep.Checkpointer(tmp_path) as checkpointer, caplog.at_level(logging.ERROR):
        hold = threading.Event()
        checkpointer._pipeline._copier.start(Copy(take({}), lambda: [][: hold.wait(60)], lambda problem: None))
        checkpointer.save(1, {"weight": training.model[0].weight})
        with torch.no_grad():
            training.model[0].weight.add_(1)
        hold.set()
        with pytest.raises(CheckpointFailed, match="changed in place"):
            checkpointer.wait()
        assert checkpointer.load() is None
        checkpointer.save(2, {"weight": training.model[0].weight}, wait=True)
        assert (checkpointer.load()["weight"] == 1).all()


def test_a_parameter_that_is_given_other_memory_is_saved_as_it_was() -> None:
    training = Training()
    snapshot = take({"parameters": list(training.model.parameters())})
    training.model[0].weight.data = torch.ones(1, 1000)

    assert not snapshot.value["parameters"][0].any()


def test_a_saved_module_can_still_be_copied_and_pickled() -> None:
    training = Training()
    take({"model": training.model})
    pickled = pickle.dumps(training.model)

    assert b"everstep" not in pickled
    for other in (pickle.loads(pickled), copy.deepcopy(training.model)):
        other.load_state_dict(training.model.state_dict())


def test_tied_weights_are_kept_once(tmp_path: Path) -> None:
    one = nn.Linear(100, 100, bias=False)
    two = nn.Linear(100, 100, bias=False)
    two.weight = one.weight
    with everstep.Checkpointer(tmp_path) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, {"one": one, "two": two}, wait=True)
            assert checkpointer.list()[-1].manifest.size_bytes < 50_000


def test_a_state_of_another_shape_is_drawn_anew(tmp_path: Path) -> None:
    states: list[dict[str, Any]] = [
        {"a": torch.ones(3), "b": 1.5},
        {"a": torch.ones(3) * 2, "b": float("nan")},
        {"a": 2.5, "b": torch.ones(3)},
        {"b": torch.ones(3), "a": torch.ones(2, 3, dtype=torch.complex128)},
        {"x": [torch.ones(3), {"deep": "x" * 10_000}]},
        {"x": [torch.ones(3), {"deep": "x"}]},
    ]
    with everstep.Checkpointer(tmp_path, keep_latest=None) as checkpointer:
        for step, state in enumerate(states * 2):
            checkpointer.save(step, state, wait=True)
            loaded = checkpointer.load()
            assert str(loaded) == str(state)


@pytest.mark.parametrize("is_capturable", [False, True])
def test_tensors_of_an_optimizer_that_may_be_replayed_are_copied_at_once(
    is_capturable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that is replayed as a CUDA graph calls no hook."""
    monkeypatch.setattr(GATE, "_restless", set())  # an earlier test's tensor may have lain at the same address
    weight = nn.Parameter(torch.zeros(1000))
    optimizer = torch.optim.Adam([weight], lr=0.1, capturable=False)
    GATE.hang()
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    optimizer.param_groups[0]["capturable"] = is_capturable
    before = weight.detach().clone()
    snapshot = take({"optimizer": optimizer, "weight": weight})
    with torch.no_grad():
        weight.data.fill_(7.0)  # as the graph would: no hook, no version counter

    assert torch.equal(snapshot.value["weight"], before) == is_capturable
