"""Asks Optuna for the samples of model-based searches. Optuna runs in its own process: this one imports no numpy.

One process for all experiments. It starts with the first question and ends after a while without one. A process that
dies is replaced and asked again: its answer depends only on the question."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from typing import IO, Any

from everstep import wire
from everstep.errors import PermanentError, UsageError
from everstep.process import Child, program_command
from everstep.search.config import SearchConfig
from everstep.search.events import Ask, Suggested
from everstep.search.optuna_process import missing_packages, question

log = logging.getLogger(__name__)

IDLE_S = 60.0
ANSWER_S = 600.0  # a Gaussian process over thousands of results is slow; a longer wait means that it hangs
MOST_TRIES = 3
_LONGEST_ANSWER = 1 << 26  # bytes
_MODULE = "everstep.search.optuna_process"


class Suggester:
    """Use it in one event loop: Optuna's process ends with the thread of that loop."""

    def __init__(self, *, idle_s: float = IDLE_S, answer_s: float = ANSWER_S) -> None:
        self._idle_s, self._answer_s = idle_s, answer_s
        self._process: _ModelProcess | None = None
        self._turn = asyncio.Lock()
        self._ending: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """Optuna's process; None if it is not running."""
        return None if self._process is None else self._process.pid

    async def suggest(self, spec: wire.ExperimentSpec, config: SearchConfig, ask: Ask) -> Suggested:
        """The answer to Ask. An error ends the experiment with its text."""
        check_packages(config.name)
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
            try:
                self._process = self._process or await _ModelProcess.start()
                return await asyncio.wait_for(self._process.ask(asked), self._answer_s)
            except EOFError as death:
                problem = str(death)
            except asyncio.TimeoutError:
                problem = f"no answer within {self._answer_s:g} s"
            except OSError as error:  # too many open files, no memory, a full disk
                problem = f"its process cannot be started: {error}"
            finally:
                if self._process is not None and not self._process.is_ready:
                    self.close()  # a late answer must not be mistaken for the answer to the next question
            log.warning("%s did not answer (try %d of %d): %s", sampler, attempt + 1, MOST_TRIES, problem)
        raise PermanentError(
            f"{sampler} did not answer {MOST_TRIES} times: {problem}",
            hint="see the coordinator's log; searcher.name: random needs no model",
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
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=_LONGEST_ANSWER)
        with ExitStack() as undo:
            errors = undo.enter_context(tempfile.TemporaryFile())
            with ExitStack() as theirs:
                requests, asks = _pipe()
                theirs.callback(requests.close)
                undo.callback(asks.close)
                answers, replies = _pipe()
                theirs.callback(replies.close)
                undo.callback(answers.close)
                descriptors = (requests.fileno(), replies.fileno())
                command = program_command(_MODULE, *map(str, descriptors))
                child = Child.start(command, output=errors, descriptors=descriptors)
                undo.callback(child.kill)
            read, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), answers)
            undo.callback(read.close)
            write, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, asks)
            undo.pop_all()
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


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    read, write = os.pipe()
    return os.fdopen(read, "rb"), os.fdopen(write, "wb")


def check_packages(sampler: str) -> None:
    if missing := missing_packages(sampler):
        more = " and torch" if "torch" in missing else ""
        raise UsageError(
            f"searcher {sampler} needs {', '.join(missing)}, which the coordinator's Python does not have",
            hint=f"on the coordinator's machine: pip install 'everstep[search]'{more}",
            code="search-package-missing",
        )
