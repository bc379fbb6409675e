"""torch's store never waits for DNS, and the script's own lookups stay as they were."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

STORES = """
import socket
from everstep.addresses import listen
from everstep.engine.tcp_store import connect_store, serve_store

with socket.socket(type=socket.SOCK_DGRAM) as name_server:  # is asked, and never answers
    name_server.bind(("127.0.0.1", 53))
    name_server.setblocking(False)

    def count() -> int:
        queries = 0
        while True:
            try:
                name_server.recv(4096)
            except BlockingIOError:
                return queries
            queries += 1

    server = serve_store(listen("127.0.0.1"), 30.0)
    client = connect_store("127.0.0.1", server.port, 30.0)
    client.set("key", "value")
    assert server.get("key") == b"value"
    by_torch = count()
    try:
        socket.getaddrinfo("name.invalid", 80)
    except socket.gaierror:
        pass
    print(by_torch, count() > 0)
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_a_store_asks_no_name_server_and_the_script_still_can(tmp_path: Path) -> None:
    resolver, sources = tmp_path / "resolv.conf", tmp_path / "nsswitch.conf"
    resolver.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    sources.write_text("hosts: files dns\n")
    script = tmp_path / "stores.py"
    script.write_text(STORES)
    mounts = f"mount --bind {resolver} /etc/resolv.conf && mount --bind {sources} /etc/nsswitch.conf"
    command = f"{mounts} && ip link set lo up && exec {sys.executable} {script}"
    ended = subprocess.run(["unshare", "--mount", "--net", "sh", "-c", command], capture_output=True, text=True)
    assert (ended.stdout.split(), ended.stderr) == (["0", "True"], "")
