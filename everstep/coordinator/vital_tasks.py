"""Tasks without which the coordinator must not continue."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

log = logging.getLogger(__name__)


def die_if_failed(task: asyncio.Task[None]) -> None:
    """A coordinator that cannot decide must not pretend to: everything is in the store for the next one."""
    if not task.cancelled() and (error := task.exception()):
        die("the coordinator failed and stops", error)


def die(reason: str, error: BaseException) -> None:
    log.critical("%s: %s", reason, error, exc_info=error)
    os.kill(os.getpid(), signal.SIGTERM)
