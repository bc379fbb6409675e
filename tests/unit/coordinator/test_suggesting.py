"""Optuna at the coordinator: one process, kept while it is needed, replaced when it dies."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys

import pytest

from everstep import wire
from everstep.coordinator.experiments.suggesting import Suggester
from everstep.errors import EverstepError
from everstep.search.config import read_searcher
from everstep.search.events import Ask, Suggested

GIVEN = {"lr": {"log": [1e-5, 1e-1]}, "width": 64}
SPEC = wire.ExperimentSpec(
    request="r", searcher={"name": "tpe", "metric": "loss", "max_trials": 16}, hyperparameters=GIVEN, seed=7
)
CONFIG = read_searcher(SPEC.searcher)
FIRST = Ask(cohort=0, trials=(1, 2), cohort_size=2, results=())
SECOND = Ask(cohort=1, trials=(3, 4), cohort_size=2, results=((1, 0.5), (2, 0.25)))


def asked(*asks: Ask, between=lambda suggester: None, **more: float):
    """The answers, and the process after each."""

    async def ask() -> list:
        suggester = Suggester(**more)
        found = []
        try:
            for each in asks:
                answer = await suggester.suggest(SPEC, CONFIG, each)
                found.append((answer, suggester.pid))
                between(suggester)
            return found
        finally:
            suggester.close()

    return asyncio.run(ask())


@pytest.fixture(autouse=True)
def _needs_optuna():
    pytest.importorskip("optuna")


def test_one_process_answers_all_questions_and_ends_with_its_owner():
    (first, pid), (second, same) = asked(FIRST, SECOND)
    assert pid == same and sorted(first.hparams) == ["1", "2"] and sorted(second.hparams) == ["3", "4"]
    assert first.hparams["1"]["width"] == 64 and first.cohort == 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_batches_are_chosen_for_the_micro_batches_of_the_experiment():
    given = {"global_batch_size": {"int": [1, 64]}}
    spec = wire.ExperimentSpec(request="r", searcher=SPEC.searcher, hyperparameters=given, num_micro_batches=16, seed=7)

    async def ask() -> Suggested:
        suggester = Suggester()
        try:
            return await suggester.suggest(spec, CONFIG, FIRST)
        finally:
            suggester.close()

    assert {each["global_batch_size"] % 16 for each in asyncio.run(ask()).hparams.values()} == {0}


def test_a_process_that_died_is_replaced_and_answers_the_same():
    quiet = [answer for answer, _ in asked(FIRST, SECOND)]
    killed = asked(FIRST, SECOND, between=lambda suggester: os.kill(suggester.pid, signal.SIGKILL))
    assert [answer for answer, _ in killed] == quiet and killed[0][1] != killed[1][1]


def test_a_process_that_hangs_is_replaced():
    def freeze(suggester: Suggester) -> None:
        os.kill(suggester.pid, signal.SIGSTOP)

    (_, pid), (_, other) = asked(FIRST, SECOND, between=freeze, answer_s=10.0)
    assert pid != other


def test_an_idle_process_ends():
    async def idle() -> tuple[int | None, int | None]:
        suggester = Suggester(idle_s=0.0)
        await suggester.suggest(SPEC, CONFIG, FIRST)
        pid = suggester.pid
        while suggester.pid is not None:
            await asyncio.sleep(0)
        answer = await suggester.suggest(SPEC, CONFIG, SECOND)
        suggester.close()
        assert sorted(answer.hparams) == ["3", "4"]
        return pid, suggester.pid

    pid, after = asyncio.run(idle())
    assert pid is not None and after is None


def test_a_question_that_always_kills_the_process_is_an_error_with_its_last_words():
    bad = Ask(cohort=0, trials=(1, 2), cohort_size=2, results=((1, 0.5, "more"),))  # type: ignore[arg-type]
    with pytest.raises(EverstepError) as error:
        asked(bad)
    assert error.value.code == "search-model-died" and "ValueError" in error.value.message


def open_files() -> set[int]:
    return {each for each in range(256) if os.path.exists(f"/proc/self/fd/{each}")}


def test_a_process_that_cannot_be_started_is_an_error_and_leaves_nothing_open():
    async def ask_with_few_files() -> list[str]:
        suggester, said = Suggester(), list[str]()
        await suggester.suggest(SPEC, CONFIG, FIRST)
        suggester.close()
        await asyncio.sleep(0)  # its pipes are closed by then
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        before = open_files()
        free = [each for each in range(256) if each not in before]
        for limit in free[:4]:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            try:
                with pytest.raises(EverstepError) as error:
                    await suggester.suggest(SPEC, CONFIG, FIRST)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert open_files() == before
            said.append(error.value.code)
        suggester.close()
        return said

    assert asyncio.run(ask_with_few_files()) == ["search-model-died"] * 4


def test_a_missing_package_is_named_with_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(EverstepError) as error:
        asked(FIRST)
    assert error.value.code == "search-package-missing" and "everstep[search]" in (error.value.hint or "")


def test_the_coordinator_imports_neither_torch_nor_numpy_nor_optuna_for_it():
    code = (
        "import sys, everstep.coordinator.experiments.suggesting;print({'optuna', 'numpy', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
