"""Two buffers: two states in turn, whole or nothing, in as much memory as there is."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import pytest

from everstep.checkpoint import state_block
from everstep.checkpoint.double_buffer import DoubleBuffer, Filling
from everstep.checkpoint.memory import GrowingBlock, Memory, decide_room, look_for_memory, shared_file

MB = 1 << 20
PLENTY = Memory(free_bytes=1 << 40)


def begin(buffers: DoubleBuffer, step: int, size: int = MB) -> Filling:
    index = buffers.reserve(may_wait=False)
    assert index is not None
    return buffers.begin(index, step, description=b"{}", image_bytes=size)


def fill(buffers: DoubleBuffer, step: int, size: int = MB, *, will_be_written: bool = False) -> Filling:
    filling = begin(buffers, step, size)
    filling.image[:] = bytes([step % 256]) * size
    buffers.commit(filling, will_be_written=will_be_written)
    return filling


def newest_step(buffers: DoubleBuffer) -> int:
    found = [(state, block.view) for block in buffers._blocks if (state := state_block.read(block.view)) is not None]
    state, view = max(found, key=lambda pair: pair[0].sequence)
    assert set(state.image(view)) == {state.step % 256}
    return state.step


def test_the_last_state_stays_whole_while_the_next_is_filled() -> None:
    buffers = DoubleBuffer(look=lambda: PLENTY)
    for step in range(1, 6):
        fill(buffers, step)
        begun = begin(buffers, 100)
        begun.image[:1000] = b"x" * 1000
        assert newest_step(buffers) == step
        buffers.release(begun.index)


def test_a_buffer_that_is_being_written_is_not_filled() -> None:
    buffers = DoubleBuffer(look=lambda: PLENTY)
    first = fill(buffers, 1, will_be_written=True)
    fill(buffers, 2)
    assert buffers.reserve(may_wait=False) is None  # one is being written, the other is the newest
    buffers.release(first.index)
    assert buffers.reserve(may_wait=False) == first.index


def test_states_grow_and_shrink() -> None:
    buffers = DoubleBuffer([GrowingBlock(shared_file()), GrowingBlock(shared_file())], look=lambda: PLENTY)
    for step, size in enumerate([MB, 80 * MB, 3 * MB, 200 * MB, 1], start=1):
        fill(buffers, step, size)
        assert newest_step(buffers) == step


def test_who_comes_after_finds_the_state_in_the_same_files() -> None:
    files = [shared_file(), shared_file()]
    first = DoubleBuffer([GrowingBlock(os.dup(file)) for file in files], look=lambda: PLENTY)
    fill(first, 7)
    begin(first, 8)
    first.close()
    second = DoubleBuffer([GrowingBlock(file) for file in files], look=lambda: PLENTY)
    assert newest_step(second) == 7
    fill(second, 9)
    assert newest_step(second) == 9


def test_pages_are_there_before_the_first_state() -> None:
    file = shared_file()
    touched = threading.Event()
    buffers = DoubleBuffer(
        [GrowingBlock(file), GrowingBlock(shared_file())], prepare=lambda block: touched.set(), look=lambda: PLENTY
    )
    buffers.expect(32 * MB)
    assert touched.wait(60)
    assert os.fstat(file).st_blocks * 512 >= 32 * MB
    buffers.close()


def test_little_memory_gives_one_buffer_and_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    memory = Memory(free_bytes=150 * MB, bound="a limit", remedy="raise it")
    buffers = DoubleBuffer(look=lambda: memory)
    with caplog.at_level(logging.WARNING):
        fill(buffers, 1, 100 * MB)
    assert len(buffers._usable) == 1
    assert "raise it" in caplog.text
    fill(buffers, 2, 100 * MB)
    assert newest_step(buffers) == 2


def test_no_memory_gives_a_file(caplog: pytest.LogCaptureFixture) -> None:
    buffers = DoubleBuffer(
        [GrowingBlock(shared_file()), GrowingBlock(shared_file())], look=lambda: Memory(free_bytes=10 * MB)
    )
    fill(buffers, 1, 20 * MB)
    assert not buffers.is_shared
    assert newest_step(buffers) == 1
    assert "not even one copy of 21 MB fits" in caplog.text


def test_a_buffer_that_was_never_ended_reads_as_nothing() -> None:
    block = GrowingBlock()
    state_block.begin(block, sequence=3, step=1, description=b"d" * 5000, image_bytes=10)
    assert state_block.read(block.view) is None
    state_block.commit(block.view)
    state = state_block.read(block.view)
    assert state is not None and (state.sequence, state.description) == (3, b"d" * 5000)
    state_block.begin(block, sequence=4, step=2, description=b"", image_bytes=10)
    assert state_block.read(block.view) is None
    assert not state_block.is_still(block.view, state)


@pytest.mark.parametrize(("free_mb", "held_mb", "num_buffers"), [(1000, 0, 2), (200, 0, 1), (50, 0, 0), (150, 100, 2)])
def test_room(free_mb: int, held_mb: int, num_buffers: int) -> None:
    room = decide_room(100 * MB, Memory(free_bytes=free_mb * MB), held_bytes=held_mb * MB)
    assert room.num_buffers == num_buffers
    assert room.reason


@pytest.mark.parametrize("kind", ["unified", "classic"])
def test_the_limit_of_a_container_counts(kind: str, tmp_path: Path) -> None:
    """The files of /proc and /sys as a container with 512 MB has them, 100 MB of it cache."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 99999999 kB\nMemAvailable:   88888888 kB\n")
    line, folder, limit, usage = {
        "unified": ("0::/pod/one", "sys/fs/cgroup/pod", "memory.max", "memory.current"),
        "classic": (
            "4:memory:/pod/one",
            "sys/fs/cgroup/memory/pod",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
        ),
    }[kind]
    (tmp_path / "proc/self/cgroup").write_text(f"9:name=systemd:/\n{line}\n")
    group = tmp_path / folder  # the limit may be set further up
    group.mkdir(parents=True)
    (group / limit).write_text(f"{512 * MB}\n")
    (group / usage).write_text(f"{300 * MB}\n")
    (group / "memory.stat").write_text(f"inactive_file {60 * MB}\nactive_file {40 * MB}\nshmem {50 * MB}\n")
    memory = look_for_memory(tmp_path)
    assert memory.free_bytes == 312 * MB
    assert "537 MB" in memory.bound
