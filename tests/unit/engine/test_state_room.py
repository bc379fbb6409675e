"""Memory for a state: a newcomer's is there before the state is."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from everstep.engine.state_room import StateRoom, in_pages, room
from lab.command import until

MB = 1 << 20

Make = Callable[[int], StateRoom]


@pytest.fixture
def make() -> Iterator[Make]:
    """A room that leaves no thread behind."""
    rooms: list[StateRoom] = []

    def made(num_bytes: int) -> StateRoom:
        rooms.append(StateRoom(num_bytes))
        return rooms[-1]

    yield made
    for each in rooms:
        each.give_back()


def used_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MB


def test_all_pages_are_there_before_they_are_needed(make: Make) -> None:
    before = used_mb()
    memory = make(128 * MB)
    made = used_mb()
    assert made - before > 100
    piece = memory.take(100 * MB).fill_(1)
    assert used_mb() - made < 20 and int(piece.sum()) == 100 * MB


def test_the_memory_of_a_tensor_is_free_when_it_is_gone_even_if_others_stay(make: Make) -> None:
    memory = make(192 * MB)
    weights, moments = memory.take(64 * MB), memory.take(64 * MB).fill_(7)
    before = used_mb()
    memory.give_back()
    after_rest = used_mb()
    del weights
    assert before - after_rest > 50 and after_rest - used_mb() > 50
    assert bool((moments == 7).all())


def test_a_spare_that_is_not_let_in_gives_the_memory_back() -> None:
    before = used_mb()
    memory = StateRoom(128 * MB, kept_s=0.0)
    until(lambda: used_mb() - before < 50, timeout_s=20)
    assert int(memory.take(MB).fill_(3).min()) == 3  # it joins after all


def test_tensors_of_a_room_share_no_memory(make: Make) -> None:
    memory = make(2 * MB)
    parts = [memory.take(MB).fill_(number) for number in range(2)]
    file = io.BytesIO()
    torch.save(parts[1], file)
    assert file.tell() < 1.1 * MB
    assert [int(part.max()) for part in parts] == [int(part.min()) for part in parts] == [0, 1]


def test_a_room_that_is_too_small_is_extended(make: Make) -> None:
    memory = make(MB)
    parts = [memory.take(size).fill_(number) for number, size in enumerate((100, MB, 3 * MB, 0))]
    assert [part.numel() for part in parts] == [100, MB, 3 * MB, 0]
    assert [int(part.max()) for part in parts[:3]] == [0, 1, 2]


def test_a_size_is_counted_in_whole_pages() -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    assert [in_pages(size) for size in (0, 1, page, page + 1)] == [0, page, page, 2 * page]
    assert room(MB + 1).numel() == MB + 1
