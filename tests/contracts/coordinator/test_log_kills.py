"""What the coordinator has acknowledged of a log survives its death, once."""

from __future__ import annotations

import threading

import pytest

from everstep.errors import CoordinatorUnreachable
from lab.command import until
from lab.log_writer import Writer, everything


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_a_coordinator_killed_under_load_has_all_that_it_acknowledged_once(
    store, request, tmp_path, server_class, play
):
    url = str(tmp_path / "db") if store == "sqlite" else request.getfixturevalue("postgres_url")
    server = server_class(tmp_path, url)
    writers = [Writer(play(server).coordinator)]
    writers += [Writer(writers[0].coordinator) for _ in range(2)]
    acknowledged, is_over = {each.name: 0 for each in writers}, threading.Event()

    def write(writer):
        number = 0
        while not is_over.is_set():
            chunk = writer.chunk(*(f"{writer.name} {number} {each}" for each in range(20)))
            number += 1
            while not is_over.is_set():
                try:
                    acknowledged[writer.name] = writer.send(chunk).positions[0].next_line
                    break
                except CoordinatorUnreachable:
                    is_over.wait(0.05)

    threads = [threading.Thread(target=write, args=(each,)) for each in writers]
    for thread in threads:
        thread.start()
    for _ in range(3):
        before = dict(acknowledged)
        until(lambda before=before: all(acknowledged[name] >= before[name] + 100 for name in before))
        server.kill()
        server.start()
    is_over.set()
    for thread in threads:
        thread.join()

    found = everything(writers[0].coordinator)
    for writer in writers:
        lines = [each for each in found if each.worker == writer.name]
        assert [each.line for each in lines] == list(range(len(lines)))
        assert [each.text for each in lines] == [f"{writer.name} {at // 20} {at % 20}" for at in range(len(lines))]
        assert len(lines) >= acknowledged[writer.name] >= 300
    server.end()
