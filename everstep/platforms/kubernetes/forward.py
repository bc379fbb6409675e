"""A local port that leads to a port of a pod, through the cluster's API, while it is open."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

from everstep.platforms.kubernetes.cluster import Namespace

_PIECE = 1 << 16


@contextmanager
def forwarded(cluster: Namespace, pod: str, port: int) -> Iterator[int]:
    """The local port, on loopback."""
    with closing(socket.create_server(("127.0.0.1", 0))) as door:
        threading.Thread(target=_accept, args=(door, cluster, pod, port), daemon=True).start()
        yield door.getsockname()[1]


def _accept(door: socket.socket, cluster: Namespace, pod: str, port: int) -> None:
    while True:
        try:
            caller, _ = door.accept()
        except OSError:  # closed
            return
        threading.Thread(target=_carry, args=(caller, cluster, pod, port), daemon=True).start()


def _carry(caller: socket.socket, cluster: Namespace, pod: str, port: int) -> None:
    """One connection, both ways, until either side ends it."""
    # On any error, the caller sees a broken connection.
    with closing(caller), suppress(Exception), closing(_connect(cluster, pod, port)) as far:
        ways = {caller: far, far: caller}
        while True:
            for side in select.select(list(ways), [], [])[0]:
                if not (piece := side.recv(_PIECE)):
                    return
                ways[side].sendall(piece)


def _connect(cluster: Namespace, pod: str, port: int) -> Any:
    from kubernetes.client import ApiClient, CoreV1Api
    from kubernetes.stream import portforward

    # A client of its own: the stream helper changes how the one that it is given sends.
    api = CoreV1Api(ApiClient(cluster.client.configuration))
    opened = portforward(api.connect_get_namespaced_pod_portforward, pod, cluster.namespace, ports=str(port))
    far = opened.socket(port)
    far.setblocking(True)
    return far
