"""Save while a kill -9 hits at each system call in turn; after each, load and tell what was there.

Usage: checkpoint_points.py FOLDER. Children are forked before any thread is started; each dies at its own point."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import torch

import everstep

torch.set_num_threads(1)
Checkpointer = everstep.Checkpointer  # imported here, once, and not in each child
CALLS = ("pwrite", "fsync", "rename", "mkdir", "unlink", "rmdir")
FIRST, LAST = 1, 3  # steps; the kill comes during those after the first


def state(step: int) -> dict[str, Any]:
    return {"w": torch.full((3000,), step), "step": step, "other": [torch.full((step * 10,), step)]}


def die_at(point: int) -> None:
    """At the point-th call from now on: a write has written half of its bytes, the others nothing."""
    left = point

    def deadly(name: str, call: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                if name == "pwrite":
                    call(args[0], args[1][: len(args[1]) // 2], args[2])
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return wrapped

    for name in CALLS:
        setattr(os, name, deadly(name, getattr(os, name)))


def train(folder: Path, point: int, durable: int) -> None:
    checkpointer = Checkpointer(folder, keep_latest=1)
    checkpointer.save(FIRST, state(FIRST), wait=True)
    real_write = os.write
    real_write(durable, b"%d\n" % FIRST)
    die_at(point)
    for step in range(FIRST + 1, LAST + 1):
        checkpointer.save(step, state(step), wait=True)
        real_write(durable, b"%d\n" % step)
    os._exit(0)


def main(base: Path) -> None:
    for point in range(1, 1000):
        folder = base / f"{point}"
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            train(folder, point, writer)
        os.close(writer)
        _, status = os.waitpid(child, 0)
        with open(reader) as lines:
            durable = max(int(line) for line in lines)
        look = os.fork()  # loading starts threads, and we fork again
        if look == 0:
            with Checkpointer(folder, keep_latest=1) as checkpointer:
                loaded = checkpointer.load()
                is_right = all(
                    torch.equal(a, b)
                    for a, b in zip(
                        (loaded["w"], *loaded["other"]),
                        (state(loaded["step"])["w"], *state(loaded["step"])["other"]),
                        strict=True,
                    )
                )
                checkpointer.save(LAST + 1, state(LAST + 1), wait=True)  # life goes on, and what was left is swept
            left = sorted(each.name for each in folder.iterdir())
            fact = {"point": point, "durable": durable, "loaded": loaded["step"], "is_right": is_right, "left": left}
            print(json.dumps(fact), flush=True)
            os._exit(0)
        os.waitpid(look, 0)
        shutil.rmtree(folder)
        if os.WIFEXITED(status):  # it lived: all points were tried
            return


main(Path(sys.argv[1]))
