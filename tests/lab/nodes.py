"""Hosts on which people type `everstep run`: the same command in the same folder of the home that they share.

They meet at host 1's address, or at a coordinator that runs on host 0. A node's log has its output."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep.process import Child
from everstep.testing import Result
from everstep.testing.cluster import JOB, _ClusterNode
from everstep.testing.tape import is_match
from lab.command import DEADLINE_S
from lab.stage import Stage

PORT = 29400
QUICK = ("--heartbeat-s=0.2", "--last-call-s=0.3", "--stall-s=60")  # no cut link is suspected on a busy machine


class Nodes(Stage):
    """Start it with `with`, then type the command on hosts: `run(1, 2, 3)`."""

    def __init__(self, *args: object, options: Sequence[str] = (), is_standing: bool = False, **settings: Any) -> None:
        self._is_standing, self._options = is_standing, (*QUICK, *options)
        super().__init__(*args, **{"hosts": 3, **settings})

    @property
    def url(self) -> str:
        return super().url if self._is_standing else f"http://{self.hosts.address(1)}:{PORT}"

    @property
    def token_file(self) -> Path:
        return super().token_file if self._is_standing else self.directory / ".local/share/everstep/tokens" / JOB

    def start_coordinator(self) -> None:
        if self._is_standing:
            super().start_coordinator()

    def run(self, *hosts: int, env: Mapping[str, str] | None = None) -> list[str]:
        """Type the command on each of these hosts; returns the names of the new nodes."""
        return [self._type_command(host, env or {}) for host in hosts]

    def _type_command(self, host: int, env: Mapping[str, str]) -> str:
        name = f"node{len(self._nodes) + 1}"
        meeting = ["--rdzv-endpoint", self.url.removeprefix("http://"), "--rdzv-id", JOB]
        if self._is_standing:
            meeting = ["--coordinator", self.url, "--token-file", str(self.token_file), "--job", JOB]
        run = [sys.executable, "-m", "everstep", "run", *meeting, *self._options, "--log-dir", str(self.directory)]
        # All hosts share one name here, and gloo would look up its address.
        given = {"HOME": str(self.directory), "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1", **env}
        with (self.directory / f"{name}.log").open("ab") as output:
            agent = Child.start(
                [*self.hosts.inside(host), *run, self._script, *self._args],
                env=self._environment() | given,
                output=output,
                cwd=self.directory,
            )
        self._nodes.append(_ClusterNode(name=name, agent=agent, host=host))
        return name

    # --- watching ---------------------------------------------------------------------------------

    def said(self, node: str) -> str:
        """The output on a node's terminal."""
        return (self.directory / f"{node}.log").read_text(errors="replace")

    def wait_said(self, node: str, text: str) -> None:
        self.until(lambda: text in self.said(node), f"{node} says {text!r}")

    def workers_on(self, node: str) -> list[str]:
        """The workers that were ever started there, once it has said so: a worker may be quicker than its node's
        terminal."""

        def find() -> list[str]:
            return re.findall(r"(w\d+) started \(pid", self.said(node))

        self.until(lambda: bool(find()), f"{node} says which workers it has started")
        return find()

    def exit_code(self, node: str) -> int:
        ended = self._agent(node).wait(DEADLINE_S)
        assert ended is not None, f"{node} did not end within {DEADLINE_S:.0f} s\n{self._story()}"
        return ended.code

    def finish_classic(self) -> Result:
        """Run to the end; each attempt must have resumed from its predecessor's last checkpoint."""
        result = self.finish()
        step = 0
        for event in result.all_events:
            if is_match(event, "ddp.formed", {"rank": 0}):
                assert event["step"] in (step, step + 1)  # the last one may have been saved but not reported
                step = event["step"]
            elif is_match(event, "ddp.step", {"rank": 0}):
                assert event["step"] == step + 1
                step += 1
        assert result.weights_digest
        return result

    # --- hurting ----------------------------------------------------------------------------------

    def signal_agent(self, node: str, number: int) -> None:
        self._agent(node).signal(number, is_for_group=False)

    def _agent(self, node: str) -> Child:
        return next(each.agent for each in self._nodes if each.name == node)
