"""Settings of each node before its workers start: change them for your shape and network."""

import os


def prepare() -> None:
    os.environ.setdefault("NCCL_ASYNC_ERROR_HANDLING", "1")
