"""A coordinator on an IPv6 address, and its clients."""

from __future__ import annotations

import socket
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from everstep import wire
from everstep.client.calls import Coordinator, is_foreign


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback (::1)")


@pytest.fixture
def url(tmp_path):
    (tmp_path / "token").write_text("all-in-one\n")
    (tmp_path / "token").chmod(0o600)
    command = [sys.executable, "-m", "everstep", "serve", "--host", "::1", "--port", "0", "--token-file", "token"]
    environment = {"PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        yield line.removeprefix("everstep coordinator at ").strip()
        process.terminate()


def test_serve_and_call_on_the_ipv6_loopback(url):
    assert url.startswith("http://[::1]:")
    with Coordinator(url, "all-in-one", "six") as coordinator:
        assert coordinator.check().now > 0
        coordinator.create_job(wire.JobSpec(name="six"))
        assert coordinator.reserve(wire.ReserveWorker(agent="a", request="r")).worker == "w0"
        announce = wire.Announce(incarnation="i", pid=1, address="::1", store_port=1, probe_port=2)
        assert not coordinator.announce("w0", announce).is_newcomer
        assert [each.worker for each in coordinator.view().workers] == ["w0"]


def test_it_is_told_from_other_programs(url):
    assert not is_foreign(url)
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as silent:
        port = silent.getsockname()[1]
    assert not is_foreign(f"http://[::1]:{port}")  # nothing answers: it may come
    assert urlsplit(url).hostname == "::1"
