"""Loader processes that the script did not fork, and one that is killed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, signal, sys
from torch.utils.data import DataLoader, Dataset
from everstep import RecordIndexService


class Elastic(Dataset):
    def __init__(self, service):
        self.service = service

    def __len__(self):
        return sys.maxsize

    def __getitem__(self, _):
        return self.service.fetch_record_index(), os.getpid()


if __name__ == "__main__":
    service = RecordIndexService(4, dataset_size=42)
    start, is_killed = sys.argv[1], "kill" in sys.argv
    for records, pids in DataLoader(Elastic(service), batch_size=4, num_workers=2, multiprocessing_context=start):
        print(*records.tolist(), flush=True)
        if is_killed:
            os.kill(int(pids[0]), signal.SIGKILL)
"""


@pytest.fixture
def script(tmp_path):
    """Of its own: multiprocessing leaves a helper behind, and torch raises what it has to say wherever we are."""
    (tmp_path / "script.py").write_text(SCRIPT)

    def run(*arguments):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, str(tmp_path / "script.py"), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    return run


@pytest.mark.parametrize("start", [pytest.param("spawn", marks=pytest.mark.slow), "forkserver"])
def test_processes_that_are_no_forks_of_the_owner_find_it(script, start):
    run = script(start)
    assert sorted(map(int, run.stdout.split())) == list(range(40)), run.stderr
    assert "2 samples were left out" in run.stderr


def test_a_killed_process_of_the_loader_is_an_error_and_not_a_hang(script):
    run = script("fork", "kill")
    assert run.returncode == 1
    assert len(run.stdout.splitlines()) < 10  # torch has several words for it
    assert "Error" in run.stderr
