"""Two workers and a long message. One of them dies in the middle of it: what becomes of the other?

mid_message.py recv|send|swap: what the survivor does; swap: only after the death, of which it has not heard. Prints a
JSON line."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

from everstep.engine.group import Group
from everstep.engine.world import World
from everstep.errors import PeerLost

TAG, NUM_BYTES = 77, 512 << 20


def form(rank: int, port: int) -> Group:
    world = World(generation=1, rank=rank, size=2, store_address="127.0.0.1", store_port=port)
    return Group.form(world, "127.0.0.1", "test")


def main() -> None:
    survivor_receives = sys.argv[1] == "recv"
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    victim = os.fork()
    group = form(0 if victim else 1, server.port)
    message = torch.zeros(NUM_BYTES, dtype=torch.uint8)
    if bool(victim) == survivor_receives:
        work = group.recv(message, 1 if victim else 0, TAG)
    else:
        work = group.send(message.fill_(1), 1 if victim else 0, TAG)
    if not victim:
        dist.TCPStore("127.0.0.1", server.port, is_master=False).set("under way", "1")
        signal.pause()
    server.wait(["under way"])
    os.kill(victim, signal.SIGSTOP)  # the message is begun, and does not fit into the sockets' buffers
    time.sleep(0.2)
    os.kill(victim, signal.SIGKILL)
    os.waitpid(victim, 0)

    threading.Timer(1.0, group.break_).start()  # the coordinator closes the generation
    began = time.monotonic()
    try:
        if sys.argv[1] == "swap":
            group.swap(b"a small one", [11, 11], 78)
        else:
            group.wait([work])
        outcome = "done"
    except PeerLost:
        outcome = "lost"
    waited_s = time.monotonic() - began
    before = int(message.count_nonzero())
    time.sleep(0.2)
    group.close()
    is_still = before == int(message.count_nonzero())
    print(json.dumps({"outcome": outcome, "waited_s": waited_s, "is_still": is_still}), flush=True)


if __name__ == "__main__":
    main()
