"""Send memory through a socket without copying it: the kernel takes references to its pages.

On loopback, the receiver then copies straight from the sender's memory, at half the cost of an ordinary stream. So the
memory must stay unchanged until the receiver has said that it has everything. Where the system does not allow
references, memory is sent as usual."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import socket
from types import TracebackType

_PIPE_BYTES = 1 << 20  # as much as every user may have
_NOT_POSSIBLE = {errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.EACCES, errno.EMFILE, errno.ENFILE}

_libc = ctypes.CDLL(None, use_errno=True)


class _Range(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("num_bytes", ctypes.c_size_t)]


class PageSender:
    """For one connection. Use it in a `with` block."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._pipe: tuple[int, int] | None = None
        with contextlib.suppress(OSError, AttributeError):
            _ = _libc.vmsplice, os.splice
            self._pipe = os.pipe()
            fcntl.fcntl(self._pipe[1], fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def __enter__(self) -> PageSender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def send(self, memory: memoryview) -> None:
        """All of it, which must stay unchanged."""
        sent = 0
        while self._pipe is not None and sent < len(memory):
            try:
                sent += self._send_some(*self._pipe, memory[sent:])
            except OSError as error:
                if sent or error.errno not in _NOT_POSSIBLE:
                    raise
                self._close()
        self._sock.sendall(memory[sent:])

    def _send_some(self, outlet: int, inlet: int, memory: memoryview) -> int:
        place = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        num_bytes = _libc.vmsplice(inlet, ctypes.byref(_Range(place, len(memory))), ctypes.c_size_t(1), 0)
        if num_bytes < 0:
            raise OSError(ctypes.get_errno(), "vmsplice")
        left = num_bytes
        while left:
            left -= os.splice(outlet, self._sock.fileno(), left, flags=os.SPLICE_F_MORE)
        return int(num_bytes)

    def _close(self) -> None:
        pipe, self._pipe = self._pipe, None
        for descriptor in pipe or ():
            os.close(descriptor)
