"""The locks of the local service: who looks whether it runs keeps nobody out."""

from __future__ import annotations

import fcntl
import subprocess
from contextlib import ExitStack
from pathlib import Path

from everstep.pool import local_service
from everstep.pool.local_service import LocalFiles, is_running
from everstep.process import own_command
from everstep.storage import private_file
from lab.command import environment, until


def test_a_command_that_looks_whether_it_runs_does_not_keep_it_from_starting(tmp_path: Path) -> None:
    files = LocalFiles(folder=tmp_path / "local")
    private_file.make_folder(files.folder)
    with ExitStack() as stack:
        looking = stack.enter_context(private_file.append(files.running))
        fcntl.flock(looking, fcntl.LOCK_SH)
        command = own_command("local-service", {"--folder": str(files.folder)})
        service = stack.enter_context(subprocess.Popen(command, env=environment(EVERSTEP_NURSERY="off")))
        stack.callback(service.kill)
        until(lambda: has_open(service.pid, files.running) or service.poll() is not None)
        fcntl.flock(looking, fcntl.LOCK_UN)
        until(lambda: is_running(files) or service.poll() is not None)
        assert service.poll() is None


def test_a_service_that_may_not_end_lets_commands_come(tmp_path: Path) -> None:
    files = LocalFiles(folder=tmp_path)
    with (
        local_service._ending(files) as may_end,
        private_file.append(files.start) as start,
        private_file.append(files.users) as users,
    ):
        fcntl.flock(users, fcntl.LOCK_SH)
        assert not may_end()
        fcntl.flock(start, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: the next command would wait for its end
        fcntl.flock(start, fcntl.LOCK_UN)
        fcntl.flock(users, fcntl.LOCK_UN)
        assert may_end()


def has_open(pid: int, path: Path) -> bool:
    links = Path(f"/proc/{pid}/fd").glob("*")
    try:
        return any(each.resolve() == path.resolve() for each in links)
    except OSError:
        return False
