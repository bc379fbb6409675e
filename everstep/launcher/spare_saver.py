"""A process that is forked early, from a process without threads, and becomes the saver if one is needed.

A start of python and its imports take a quarter of a second of a core, while the first trial of a node trains. It ends
if it is not needed, or if this process ends before."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from everstep import env
from everstep.checkpoint.saver import process as saver
from everstep.ipc.local_socket import pair, receive_packet, send_packet
from everstep.process import reap_detached


@dataclass(frozen=True, kw_only=True, slots=True)
class BecomeSaver:
    """With three files: what it prints to, then those of the saver's arguments; further arguments follow."""

    environment: dict[str, str]
    arguments: list[str]


_KINDS = {BecomeSaver.__name__: BecomeSaver}


class SpareSaver:
    """Good for one saver. `with`: it is there."""

    def __enter__(self) -> SpareSaver:
        self._line, theirs = pair()
        self._pid = os.fork()
        if self._pid == 0:
            self._line.close()
            _wait(theirs)
        theirs.close()
        self.is_used = False
        return self

    def __exit__(self, *error: object) -> None:
        self._line.close()
        if not self.is_used:
            reap_detached(self._pid)

    def start(
        self, environment: Mapping[str, str], output: IO[bytes], files: Sequence[int], arguments: Sequence[str]
    ) -> int:
        """Its number, as of any process that outlives us. OSError: it is gone."""
        order = BecomeSaver(environment=dict(environment), arguments=list(arguments))
        send_packet(self._line, order, (output.fileno(), *files))
        self.is_used = True
        return self._pid


def _wait(line: socket.socket) -> None:
    """In the fork; never returns."""
    code = 1
    try:
        os.setsid()
        _become(line)
        code = 0
    except EOFError:
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # what its parent registered for its own end is not this one's


def _become(line: socket.socket) -> None:
    received = receive_packet(line, _KINDS)
    assert received is not None
    order, (output, *files) = received
    line.close()
    for place in (1, 2):
        os.dup2(output, place)
    os.close(output)
    env.replace(order.environment)
    sys.argv = ["everstep-saver", *map(str, files), *order.arguments]
    saver.main()
