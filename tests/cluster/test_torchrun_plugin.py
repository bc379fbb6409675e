"""torchrun itself with `--rdzv-backend=everstep`: its agents meet at our coordinator, and lose or gain each other.

torchrun finds the plug-in by the installed package's entry point: after a change there, `make setup` again."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from everstep.launcher.local_coordinator import CoordinatorFiles, serve_command, start_coordinator, write_token
from everstep.process import Child, wait_for_end
from lab.certificates import Authority
from lab.command import Command, until
from lab.ports import reserved_port

BEAT = Path(__file__).parent / "scripts" / "beat.py"


def command_of(pid: int) -> str:
    """ "" if there is none any more."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


@dataclass(frozen=True)
class Beat:
    rank: int
    size: int
    pid: int


class Torchruns:
    """Agents of torchrun on this machine, each with one worker."""

    def __init__(
        self, folder: Path, nodes: str, endpoint: str, token_file: Path | None = None, ca_file: Path | None = None
    ) -> None:
        self._folder, self._nodes, self._endpoint = folder, nodes, endpoint
        self._given = {"HOME": str(folder), "OMP_NUM_THREADS": "1"}
        self._given |= {"EVERSTEP_TOKEN_FILE": str(token_file)} if token_file is not None else {}
        self._given |= {"EVERSTEP_CA": str(ca_file)} if ca_file is not None else {}
        self.agents: list[Command] = []

    def start(self, *options: str) -> Command:
        words = [
            sys.executable, "-m", "torch.distributed.run", f"--nnodes={self._nodes}", "--rdzv-backend=everstep",
            f"--rdzv-endpoint={self._endpoint}", "--rdzv-id=beats", "--rdzv-conf=last_call_timeout=2", *options,
            BEAT, self._folder,
        ]  # fmt: skip
        self.agents.append(Command(*words, folder=self._folder, others=self.agents, **self._given))
        return self.agents[-1]

    @property
    def beats(self) -> list[Beat]:
        path = self._folder / "beats"
        lines = path.read_text().splitlines() if path.exists() else []
        return [Beat(*map(int, line.split())) for line in lines]

    def wait_for_group(self, size: int, *, without: set[int] | None = None) -> dict[int, int]:
        """Until a group of this size, none of whose members are among `without`, beats: process ids by rank."""

        def found() -> dict[int, int]:
            return {beat.rank: beat.pid for beat in self.beats if beat.size == size and beat.pid not in (without or ())}

        until(lambda: len(found()) == size, lambda: f"no group of {size}\n{self.story()}")
        return found()

    def finish(self) -> list[int]:
        """Let the script end, and all agents with it: their exit codes."""
        (self._folder / "end").touch()
        return [agent.exit_code() for agent in self.agents]

    def story(self) -> str:
        return "\n".join(f"{path.name}:\n{path.read_text()}" for path in sorted(self._folder.glob("*.log")))

    def close(self) -> None:
        for agent in self.agents:
            agent.process.kill()
        for pid in {beat.pid for beat in self.beats}:  # torchrun's workers outlive a killed agent
            if str(self._folder) in command_of(pid):  # else it has ended, and the number may be another's
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                wait_for_end(pid, 60.0)


@pytest.fixture
def torchruns(tmp_path: Path) -> Iterator[Callable[..., Torchruns]]:
    """A coordinator that stands by itself, and torchrun's agents that meet at it."""
    assert "everstep" in entry_points(group="torchrun.handlers").names, "make setup"
    with ExitStack() as stack:
        coordinator, url = start_coordinator(CoordinatorFiles(directory=tmp_path))
        stack.callback(coordinator.kill)

        def make(nodes: str) -> Torchruns:
            made = Torchruns(tmp_path, nodes, url.removeprefix("http://"), tmp_path / "token")
            stack.callback(made.close)
            return made

        yield make


@pytest.mark.slow
def test_a_killed_worker_is_restarted_with_all_others(torchruns: Callable[..., Torchruns]) -> None:
    runs = torchruns("2")
    runs.start("--max-restarts=1")
    runs.start("--max-restarts=1")
    before = runs.wait_for_group(2)
    os.kill(before[1], signal.SIGKILL)
    runs.wait_for_group(2, without=set(before.values()))
    assert runs.finish() == [0, 0]


@pytest.mark.slow
def test_the_other_node_goes_on_when_one_dies_and_is_joined_by_a_new_one(torchruns: Callable[..., Torchruns]) -> None:
    runs = torchruns("1:2")
    runs.start()
    victim = runs.start()
    before = runs.wait_for_group(2)
    earlier = {beat.pid for beat in runs.beats}  # also of one that was alone until the other came
    victim.process.kill()
    runs.wait_for_group(1, without=earlier)
    runs.agents.remove(victim)
    runs.start()
    runs.wait_for_group(2, without=set(before.values()))
    assert runs.finish() == [0, 0]


def test_the_first_node_hosts_the_coordinator_if_nobody_does_and_all_end_when_one_gives_up(tmp_path: Path) -> None:
    with reserved_port() as port, ExitStack() as stack:
        runs = Torchruns(tmp_path, "2", f"127.0.0.1:{port}")
        stack.callback(runs.close)
        agents = [runs.start(), runs.start()]
        os.kill(runs.wait_for_group(2)[0], signal.SIGKILL)
        assert [agent.exit_code() for agent in agents] == [1, 1], runs.story()
        assert not list((tmp_path / ".local/share/everstep/tokens").iterdir())


@pytest.mark.slow
def test_they_meet_at_a_coordinator_with_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("coordinator")
    files = CoordinatorFiles(directory=tmp_path)
    write_token(files.token)
    command = [*serve_command(files, "127.0.0.1", 0), "--tls-cert", str(certificate), "--tls-key", str(key)]
    runs = None
    with files.log.open("ab") as output, Child.start(command, output=output, env=os.environ):
        try:
            until(files.ready.exists, files.log.read_text)
            url = files.ready.read_text().strip()
            runs = Torchruns(tmp_path, "2", url, files.token, authority.certificate)
            runs.start()
            runs.start()
            runs.wait_for_group(2)
            assert runs.finish() == [0, 0], runs.story()
        finally:
            if runs is not None:
                runs.close()
