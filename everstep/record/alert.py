"""`everstep.alert`: a message from a trial's script to the webhooks of its experiment.

    everstep.alert("the loss is not finite", f"step {step}", level="error")

Any worker may call it. If several say the same, it is sent once: the coordinator recognizes it by its content, the
generation, and how often this worker has said it in this generation. The call returns when the coordinator has it, or
after two seconds, and sends the rest in the background. The alert is also logged. Outside a trial, it is only
logged."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import logging
import queue
import threading
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from everstep import env
from everstep.client.calls import Coordinator
from everstep.errors import Abandoned, EverstepError, UsageError
from everstep.record.standing import current
from everstep.record.trial import current_trial
from everstep.retry import patiently
from everstep.wire.webhooks import ALERT_LEVELS, MOST_DESCRIPTION, MOST_TITLE, Alert

log = logging.getLogger("everstep")

WAIT_S = 2.0  # for the coordinator, at each call
CLOSE_S = 5.0  # for all that wait, at the end of the script
_LEVELS = {name: getattr(logging, name.upper()) for name in ALERT_LEVELS}
_HINT = 'everstep.alert("the loss is not finite", f"step {step}", level="error")'

_sender: _AlertSender | None = None
_said: Counter[str] = Counter()


def alert(title: str, description: str = "", level: str = "info") -> None:
    """Send this to the webhooks of the trial's experiment that have `alert` among their triggers."""
    global _sender
    message = _checked(title, description, level)
    log.log(_LEVELS[level], "alert: %s%s", title, f": {description}" if description else "")
    if current_trial() is None:
        return
    if _sender is None:
        _sender = _AlertSender()
        atexit.register(_sender.close)
    _sender.send(message)


def _checked(title: str, description: str, level: str) -> Alert:
    for name, text, most in (("title", title, MOST_TITLE), ("description", description, MOST_DESCRIPTION)):
        if not isinstance(text, str) or len(text) > most or "\0" in text:
            problem = f"alert(): {name} must be a text of at most {most} characters, not {str(text)[:40]!r}"
            raise UsageError(problem, hint=_HINT, code="alert-text-invalid")
    if not title:
        raise UsageError("alert(): the title is empty", hint=_HINT, code="alert-text-invalid")
    if level not in ALERT_LEVELS:
        problem = f"alert(): level must be one of {', '.join(ALERT_LEVELS)}, not {str(level)[:40]!r}"
        raise UsageError(problem, hint=_HINT, code="alert-level-unknown")
    return Alert(request=_name_of(title, description, level), title=title, description=description, level=level)


def _name_of(title: str, description: str, level: str) -> str:
    """The same for all workers that say the same for the same time."""
    content = json.dumps([current().generation, title, description, level])
    _said[content] += 1
    return hashlib.sha256(f"{content} {_said[content]}".encode()).hexdigest()[:32]


@dataclass(slots=True, eq=False)
class _WaitingAlert:
    alert: Alert
    is_done: threading.Event = field(default_factory=threading.Event)


class _AlertSender:
    """Owns its connection, and a thread that sends one alert after the other."""

    def __init__(self) -> None:
        token = env.token()
        if token is None:
            raise UsageError(
                f"{env.TRIAL} is set, but there is no token",
                hint=f"set {env.TOKEN_FILE} to the coordinator's token file (mode 0600), or {env.TOKEN}",
                code="token-missing",
            )
        self._coordinator = Coordinator(env.coordinator_url() or "", token, env.job())
        self._waiting: queue.Queue[_WaitingAlert | None] = queue.Queue()
        self._has_given_up = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name="everstep-alerts", daemon=True)
        self._thread.start()

    def send(self, message: Alert) -> None:
        waiting = _WaitingAlert(message)
        self._waiting.put(waiting)
        if not waiting.is_done.wait(WAIT_S):
            log.warning("alerts wait for the coordinator")

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join(CLOSE_S)
        self._has_given_up.set()
        num_lost = sum(each is not None for each in _emptied(self._waiting)) + self._thread.is_alive()
        if num_lost:
            log.warning("%d alerts did not reach the coordinator within %g s", num_lost, CLOSE_S)
        self._coordinator.close()

    def _send_all(self) -> None:
        while (waiting := self._waiting.get()) is not None and not self._has_given_up.is_set():
            self._send(waiting.alert)
            waiting.is_done.set()

    def _send(self, message: Alert) -> None:
        try:
            call = partial(self._coordinator.alert, message)
            kept = patiently(call, env.coordinator_deadline_s(), stop=self._has_given_up)
        except Abandoned:
            return
        except EverstepError as error:
            log.warning("alert %r was not sent: %s", message.title, error.message)
            return
        if not kept.num_webhooks:
            log.info("no webhook gets the alert: none of this experiment has the trigger `alert`")


def _emptied(waiting: queue.Queue[_WaitingAlert | None]) -> list[_WaitingAlert | None]:
    found = []
    with contextlib.suppress(queue.Empty):
        while True:
            found.append(waiting.get_nowait())
    return found
