"""What is left to kill when an agent was killed."""

from __future__ import annotations

import signal
import subprocess
import sys

_AGENT = """
import signal, sys
from everstep.launcher.cleanup import Sweeper
first, second, third = map(int, sys.argv[1:])
with Sweeper() as sweeper:
    for group in (first, second, third):
        sweeper.watch(group)
    sweeper.forget(first)
    sweeper.forget(999999999)
    print("ready", flush=True)
    signal.pause()
"""


def _session() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "300"], start_new_session=True)


def test_when_an_agent_is_killed_the_groups_of_its_workers_are_and_no_others() -> None:
    ended, *running = sessions = [_session() for _ in range(3)]
    command = [sys.executable, "-c", _AGENT, *(str(each.pid) for each in sessions)]
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE) as agent:
            assert agent.stdout is not None and agent.stdout.readline() == b"ready\n"
            agent.kill()
        assert [each.wait(30) for each in running] == [-signal.SIGKILL] * 2
        ended.terminate()  # it was the first: by now it would have been killed
        assert ended.wait(30) == -signal.SIGTERM
    finally:
        for each in sessions:
            each.kill()
            each.wait()


def test_nothing_is_killed_when_an_agent_ends_in_good_order() -> None:
    session = _session()
    code = _AGENT.replace("signal.pause()", "sweeper.forget(second), sweeper.forget(third)")
    try:
        subprocess.run([sys.executable, "-c", code, *([str(session.pid)] * 3)], check=True, timeout=60)
        session.terminate()
        assert session.wait(30) == -signal.SIGTERM
    finally:
        session.kill()
        session.wait()
