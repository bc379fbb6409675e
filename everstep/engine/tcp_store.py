"""torch's key-value store, without lookups of names.

For its log, torch asks DNS for the name of each address that it connects to or accepts a connection from; the server
does so in the thread that answers everyone. If DNS does not answer, that takes 5 to 10 s: of 64 workers that connected
at once, half waited that long. After the first lookup that fails, torch makes no more of them in this process. So one
is made that fails at once: in a thread that knows no name servers. In torch's log, addresses then have no names."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as dist

from everstep.addresses import listen
from everstep.engine import background

_UNNAMED = "127.254.254.254"  # leads to this machine, and no file of hosts has a name for it
_FAILS_S = 1.0  # wait no longer for the failure
_ERRORS_ONLY = 2  # torch's log level


class _Resolver(ctypes.Structure):
    """The first fields of glibc's `struct __res_state` (resolv.h). Each thread has one."""

    _fields_ = (
        ("retrans", ctypes.c_int),
        ("retry", ctypes.c_int),
        ("options", ctypes.c_ulong),
        ("nscount", ctypes.c_int),
    )


def serve_store(listener: socket.socket, timeout_s: float) -> dist.TCPStore:
    """The server, which takes over this socket, and a client of it."""
    stop_lookups()
    return _serve(listener, timeout_s)


def connect_store(address: str, port: int, timeout_s: float) -> dist.TCPStore:
    """DistNetworkError if no one answers there; torch tries again for up to twice this time."""
    stop_lookups()
    return dist.TCPStore(
        address, port, is_master=False, wait_for_workers=False, use_libuv=True, timeout=timedelta(seconds=timeout_s)
    )


@functools.cache
def stop_lookups() -> None:
    """Once per process. Without glibc or without DNS among the sources of names, nothing changes."""
    is_over = threading.Event()

    def fail() -> None:
        try:
            with _no_name_servers(), _warnings_hidden(), listen(_UNNAMED) as listener:
                _serve(listener, _FAILS_S)
        except (AttributeError, OSError, dist.DistError):
            pass  # then torch continues to look up names
        finally:
            is_over.set()

    background.start("everstep-names", fail)
    is_over.wait(_FAILS_S)


def _serve(listener: socket.socket, timeout_s: float) -> dist.TCPStore:
    address, port = listener.getsockname()[:2]
    return dist.TCPStore(
        address, port, is_master=True, wait_for_workers=False, use_libuv=True, timeout=timedelta(seconds=timeout_s),
        master_listen_fd=listener.detach(),
    )  # fmt: skip


@contextlib.contextmanager
def _no_name_servers() -> Iterator[None]:
    """For this thread only. They must be known again when it ends: glibc clears what it keeps for a thread only if
    there are any, and hands the memory to the next thread, which could then look up no name at all."""
    libc = ctypes.CDLL(None)
    libc.__res_state.restype = ctypes.POINTER(_Resolver)
    libc.__res_init()
    resolver = libc.__res_state().contents
    before, resolver.nscount = resolver.nscount, 0
    try:
        yield
    finally:
        resolver.nscount = before


@contextlib.contextmanager
def _warnings_hidden() -> Iterator[None]:
    """Torch would warn about the lookup that fails."""
    try:
        c10 = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so"))
        level = ctypes.c_int.in_dll(c10, "FLAGS_caffe2_log_level")
    except (OSError, ValueError):  # another build of torch
        yield
        return
    before, level.value = level.value, max(level.value, _ERRORS_ONLY)
    try:
        yield
    finally:
        level.value = before
