"""Warm before ready: a newcomer runs the loop body once, and throws the result away, before it tells the others that it
is ready.

The first pass through a body can be slow: CUDA, cuDNN and NCCL start, and torch.compile compiles. Memory for the
others' state has to be found, too (state_room.py). Meanwhile, the others keep training. To the script, a rehearsal
looks like a micro-batch that is not its last: optimizers, schedulers and scalers do nothing. Afterward, random streams,
buffers and gradients are as they were; step and position never move. When the rehearsal ends, the worker joins the
others and gets their state, so no script continues with its own state. What a script does once per step, or only on the
first worker, begins with its next micro-batch."""

from __future__ import annotations

import logging
import time

from everstep.engine.backend import Backend
from everstep.engine.communicator import start_nccl
from everstep.engine.plan import MicroBatch
from everstep.engine.regroup import EngineState, Regrouping
from everstep.engine.seeds import RandomStreams
from everstep.engine.step_work import StepWork
from everstep.events import emit

log = logging.getLogger("everstep")


class Rehearsal:
    """At most one per process."""

    def __init__(self, regrouping: Regrouping, work: StepWork) -> None:
        self._regrouping = regrouping
        self._work = work
        self._is_over = False
        self._streams: RandomStreams | None = None
        self._began_at = 0.0

    @property
    def is_due(self) -> bool:
        """This worker joins a running job and has not run its body yet."""
        regrouping = self._regrouping
        return not self._is_over and regrouping.state is EngineState.ALONE and not regrouping.is_asked_to_leave

    def offer(self) -> MicroBatch:
        """The micro-batch to rehearse; its data may be read from now on."""
        self._streams = RandomStreams.now()
        return MicroBatch(step=self._work.step, index=0, is_ghost=True, is_rehearsal=True)

    def begin(self) -> None:
        self._began_at = time.monotonic()
        self._regrouping.is_rehearsing, self._regrouping.rehearsed_step = True, self._work.step

    def stop(self) -> None:
        """The body has ended or raised an error. It is not rehearsed again: the next pass counts."""
        self._is_over, self._regrouping.is_rehearsing = True, False
        self._work.gradients.abandon()
        self._work.buffers.restore()
        self._work.buffers.commit()
        if self._streams is not None:
            self._streams.restore()

    def join(self) -> None:
        """The rehearsal is complete: join the others and get their state."""
        if self._work.backend_wish != Backend.GLOO.value:
            start_nccl(self._work.sum.layout.device)
        state_bytes = self._regrouping.make_room()
        seconds = time.monotonic() - self._began_at
        emit("worker.warmed", seconds=seconds, state_bytes=state_bytes)
        log.info("warmed up in %.1f s", seconds)
        self._regrouping.be_ready()
