"""The nursery's program: become warm, serve, and in each fork be a worker.

    python -u -c 'from everstep.nursery.main import main; main()' DESCRIPTOR KIND [PATH]

KIND is what its forks will be: "workers", or "trials", which have more imported; or, without torch, "control" for the
coordinator and "nodes" for the agents of a pool's trials.
DESCRIPTOR is either the one connection to an agent, with which the nursery ends, or with PATH a listening socket: then
agents come and go, and the nursery ends when it has been idle for as long as the last of them asked."""

from __future__ import annotations

import gc
import os
import socket
import sys

from everstep import env
from everstep.nursery import exit
from everstep.nursery.programs import read_early


def main() -> None:
    gc.disable()  # nothing that an import makes is garbage
    line = socket.socket(fileno=int(sys.argv[1]))
    line.set_inheritable(False)
    from everstep.nursery.preload import preload
    from everstep.nursery.server import NurseryServer
    from everstep.nursery.worker import become

    environment = read_early(env.everything())
    problem = preload(sys.argv[2])
    exit.spare_what_is_here()
    gc.freeze()  # or the garbage collector of every fork would write to, and so copy, every page
    forked = NurseryServer(line, path="".join(sys.argv[3:]), problem=problem).serve()
    if forked is None:
        os._exit(0)
    asked = None
    try:
        become(forked, environment=environment)
    except SystemExit as error:
        asked = error.with_traceback(None)
    exit.end_with(asked)
