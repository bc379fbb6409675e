"""Two workers and a long message. One of them dies in the middle of it: what becomes of the other?

mid_message.py recv|send|swap: what the survivor does; swap: only after the death, of which it has not heard. Prints a
JSON line. Whoever receives sees how far the message has come, and the victim is stopped there: then nothing is on its
way but what the sockets hold, a small part of it."""

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

TAG, NUM_BYTES, BEGUN_BYTES = 77, 512 << 20, 1 << 20


def form(rank: int, port: int) -> Group:
    world = World(generation=1, rank=rank, size=2, store_address="127.0.0.1", store_port=port)
    return Group.form(world, "127.0.0.1", "test", has_neighbors=False)


def await_begin(message: torch.Tensor) -> None:
    while not message[BEGUN_BYTES]:
        pass  # quicker than the rest of it comes


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
        if not survivor_receives:
            await_begin(message)
            os.kill(os.getpid(), signal.SIGSTOP)
        signal.pause()
    if survivor_receives:
        await_begin(message)
        os.kill(victim, signal.SIGSTOP)
    os.waitpid(victim, os.WUNTRACED)  # it is stopped, and has said nothing for a while
    time.sleep(0.2)
    os.kill(victim, signal.SIGKILL)
    os.waitpid(victim, 0)

    threading.Timer(1.0, group.break_).start()  # the coordinator closes the generation
    try:
        if sys.argv[1] == "swap":
            group.swap(b"a small one", [11, 11], 78)
        else:
            group.wait([work])
        outcome = "done"
    except PeerLost:
        outcome = "lost"
    before = int(message.count_nonzero())
    time.sleep(0.2)
    group.close()
    is_still = before == int(message.count_nonzero())
    print(json.dumps({"outcome": outcome, "is_still": is_still}), flush=True)


if __name__ == "__main__":
    main()
