"""Asks Optuna for the samples of model-based searches. It runs in a process of its own: this one imports no numpy.

One process for all experiments, started when there is a question, and ended when there was none for a while. A process
that dies is replaced and asked again: its answer depends on the question only."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from typing import IO, Any

from everstep import wire
from everstep.errors import PermanentError, UsageError
from everstep.process import Child, program_command
from everstep.search.config import SearchConfig
from everstep.search.events import Ask, Suggested
from everstep.search.optuna_process import missing_packages, question

log = logging.getLogger(__name__)

IDLE_S = 60.0
ANSWER_S = 600.0  # a Gaussian process over thousands of results is slow; one that takes longer hangs
MOST_TRIES = 3
_LONGEST_ANSWER = 1 << 26  # bytes
_MODULE = "everstep.search.optuna_process"


class Suggester:
    """Use it in one event loop, whose thread the process ends with."""

    def __init__(self, *, idle_s: float = IDLE_S, answer_s: float = ANSWER_S) -> None:
        self._idle_s, self._answer_s = idle_s, answer_s
        self._process: _ModelProcess | None = None
        self._turn = asyncio.Lock()
        self._ending: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """Of the process, if there is one."""
        return None if self._process is None else self._process.pid

    async def suggest(self, spec: wire.ExperimentSpec, config: SearchConfig, ask: Ask) -> Suggested:
        """The answer to Ask. An error ends the experiment with its text."""
        _check_packages(config.name)
        asked = question(
            ask,
            sampler=config.name,
            seed=spec.seed,
            smaller_is_better=config.smaller_is_better,
            hyperparameters=spec.hyperparameters,
            num_micro_batches=spec.num_micro_batches,
        )
        async with self._turn:
            self._keep()
            try:
                return Suggested(cohort=ask.cohort, hparams=await self._ask_until_answered(config.name, asked))
            finally:
                self._ending = asyncio.get_running_loop().call_later(self._idle_s, self.close)

    async def _ask_until_answered(self, sampler: str, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        problem = ""
        for attempt in range(MOST_TRIES):
            if self._process is None:
                self._process = await _ModelProcess.start()
            try:
                return await asyncio.wait_for(self._process.ask(asked), self._answer_s)
            except EOFError as death:
                problem = str(death)
            except asyncio.TimeoutError:
                problem = f"no answer within {self._answer_s:g} s"
            finally:
                if self._process is not None and not self._process.is_ready:
                    self.close()  # an answer that comes too late must not be taken for that to the next question
            log.warning("%s did not answer (try %d of %d): %s", sampler, attempt + 1, MOST_TRIES, problem)
        raise PermanentError(
            f"{sampler} did not answer {MOST_TRIES} times: {problem}",
            hint="the coordinator's log has more; searcher.name: random needs no model",
            code="search-model-died",
        )

    def _keep(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None

    def close(self) -> None:
        self._keep()
        if self._process is not None:
            self._process.close()
            self._process = None


class _ModelProcess:
    def __init__(
        self, child: Child, replies: asyncio.StreamReader, pipes: tuple[asyncio.ReadTransport, asyncio.WriteTransport],
        errors: IO[bytes],
    ) -> None:  # fmt: skip
        self._child, self._replies, self._pipes, self._errors = child, replies, pipes, errors
        self.pid = child.pid
        self.is_ready = True  # for a question

    @classmethod
    async def start(cls) -> _ModelProcess:
        requests, asks = os.pipe()
        answers, replies = os.pipe()
        errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        try:
            command = program_command(_MODULE, str(requests), str(replies))
            child = Child.start(command, output=errors, descriptors=(requests, replies))
        finally:
            os.close(requests)
            os.close(replies)
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=_LONGEST_ANSWER)
        read, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(answers, "rb"))
        write, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(asks, "wb"))
        return cls(child, reader, (read, write), errors)

    async def ask(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        self.is_ready = False
        self._pipes[1].write(json.dumps(asked).encode() + b"\n")
        line = await self._replies.readline()
        if not line.endswith(b"\n"):
            raise EOFError(f"its process ended: {self._child.kill()}{self._last_words()}")
        answer: Mapping[str, Any] = json.loads(line)
        self.is_ready = True
        return answer

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""

    def close(self) -> None:
        self._child.kill()
        for pipe in self._pipes:
            pipe.close()
        self._errors.close()


def _check_packages(sampler: str) -> None:
    if missing := missing_packages(sampler):
        more = " and torch" if "torch" in missing else ""
        raise UsageError(
            f"searcher {sampler} needs {', '.join(missing)}, missing where the coordinator runs",
            hint=f"there: pip install 'everstep[search]'{more}",
            code="search-package-missing",
        )
