"""S3 as moto serves it, in a process of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

KEYS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
_MOTO = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address=sys.argv[1], port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


def is_installed() -> bool:
    return all(importlib.util.find_spec(name) for name in ("moto", "s3fs"))


@contextmanager
def serving_s3(address: str = "127.0.0.1") -> Iterator[int]:
    """Its port."""
    command = [sys.executable, "-c", _MOTO, address]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes) as server:
        assert server.stdout is not None and server.stdin is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.stdin.close()
            server.wait(30)


def variables(url: str) -> dict[str, str]:
    return KEYS | {"AWS_ENDPOINT_URL": url}


def new_bucket(given: Mapping[str, str]) -> str:
    """Its name. `given`: the variables of the server."""
    import botocore.session

    name = f"b{uuid.uuid4().hex}"
    session = botocore.session.get_session()
    session.set_credentials(given["AWS_ACCESS_KEY_ID"], given["AWS_SECRET_ACCESS_KEY"])
    options = {"region_name": given["AWS_DEFAULT_REGION"], "endpoint_url": given["AWS_ENDPOINT_URL"]}
    with closing(session.create_client("s3", **options)) as client:
        client.create_bucket(Bucket=name)
    return name
