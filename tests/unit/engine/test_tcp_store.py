"""torch's store never waits for DNS; lookups of the script and of other threads stay as they were."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

STORES = """
import socket, threading
from everstep.addresses import listen
from everstep.engine import background
from everstep.engine.tcp_store import connect_store, serve_store, stop_lookups

with socket.socket(type=socket.SOCK_DGRAM) as name_server:  # is asked, and never answers
    name_server.bind(("127.0.0.1", 53))
    name_server.setblocking(False)

    def asked() -> set[str]:
        names = set()
        while True:
            try:
                query = name_server.recv(4096)
            except BlockingIOError:
                return names
            names.add(query[13 : 13 + query[12]].decode())

    def look_up(name: str) -> None:
        try:
            socket.getaddrinfo(name, 80)
        except socket.gaierror:
            pass

    stop_lookups()
    background.wait(10.0)  # a thread that starts now may get the memory of the one that ended
    threads = [threading.Thread(target=look_up, args=(f"thread-{i}.invalid",)) for i in range(8)]
    for thread in threads:
        thread.start()
    look_up("script.invalid")
    for thread in threads:
        thread.join()
    print(*sorted(asked()))
    server = serve_store(listen("127.0.0.1"), 30.0)
    client = connect_store("127.0.0.1", server.port, 30.0)
    client.set("key", "value")
    assert server.get("key") == b"value"
    print(*asked(), "by torch")
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_a_store_asks_no_name_server_and_all_others_still_can(tmp_path: Path) -> None:
    resolver, sources = tmp_path / "resolv.conf", tmp_path / "nsswitch.conf"
    resolver.write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    sources.write_text("hosts: files dns\n")
    script = tmp_path / "stores.py"
    script.write_text(STORES)
    mounts = f"mount --bind {resolver} /etc/resolv.conf && mount --bind {sources} /etc/nsswitch.conf"
    command = f"{mounts} && ip link set lo up && exec {sys.executable} {script}"
    ended = subprocess.run(["unshare", "--mount", "--net", "sh", "-c", command], capture_output=True, text=True)
    names = ["script", *(f"thread-{i}" for i in range(8))]
    assert (ended.stdout.splitlines(), ended.stderr) == ([" ".join(names), "by torch"], "")
