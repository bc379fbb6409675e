"""A saver that a node has for several jobs, as one of them uses it: another process started it, and it outlives us."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from everstep import env
from everstep.checkpoint.saver.messages import KINDS, AllWritten, AskWritten, Said
from everstep.ipc.local_socket import connect, receive_packet, send_packet
from everstep.launcher.saver_process import WRITE_OUT_S, mark_of
from everstep.waiting import SAID_AFTER_S


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSaver:
    path: Path
    owner: str  # of the states in its memory: the same wherever and whenever this training continues
    is_for_buckets: bool  # its process has the variables that drivers of buckets read in our workers

    @property
    def variables(self) -> dict[str, str]:
        """For workers."""
        return {env.NODE_SAVER: str(self.path), env.SAVER_OWNER: self.owner}

    def await_written(self, say: Callable[[str], None]) -> None:
        """Wait until all that our workers, which have ended, have left in its memory is written."""
        if not mark_of(self.path).exists():  # nothing was saved
            return
        try:
            with closing(connect(self.path)) as line:
                send_packet(line, AskWritten(owner=self.owner))
                deadline = time.monotonic() + WRITE_OUT_S
                speak_at = time.monotonic() + SAID_AFTER_S
                while (now := time.monotonic()) < deadline:
                    if now >= speak_at:
                        say(f"waiting up to {deadline - now:.0f} s for the node's saver, which writes the last states")
                        speak_at = deadline
                    received = receive_packet(line, KINDS, min(deadline, speak_at) - now)
                    if received is not None and isinstance(received[0], Said):
                        say(received[0].text)
                    elif received is not None and isinstance(received[0], AllWritten):
                        return
        except (OSError, EOFError) as problem:
            say(f"the node's saver has ended, with what was only in its memory: {problem or 'it was killed'}")
            return
        say(f"the node's saver is still writing after {WRITE_OUT_S:.0f} s and continues without this agent")
