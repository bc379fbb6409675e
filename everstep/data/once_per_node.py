"""`everstep.once_per_node(load)`: one process of a node loads a data set, and all others use the same memory.

    train, test = everstep.once_per_node(load_data)
    images = everstep.once_per_node(load_images, "train", size=64)

`load` is a function that returns numpy arrays and torch tensors, in tuples, lists and dicts. Which process calls it
must not matter: it depends on its arguments alone, and its random streams are set, the same in every process. Elsewhere
than on a node that shares, it is simply called."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from everstep import env
from everstep.data import shared_arrays
from everstep.errors import UsageError
from everstep.events import emit
from everstep.ipc.local_socket import connect, receive_packet, send_packet
from everstep.ipc.node_data_messages import KINDS, AskData, DataLoaded, LoadData, NotLoaded
from everstep.waiting import SAID_AFTER_S

T = TypeVar("T")
log = logging.getLogger("everstep")

_SAID_AGAIN_S = 30.0

_lock = threading.RLock()  # a function that loads may itself use data that is loaded once
_line: tuple[int, socket.socket] | None = None  # of the process with this number; open for as long as it lives


def once_per_node(load: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """What `load(*args, **kwargs)` returns, loaded once for all workers and trials of this node that run this code.

    Its arrays are copy-on-write: what a worker changes in place, it alone sees."""
    name = _check(load)
    key = _key(name, load, args, kwargs)

    def call() -> T:
        with _fixed_streams(key):
            return load(*args, **kwargs)

    path = env.path(env.NODE_DATA)
    if path is None:
        return call()
    with _lock:
        try:
            line = _connection(path)
        except OSError as problem:
            log.warning("%s is loaded by this process alone: %s: %s", name, path, problem)
            return call()
        scoped = hashlib.sha256(f"{env.value(env.DATA_SCOPE) or ''} {key}".encode()).hexdigest()
        return _share(line, scoped, name, call)


def _share(line: socket.socket, key: str, name: str, call: Callable[[], T]) -> T:
    try:
        send_packet(line, AskData(key=key))
        message, files = _answer(line, key, name)
    except (OSError, EOFError):
        _forget_connection()
        log.warning("%s is loaded by this process alone: its agent is gone", name)
        return call()
    if isinstance(message, DataLoaded):
        found: T = _open(files[0])
        return found
    loaded, descriptor = None, -1
    try:
        loaded = call()
        descriptor = shared_arrays.write(loaded)
    except OSError as problem:  # of what is loaded, or of the memory for all
        _tell(line, NotLoaded(key=key))
        if loaded is None:
            raise
        log.warning("%s is kept by this process alone: %s", name, problem)
        return loaded
    except BaseException:
        _tell(line, NotLoaded(key=key))
        raise
    del loaded  # or this process would have it twice
    emit("data.loaded", name=name, size_bytes=os.fstat(descriptor).st_size)
    _tell(line, DataLoaded(key=key), [descriptor])
    shared: T = _open(descriptor)
    return shared


def _answer(line: socket.socket, key: str, name: str) -> tuple[Any, list[int]]:
    say_at = time.monotonic() + SAID_AFTER_S
    while True:
        received = receive_packet(line, KINDS, max(0.0, say_at - time.monotonic()))
        if received is None:
            log.info("waiting for another process of this node, which is loading %s", name)
            say_at = time.monotonic() + _SAID_AGAIN_S
        elif isinstance(received[0], LoadData | DataLoaded) and received[0].key == key:
            return received


def _open(descriptor: int) -> Any:
    try:
        return shared_arrays.read(descriptor)
    finally:
        os.close(descriptor)


def _tell(line: socket.socket, message: Any, files: list[int] | None = None) -> None:
    try:
        send_packet(line, message, files or [])
    except OSError:  # the agent is gone: others load for themselves
        _forget_connection()


def _connection(path: Path) -> socket.socket:
    global _line
    if _line is None or _line[0] != os.getpid():
        _line = (os.getpid(), connect(path))
    return _line[1]


def _forget_connection() -> None:
    global _line
    _line = None


# --- what is loaded ---------------------------------------------------------------------------------


def _check(load: Callable[..., Any]) -> str:
    """The name of the function; UsageError: its result may differ from process to process."""
    function = inspect.unwrap(load)
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not isinstance(name, str) or not callable(load):
        hint = "give a function, and its arguments after it: once_per_node(load, path)"
        raise UsageError(f"once_per_node({load!r})", hint=hint, code="data-loader-not-a-function")
    is_bound = not isinstance(getattr(function, "__self__", None), ModuleType | type | None)
    if is_bound or getattr(function, "__closure__", None):
        what = "is a method of an object" if is_bound else "uses variables of the function around it"
        hint = "give a function of a module, and what it needs as arguments: once_per_node(load, path)"
        raise UsageError(f"once_per_node({name}): it {what}", hint=hint, code="data-loader-not-a-function")
    return f"{module}.{name}"


def _key(name: str, load: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """The same in every process of the same code."""
    code = getattr(inspect.unwrap(load), "__code__", None)
    line = code.co_firstlineno if code is not None else 0  # tells lambdas apart
    try:
        told = json.dumps([args, kwargs], sort_keys=True, default=_path)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"once_per_node({name}): {error}",
            hint="arguments may be numbers, texts, paths, and lists, tuples and dicts of them",
            code="data-argument-unknown",
        ) from None
    return f"{name}:{line} {told}"


def _path(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"an argument is a {type(value).__module__}.{type(value).__qualname__}")


@contextmanager
def _fixed_streams(key: str) -> Iterator[None]:
    """Random streams that depend on what is loaded alone; those of the process continue as if nothing had been
    loaded."""
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "little")
    numpy_random: Any = sys.modules.get("numpy.random") or _import_numpy_random()
    torch: Any = sys.modules.get("torch")
    python = random.getstate()
    arrays = numpy_random.get_state() if numpy_random is not None else None
    tensors = torch.default_generator.get_state() if torch is not None else None
    random.seed(seed)
    if numpy_random is not None:
        numpy_random.seed(seed)
    if torch is not None:
        torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        if numpy_random is not None:
            numpy_random.set_state(arrays)
        if torch is not None:
            torch.default_generator.set_state(tensors)


def _import_numpy_random() -> Any:
    try:
        import numpy.random
    except ImportError:
        return None
    return numpy.random
