"""A worker without a model: goes through the protocol by hand, one step per heartbeat, and reports how it went.

puppet.py NUM_STEPS [WORKER THAT HANGS]: waits at gates (gates.py)."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
import uuid

from gates import pass_gate

from everstep import env
from everstep.client.calls import Coordinator
from everstep.errors import JobStopped
from everstep.events import emit
from everstep.ipc.progress_page import ProgressPage
from everstep.retry import patiently
from everstep.wire import COMPUTING, OUTSIDE, WAITING, Announce, Arrive, Arrived, Broken, Leave, Settled, Watch

PATIENCE_S = 60.0


class Puppet:
    def __init__(self, coordinator: Coordinator, num_steps: int) -> None:
        self.coordinator, self.num_steps = coordinator, num_steps
        self.worker, self.incarnation = env.worker(), uuid.uuid4().hex
        self.board = ProgressPage(env.value(env.BOARD))
        self.step, self.generation, self.settled = 0, 0, 0

    def announce(self) -> None:
        message = Announce(
            incarnation=self.incarnation, pid=os.getpid(), address="127.0.0.1", store_port=1, probe_port=1
        )
        patiently(lambda: self.coordinator.announce(self.worker, message), PATIENCE_S)

    def join(self) -> None:
        """Arrive until a generation is formed, and hold its state at once."""
        arrived = Arrived(is_formed=False, is_stopped=False, reason="")
        while not arrived.is_formed:
            message = Arrive(
                incarnation=self.incarnation,
                generation=self.generation,
                settled=self.settled,
                step=self.step,
                max_workers=None,
            )
            arrived = patiently(lambda message=message: self.coordinator.arrive(self.worker, message), PATIENCE_S)
            if arrived.is_stopped:
                raise JobStopped(arrived.reason)
        if self.settled == 0 and arrived.generation > 1:  # a newcomer gets its peers' state; the first ones have none
            self.step = max(worker.step for worker in patiently(self.coordinator.view, PATIENCE_S).workers)
        self.generation = self.settled = arrived.generation
        settled = Settled(incarnation=self.incarnation, generation=self.generation, step=self.step)
        patiently(lambda: self.coordinator.settled(self.worker, settled), PATIENCE_S)
        emit("generation.joined", generation=self.generation, rank=arrived.rank, size=arrived.size)

    def train(self, hanging: str) -> None:
        seen, began = 0, time.monotonic()
        while self.step < self.num_steps:
            pass_gate(self.step)
            is_stuck = bool(hanging) and self.step == 2
            phase = OUTSIDE if not is_stuck else COMPUTING if hanging == self.worker else WAITING
            if phase not in (OUTSIDE, self.board.progress.phase):
                self.board.write(step=self.step, micro_batch=-1, phase=phase)
            message = Watch(
                incarnation=self.incarnation,
                generation=self.generation,
                seen=seen,
                step=self.step,
                phase=phase,
                phase_s=time.monotonic() - began if is_stuck else 0.0,
                longest_step_s=0.0,
                longest_wait_s=0.0,
            )
            watched = patiently(lambda message=message: self.coordinator.watch(self.worker, message), PATIENCE_S)
            seen = watched.seen
            if watched.is_stopped:
                raise JobStopped(watched.reason)
            if watched.is_closed and is_stuck and hanging == self.worker:
                threading.Event().wait()  # one that really hangs hears nothing
            if watched.newcomers:
                self.make_room(f"{watched.newcomers} wait to be let in")
            if watched.newcomers or watched.is_closed:
                self.join()
                seen, hanging, is_stuck = 0, "", False
            if is_stuck:
                continue
            self.step, began = self.step + 1, time.monotonic()
            self.board.write(step=self.step, micro_batch=-1, phase=OUTSIDE)
            emit("step.committed", step=self.step, generation=self.generation)

    def make_room(self, reason: str) -> None:
        message = Broken(incarnation=self.incarnation, generation=self.generation, reason=reason)
        patiently(lambda: self.coordinator.broken(self.worker, message), PATIENCE_S)

    def leave(self) -> None:
        while True:
            message = Leave(
                incarnation=self.incarnation, generation=self.generation, step=self.step, reason="all steps are done"
            )
            left = patiently(lambda message=message: self.coordinator.leave(self.worker, message), PATIENCE_S)
            if left.is_released:
                return
            if left.is_closed:
                self.join()


def main() -> None:
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    url, token = env.coordinator_url(), env.token()
    assert url is not None
    assert token is not None
    with Coordinator(url, token, env.job()) as coordinator:
        puppet = Puppet(coordinator, int(sys.argv[1]))
        puppet.announce()
        puppet.join()
        puppet.train("".join(sys.argv[2:]))
        puppet.leave()
    emit("result", weights_digest=f"steps {puppet.step}")
    print("done")


if __name__ == "__main__":
    main()
