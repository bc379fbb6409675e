"""Worlds of real processes, forked from one that has imported torch once. A test asks for a story by its name; each
rank plays its part and reports the result.

A rank that is killed or frozen is lost: the others are told so, as a coordinator would tell them."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from everstep.engine.group import Group, GroupForming
from everstep.engine.world import World
from everstep.process import ENDED, STOPPED, process_state
from lab.command import ROOT, environment

STORY_S = 240.0  # none takes a tenth of it
READY = "ready\n"
_LOOK_S = 0.02

Play = Callable[..., list[Any]]
_fork = multiprocessing.get_context("fork")


@contextmanager
def stage(script: Path) -> Iterator[Play]:
    """Starts a script that ends in `serve`. Yields a function that plays a story, given its size, name, and settings,
    and returns what each rank reported; None: the rank was lost."""
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env=environment(PYTHONPATH=f"{ROOT}{os.pathsep}{ROOT / 'tests'}", OMP_NUM_THREADS="1"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None

    def play(size: int, story: str, **settings: Any) -> list[Any]:
        process.stdin.write(json.dumps([size, story, settings]) + "\n")
        process.stdin.flush()
        told = json.loads(process.stdout.readline())
        failures = [each["failure"] for each in told if each is not None and "failure" in each]
        assert not failures, "\n".join(failures)
        return [each and each["told"] for each in told]

    with process:
        assert process.stdout.readline() == READY
        yield play
        process.stdin.close()


class Rank:
    """One rank of a story, in its own process."""

    def __init__(self, number: int, size: int, port: int, line: Connection) -> None:
        self.number, self.size, self.port = number, size, port
        self.lost_at = 0.0  # when the others were told of the last loss
        self._lost: set[int] = set()
        self._open: list[tuple[tuple[int, ...], Callable[[], None]]] = []
        self._line, self._lock = line, threading.Lock()
        self._has_closed = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def world(self, generation: int, members: tuple[int, ...] | None = None) -> World:
        members = members or tuple(range(self.size))
        return World(
            generation=generation, rank=members.index(self.number), size=len(members), store_address="127.0.0.1",
            store_port=self.port, job="story",
        )  # fmt: skip

    def form(self, generation: int, members: tuple[int, ...] | None = None, *, has_neighbors: bool = True) -> Group:
        """The group of a generation, which is closed as soon as one of its members is lost."""
        members, attempt = members or tuple(range(self.size)), GroupForming()
        self.when_lost(members, attempt.give_up)
        world = self.world(generation, members)
        group = Group.form(world, "127.0.0.1", "story", attempt=attempt, has_neighbors=has_neighbors)
        self.when_lost(members, group.break_)
        if world.size > 1:
            group.gather(b"formed")  # no one dies in a later part while others are still in this one
        return group

    def close(self, group: Group) -> None:
        """Close the group when all are done with it."""
        if group.world.size > 1:
            group.gather(b"done")
        group.close()
        with self._lock:
            self._open = []

    def when_lost(self, members: tuple[int, ...], close: Callable[[], None]) -> None:
        with self._lock:
            self._open.append((members, close))
            is_late = not self._lost.isdisjoint(members)
        if is_late:
            close()

    def await_closed(self) -> None:
        """Wait until a loss is known and its generations are closed: no coordinator makes another one before that."""
        assert self._has_closed.wait(STORY_S)

    def _listen(self) -> None:
        while True:
            try:
                lost, self.lost_at = self._line.recv()
            except EOFError:
                return
            with self._lock:
                self._lost.add(lost)
                closing = [close for members, close in self._open if lost in members]
            for close in closing:
                close()
            self._has_closed.set()


Story = Callable[..., Any]


def serve(stories: Mapping[str, Story]) -> None:
    torch.set_num_threads(1)
    print(READY, end="", flush=True)
    for order in sys.stdin:
        size, story, settings = json.loads(order)
        print(json.dumps(_play(size, stories[story], settings)), flush=True)


def _play(size: int, story: Story, settings: Mapping[str, Any]) -> list[Any]:
    pipes = [_fork.Pipe() for _ in range(size + 1)]
    ours, theirs = [pipe[0] for pipe in pipes], [pipe[1] for pipe in pipes]
    store = _fork.Process(target=_keep_store, args=(theirs[size],))
    store.start()
    port = ours[size].recv()
    ranks = [_fork.Process(target=_run, args=(n, size, port, story, settings, theirs[n])) for n in range(size)]
    for each in ranks:
        each.start()
    for end in theirs:
        end.close()
    try:
        return _hear(ours[:size], ranks)
    finally:
        for each in (*ranks, store):
            each.kill()
            each.join()
        for end in ours:
            end.close()


def _hear(lines: list[Connection], ranks: list[Any]) -> list[Any]:
    told: dict[int, Any] = {}
    deadline = time.monotonic() + STORY_S
    while len(told) < len(ranks):
        missing = [number for number in range(len(ranks)) if number not in told]
        wait([lines[number] for number in missing], _LOOK_S)
        for number in missing:
            is_lost = process_state(ranks[number].pid) in (STOPPED, ENDED)
            if lines[number].poll():
                told[number] = lines[number].recv()
            elif is_lost:
                told[number] = None
            elif time.monotonic() > deadline:
                told[number] = {"failure": f"rank {number} did not end its part within {STORY_S:.0f} s"}
            if number in told and told[number] is None:
                _tell(lines, told, number)
    return [told[number] for number in range(len(ranks))]


def _tell(lines: list[Connection], told: Mapping[int, Any], lost: int) -> None:
    for number, line in enumerate(lines):
        if number not in told:
            try:
                line.send((lost, time.monotonic()))
            except OSError:  # that rank is gone too
                pass


def _run(number: int, size: int, port: int, story: Story, settings: Mapping[str, Any], line: Connection) -> None:
    try:
        line.send({"told": story(Rank(number, size, port, line), **settings)})
    except BaseException:
        line.send({"failure": f"rank {number}: {traceback.format_exc()}"})
    os._exit(0)  # what this process has started ends with it


def _keep_store(line: Connection) -> None:
    """Takes the place of rank 0's store, but outlives all ranks."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=True)
    line.send(server.port)
    try:
        line.recv()
    except EOFError:
        pass
