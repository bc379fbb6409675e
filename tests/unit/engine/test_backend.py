"""How gradients travel: one choice for all workers, with its reason; a request is met or refused."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import everstep
from everstep.engine import process_engine
from everstep.engine.backend import WISHES, Backend, BackendChoice, BackendFacts, check_wish, decide_backend
from everstep.errors import EverstepError, StateMismatch, UsageError
from lab.alone import ended_trainers, make_trainer  # noqa: F401  for all tests here
from lab.command import run
from lab.refused import refused


def on_gpu(number: int, **more: str | bool) -> BackendFacts:
    fact = BackendFacts(
        worker=f"w{number}", wish="auto", device="cuda", gpu=f"GPU-{number}", host="a", nccl="2.28.9", is_tried=True
    )
    return replace(fact, **more)  # type: ignore[arg-type]


def on_cpu(number: int, **more: str | bool) -> BackendFacts:
    fact = BackendFacts(worker=f"w{number}", wish="auto", device="cpu", host="a")
    return replace(fact, **more)  # type: ignore[arg-type]


# --- the rules, one by one ---


def test_workers_with_a_gpu_each_use_nccl() -> None:
    choice = decide_backend([on_gpu(0), on_gpu(1), on_gpu(2)])
    assert choice == BackendChoice(backend=Backend.NCCL, reason="NCCL 2.28.9 on 3 GPUs")


def test_nccl_is_tried_first_if_one_of_them_has_not_used_it() -> None:
    assert decide_backend([on_gpu(0), on_gpu(1, is_tried=False)]).must_try
    assert decide_backend([on_cpu(0, wish="stand-in"), on_cpu(1, wish="stand-in", is_tried=True)]).must_try
    assert not decide_backend([on_cpu(number, wish="stand-in", is_tried=True) for number in (0, 1)]).must_try


def test_gloo_is_never_tried() -> None:
    assert not decide_backend([on_cpu(0), on_cpu(1)]).must_try


def test_one_worker_sums_alone() -> None:
    for wish in WISHES:
        choice = decide_backend([on_gpu(0, wish=wish)])
        assert (choice.backend, choice.reason, choice.must_try) == (Backend.GLOO, "there is only one worker", False)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ([on_cpu(0), on_gpu(1)], "w0 trains on the CPU"),
        ([on_cpu(0), on_gpu(1), on_cpu(2)], "w0 and w2 train on the CPU"),
        ([on_cpu(0), on_cpu(1), on_cpu(2)], "w0, w1 and w2 train on the CPU"),
        ([on_cpu(0, wish="nccl"), on_cpu(1, wish="nccl")], "w0 and w1 train on the CPU"),
        ([on_gpu(0, wish="gloo"), on_gpu(1, wish="gloo")], "requested"),
        ([on_gpu(0), on_gpu(1, nccl="")], "torch on w1 is built without NCCL"),
        ([on_gpu(0, nccl=""), on_gpu(1, nccl="")], "torch on w0 and w1 is built without NCCL"),
        ([on_gpu(0), on_gpu(1, nccl="2.27.3")], "NCCL versions differ: 2.28.9 on w0 and 2.27.3 on w1"),
        ([on_gpu(0), on_gpu(1, gpu="GPU-0")], "w0 and w1 share a GPU, and NCCL needs one for each worker"),
        ([on_gpu(0), on_gpu(1, refusal="w1: it formed no group in 20 s")], "w1: it formed no group in 20 s"),
    ],
)
def test_gloo_is_chosen_with_a_reason(facts: list[BackendFacts], reason: str) -> None:
    assert decide_backend(facts) == BackendChoice(backend=Backend.GLOO, reason=reason)


def test_the_same_gpu_number_on_another_host_is_another_gpu() -> None:
    assert decide_backend([on_gpu(0), on_gpu(1, gpu="GPU-0", host="b")]).backend is Backend.NCCL


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ([on_gpu(0), on_gpu(1, nccl="")], "torch on w1 is built without NCCL"),
        ([on_gpu(0), on_gpu(1, nccl="2.27.3")], "NCCL versions differ: 2.28.9 on w0 and 2.27.3 on w1"),
        ([on_gpu(0), on_gpu(1, gpu="GPU-0")], "w0 and w1 share a GPU, and NCCL needs one for each worker"),
        ([on_gpu(0, refusal="w0: its sum differs"), on_gpu(1)], "w0: its sum differs"),
    ],
)
def test_nccl_that_was_requested_and_cannot_be_used_is_an_error(facts: list[BackendFacts], problem: str) -> None:
    with refused("nccl-cannot-serve", StateMismatch) as caught:
        decide_backend([replace(each, wish="nccl") for each in facts])
    assert caught.value.message == f'backend="nccl", but {problem}'
    assert caught.value.hint == 'fix that, or use backend="auto"'


def test_the_stand_in_is_used_if_requested() -> None:
    choice = decide_backend([on_cpu(0, wish="stand-in"), on_gpu(1, wish="stand-in", nccl="")])
    assert (choice.backend, choice.reason) == (Backend.STAND_IN, "requested")


def test_workers_that_ask_for_different_backends_are_named() -> None:
    with refused("backends-differ", StateMismatch) as caught:
        decide_backend([on_gpu(0, wish="nccl"), on_gpu(1), on_gpu(2)])
    assert caught.value.message == "the workers ask for different backends: nccl on w0 and auto on w1 and w2"
    assert "EVERSTEP_BACKEND" in str(caught.value.hint)


# --- whatever the workers are ---

_WORKERS = st.builds(
    BackendFacts,
    worker=st.just("w"),
    wish=st.sampled_from(WISHES),
    device=st.sampled_from(["cuda", "cuda", "cpu"]),
    gpu=st.sampled_from(["GPU-0", "GPU-1", "GPU-2"]),
    host=st.sampled_from(["a", "b"]),
    nccl=st.sampled_from(["2.28.9", "2.28.9", "2.27.3", ""]),
    refusal=st.sampled_from(["", "", "its sum differs"]),
    is_tried=st.booleans(),
)


@st.composite
def _worlds(draw: st.DrawFn) -> list[BackendFacts]:
    """Mostly with the same wish: a job is one script."""
    facts = draw(st.lists(_WORKERS, min_size=1, max_size=5))
    if draw(st.booleans()) or draw(st.booleans()):
        facts = [replace(each, wish=facts[0].wish) for each in facts]
    return [replace(each, worker=f"w{number}") for number, each in enumerate(facts)]


def _outcome(facts: list[BackendFacts]) -> tuple[object, ...]:
    try:
        choice = decide_backend(facts)
    except EverstepError as error:
        return (error.code,)
    return (choice.backend, choice.must_try)


@given(_worlds(), st.randoms(use_true_random=False))
def test_the_choice_does_not_depend_on_the_order_of_the_workers(
    facts: list[BackendFacts], shuffler: random.Random
) -> None:
    shuffled = list(facts)
    shuffler.shuffle(shuffled)
    assert _outcome(facts) == _outcome(shuffled)


@given(_worlds())
def test_a_request_is_met_or_refused_or_the_reason_says_why_it_does_not_matter(facts: list[BackendFacts]) -> None:
    try:
        choice = decide_backend(facts)
    except StateMismatch:
        return
    (wish,) = {each.wish for each in facts}
    assert choice.reason
    if wish not in ("auto", choice.backend.value):
        assert choice.backend is Backend.GLOO
        assert choice.reason == "there is only one worker" or choice.reason.endswith("on the CPU")


@given(_worlds())
def test_auto_is_never_an_error_and_nccl_is_only_for_workers_with_a_gpu_each(facts: list[BackendFacts]) -> None:
    choice = decide_backend([replace(each, wish="auto") for each in facts])
    if choice.backend is Backend.NCCL:
        assert all(each.device == "cuda" and each.nccl == facts[0].nccl and not each.refusal for each in facts)
        assert not any((a.host, a.gpu) == (b.host, b.gpu) for a, b in itertools.combinations(facts, 2))
        assert choice.must_try == any(not each.is_tried for each in facts)


# --- who chooses ---


@pytest.fixture
def following() -> Iterator[None]:
    yield
    process_engine.close()


def _model() -> nn.Module:
    return nn.Linear(1, 1)


def test_a_script_that_does_not_choose_a_backend_gets_auto() -> None:
    assert make_trainer(_model()).engine.work.backend_wish == "auto"


@pytest.mark.parametrize("wish", WISHES)
def test_the_variable_decides_for_scripts_that_do_not_choose(wish: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERSTEP_BACKEND", wish)
    assert make_trainer(_model()).engine.work.backend_wish == wish
    assert make_trainer(_model(), backend="gloo").engine.work.backend_wish == "gloo"


@pytest.mark.parametrize(
    ("backend", "wish"),
    [
        (None, "stand-in"),
        ("gloo", "gloo"),
        ("nccl", "nccl"),
        ("cpu:gloo", "stand-in"),  # says nothing about CUDA
        ("cpu:gloo,cuda:gloo", "gloo"),
        ("cpu:gloo,cuda:nccl", "nccl"),
    ],
)
def test_init_process_group_takes_precedence_over_the_variable(
    following: None, monkeypatch: pytest.MonkeyPatch, backend: str | None, wish: str
) -> None:
    monkeypatch.setenv("EVERSTEP_BACKEND", "stand-in")
    everstep.init_process_group(backend)
    assert everstep.ElasticTrainer(_model(), micro_batches=1).engine.work.backend_wish == wish


def test_the_trainer_takes_precedence_over_init_process_group(following: None) -> None:
    everstep.init_process_group("gloo")
    trainer = everstep.ElasticTrainer(_model(), micro_batches=1, backend="auto")
    assert trainer.engine.work.backend_wish == "auto"


def test_init_process_group_may_come_after_the_trainer_but_not_change_the_backend_once_it_trains(
    following: None,
) -> None:
    model = _model()
    trainer = everstep.ElasticTrainer(model, micro_batches=1)
    everstep.init_process_group("gloo")
    assert trainer.engine.work.backend_wish == "gloo"
    process_engine.close()

    trainer = everstep.ElasticTrainer(model, micro_batches=1)
    _train_one_step(trainer, model)
    everstep.init_process_group("nccl")
    assert trainer.engine.work.backend_wish == "auto"


ASKS_FOR_NCCL = """
import logging, torch, everstep
logging.basicConfig(level=logging.INFO)
everstep.init_process_group("nccl")
model = torch.nn.Linear(1, 1)
trainer = everstep.ElasticTrainer(model, micro_batches=1)
optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
with trainer.step():
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
torch.distributed.all_reduce(summed := torch.ones(2))
print(trainer.num_steps, summed.tolist())
"""


def test_a_script_that_asks_for_nccl_trains_on_a_machine_without_gpus(tmp_path: Path) -> None:
    done = run(sys.executable, "-c", ASKS_FOR_NCCL, folder=tmp_path)
    assert done.stdout == "1 [1.0, 1.0]\n"
    assert "gradients travel over gloo: there is only one worker" in done.stderr  # requested, so it is logged


def _train_one_step(trainer: everstep.ElasticTrainer, model: nn.Module) -> None:
    optimizer = trainer.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    with trainer.step():
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()


# --- unknown backends ---


def test_an_unknown_backend_is_refused_where_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for wish in WISHES:
        assert check_wish(wish) == wish
    with refused("sum-backend-unknown", UsageError, match="backend='mpi' is unknown"):
        make_trainer(_model(), backend="mpi")
    with (
        refused("sum-backend-unknown", UsageError, match="backend='ucc' is unknown"),
        everstep.pytorch.init(backend="ucc"),
    ):
        pass
    with refused("backend-cannot-follow", UsageError, match="'mpi'"):
        everstep.init_process_group("mpi")
    monkeypatch.setenv("EVERSTEP_BACKEND", "NCCL")
    with refused("sum-backend-unknown", UsageError, match="EVERSTEP_BACKEND='NCCL' is unknown") as caught:
        make_trainer(_model(), backend="gloo")
    assert caught.value.hint == 'use "auto", "gloo", or "nccl"'
