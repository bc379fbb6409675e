"""Hosts on this machine: network namespaces on a bridge that lives in a namespace of its own.

Each host has its address and its cable, which can be pulled. Nothing is added to the machine's own network.
Host 0 is the coordinator's; the others are numbered from 1. Needs root, iproute2 and nftables (Linux)."""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from everstep.errors import PermanentError, UsageError
from everstep.process import ENDED, ask, process_state, wait_for_end

T = TypeVar("T")

_PREFIX = "everstep"
_CLONE_NEWNET = 0x40000000
_END_S = 5.0  # for a killed process to be gone
_COMMAND_S = 60.0
_serial = itertools.count()


def can_make_hosts() -> bool:
    """Whether this user and machine can: tests that need hosts are skipped where they cannot."""
    return os.geteuid() == 0 and shutil.which("ip") is not None and shutil.which("nft") is not None


class Network:
    def __init__(self, num_hosts: int) -> None:
        if not can_make_hosts():
            hint = "run as root after: apt-get install iproute2 nftables"
            raise UsageError("hosts of their own need root, iproute2 and nftables", hint=hint, code="hosts-need-root")
        self.num_hosts = num_hosts
        # The owner's pid in the name lets a later run clear away what a killed one left.
        self._name = f"{_PREFIX}-{os.getpid()}-{next(_serial)}"
        self._cut: set[int] = set()

    def address(self, host: int) -> str:
        return f"10.77.0.{10 + host}"

    def inside(self, host: int) -> list[str]:
        """To be put before a command that shall run on this host."""
        return ["ip", "netns", "exec", self._namespace(host)]

    def within(self, host: int, act: Callable[[], T]) -> T:
        """Do it here, but with this host's network: connections made by `act` start there."""

        def visit() -> T:
            _enter(self._namespace(host))
            return act()

        # A thread of its own, since a thread that changed its namespace cannot be used for anything else.
        with ThreadPoolExecutor(1) as visitor:
            return visitor.submit(visit).result()

    def is_cut(self, host: int) -> bool:
        return host in self._cut

    def cut(self, host: int) -> None:
        """Pull the host's cable: nothing comes or goes, and no connection is closed."""
        _ip("-n", self._switch, "link", "set", f"p{host}", "down")
        self._cut.add(host)

    def mend(self, host: int) -> None:
        _ip("-n", self._switch, "link", "set", f"p{host}", "up")
        self._cut.discard(host)

    def crash(self, host: int) -> None:
        """All its processes are gone at once, and its cable is down. Its last packets said so to any listener."""
        self.kill_all(host)
        self.cut(host)

    def kill_all(self, host: int) -> None:
        """SIGKILL to every process of this host, until there is none."""
        while pids := [int(pid) for pid in _ip("netns", "pids", self._namespace(host)).split()]:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in pids:
                wait_for_end(pid, _END_S)

    def cut_between(self, one: int, other: int) -> None:
        """These two lose each other's packets; both still reach the rest."""
        for here, there in ((one, other), (other, one)):
            _nft(self.inside(here), f"add rule inet everstep input ip saddr {self.address(there)} drop")

    def mend_between(self, one: int, other: int) -> None:
        """Mends all cuts of either of them with single others."""
        for host in (one, other):
            _nft(self.inside(host), "flush chain inet everstep input")

    def slow_down(self, host: int, mbit_per_s: int) -> None:
        """The host's cable carries no more than this, either way. Needs the kernel's token bucket filter (tc, tbf)."""
        limit = ["tbf", "rate", f"{mbit_per_s}mbit", "burst", "64kb", "latency", "200ms"]
        _command(["tc", "-n", self._switch, "qdisc", "add", "dev", f"p{host}", "root", *limit])
        _command(["tc", "-n", self._namespace(host), "qdisc", "add", "dev", "eth0", "root", *limit])

    def __enter__(self) -> Network:
        _remove_left_overs()
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        _remove([name for name in _namespaces() if name.startswith(f"{self._name}-")])

    @property
    def _switch(self) -> str:
        return f"{self._name}-sw"

    def _namespace(self, host: int) -> str:
        return f"{self._name}-h{host}"

    def _build(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "br0", "type", "bridge", "stp_state", "0", "forward_delay", "0")
        _ip("-n", self._switch, "link", "set", "br0", "up")
        for host in range(self.num_hosts + 1):
            self._build_host(host)

    def _build_host(self, host: int) -> None:
        inside, port = self._namespace(host), f"p{host}"
        _ip("netns", "add", inside)
        _ip("-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", inside)
        _ip("-n", self._switch, "link", "set", port, "master", "br0", "up")
        _ip("-n", inside, "link", "set", "lo", "up")
        _ip("-n", inside, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
        _ip("-n", inside, "link", "set", "eth0", "up")
        table = "add table inet everstep"
        chain = "add chain inet everstep input { type filter hook input priority 0 ; }"
        _nft(self.inside(host), f"{table}; {chain}")


def _enter(namespace: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(f"/run/netns/{namespace}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    finally:
        os.close(descriptor)


def _ip(*arguments: str) -> str:
    return _command(["ip", *arguments])


def _nft(inside: list[str], rules: str) -> None:
    _command([*inside, "nft", rules])


def _command(command: list[str]) -> str:
    done = ask(command, timeout_s=_COMMAND_S)
    if not done.exit.is_good:
        raise PermanentError(f"{' '.join(command)}: {done.errors.strip()}", code="network-command-failed")
    return done.text


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _ip("netns", "list").splitlines() if line]


def _remove(names: list[str]) -> None:
    for name in names:
        ask(["ip", "netns", "del", name], timeout_s=_COMMAND_S)


def _remove_left_overs() -> None:
    def is_orphan(name: str) -> bool:
        parts = name.split("-")
        return parts[0] == _PREFIX and parts[1].isdigit() and process_state(int(parts[1])) == ENDED

    _remove([name for name in _namespaces() if is_orphan(name)])
