"""Report durable checkpoints to the coordinator, so that they can be found by UUID from anywhere.

A thread sends; training never waits for it, and never ends because of it. While the coordinator is unreachable,
reports are kept and sent later. A report that is refused, or still waiting at the end, is logged."""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections.abc import Callable
from functools import partial

from everstep import env
from everstep.client.calls import Coordinator
from everstep.errors import Abandoned, EverstepError
from everstep.retry import patiently
from everstep.wire.trials import CheckpointReport

log = logging.getLogger("everstep")

CLOSE_S = 5.0


def open_reports() -> CheckpointReports | None:
    """To this job's coordinator; None outside a job."""
    url, token = env.coordinator_url(), env.token()
    return CheckpointReports(Coordinator(url, token, env.job())) if url and token else None


class CheckpointReports:
    """Owns the coordinator's client. Call it with a function that makes a report, for each, and close it at the end.
    The function is called in the thread: it may read from storage."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._waiting: queue.Queue[Callable[[], CheckpointReport] | None] = queue.Queue()  # None: the end
        self._has_given_up = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, make: Callable[[], CheckpointReport]) -> None:
        self._waiting.put(make)
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_all, name="job-checkpoints", daemon=True)
            self._thread.start()

    def wait(self, deadline_s: float) -> bool:
        """Until all are known there, or were refused. False: not in time."""
        done = self._waiting.all_tasks_done
        with done:
            return done.wait_for(lambda: not self._waiting.unfinished_tasks, deadline_s)

    def close(self, deadline_s: float = CLOSE_S) -> None:
        if not self.wait(deadline_s):
            log.warning("the coordinator did not confirm the reports of the last checkpoints within %g s", deadline_s)
        self._has_given_up.set()
        self._waiting.put(None)
        self._coordinator.close()

    def _send_all(self) -> None:
        while (make := self._waiting.get()) is not None:
            try:
                send = partial(self._coordinator.report_checkpoint, make())
                patiently(send, math.inf, stop=self._has_given_up)
            except Abandoned:
                return
            except (EverstepError, OSError) as error:
                log.warning("a checkpoint could not be reported to the coordinator: %s", error)
            finally:
                self._waiting.task_done()
