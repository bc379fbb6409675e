"""When a pool's agent leaves by itself: before its node ends, or once the coordinator has been away for long."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from everstep.ipc.event_loop import EventLoop

_LOOK_S = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaveTimes:
    until: float = 0.0  # time of day; 0: no end
    patience_s: float = 0.0  # without the coordinator; 0: forever


def decide_leave(times: LeaveTimes, *, now: float, silent_s: float) -> str:
    """Why the node leaves now; "" if it stays."""
    if times.until and now >= times.until:
        return "the node's time is up"
    if times.patience_s and silent_s >= times.patience_s:
        return f"the coordinator has been away for {silent_s:.0f} s"
    return ""


def leave_in_time(
    loop: EventLoop, times: LeaveTimes, silent_s: Callable[[], float], leave: Callable[[str], None]
) -> None:
    """Check regularly, as long as the loop runs, whether it is time to leave."""
    if not times.until and not times.patience_s:
        return

    def look() -> None:
        if reason := decide_leave(times, now=time.time(), silent_s=silent_s()):
            leave(reason)
            return
        left_s = [_LOOK_S]
        if times.until:
            left_s.append(times.until - time.time())
        if times.patience_s:
            left_s.append(times.patience_s - silent_s())
        loop.after(max(0.05, min(left_s)), look)

    look()
