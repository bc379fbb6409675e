"""Each outside thing comes in by one door. A second door is listed here with its reason, or it is a mistake."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / "everstep"

FORKS = ("os.fork", "os.forkpty", "os.posix_spawn", "os.posix_spawnp", "os.system", "os.popen", "pty.fork")
ADDRESSES = ("socket.create_server", "socket.AF_INET", "socket.AF_INET6", "socket.getaddrinfo", "socket.SOCK_DGRAM")

# what: names that only the door may use, the door, and other files with their reasons
DOORS: dict[str, tuple[tuple[str, ...], str, dict[str, str]]] = {
    "child processes": (
        ("subprocess", *FORKS),
        "process.py",
        {
            "nursery/preload.py": "the fork server rehearses in a fork",
            "nursery/server.py": "forking is what the fork server does",
            "launcher/spare_saver.py": "a fork that has imported what a saver needs",
        },
    ),
    "waits": (
        ("time.sleep",),
        "waiting.py",
        {
            "platforms/follow_logs.py": "follows until the job is over: there is no deadline",
            "platforms/oci/search.py": "follows until the job is over: there is no deadline",
            "platforms/oci/access.py": "inside the retry strategy of OCI's own library",
        },
    ),
    "unix sockets": (
        ("socket.AF_UNIX", "socket.SO_PEERCRED", "socket.socketpair"),
        "ipc/local_socket.py",
        {
            "data/loader_server.py": "a stream of frames, for processes of torch's DataLoader",
            "engine/neighbors.py": "an abstract name that vanishes with its process, checked by a shared secret",
        },
    ),
    "own addresses": (
        ADDRESSES,
        "addresses.py",
        {
            "coordinator/edge/server.py": "binds the address that the user has given",
            "coordinator/webhooks/post.py": "looks up a receiver's name, to check each address before it connects",
            "doctor/facts.py": "checks what the host's name resolves to",
            "engine/sockets.py": "recognizes sockets that torch has opened",
            "platforms/kubernetes/forward.py": "a port on loopback, for a tunnel",
        },
    ),
    "the user's home": (("Path.home", "tempfile.gettempdir", "pwd"), "env.py", {}),
}


@pytest.mark.parametrize("what", DOORS)
def test_there_is_one_door(what) -> None:
    banned, door, others = DOORS[what]
    leaks = {path: names for path, names in users(banned) if path != door and path not in others}

    assert not leaks, f"{what} come in by {door} only"


@pytest.mark.parametrize("what", DOORS)
def test_each_exception_is_needed(what) -> None:
    banned, door, others = DOORS[what]
    found = dict(users(banned))

    assert found.keys() >= {door, *others}


def users(banned: tuple[str, ...]) -> Iterator[tuple[str, set[str]]]:
    for path, names in used_by_file().items():
        if found := names & set(banned):
            yield path, found


@cache
def used_by_file() -> dict[str, set[str]]:
    paths = [path for path in PACKAGE.rglob("*.py") if PACKAGE / "templates" not in path.parents]
    return {str(path.relative_to(PACKAGE)): used(ast.parse(path.read_text())) for path in paths}


def used(tree: ast.AST) -> set[str]:
    """Modules, and names of modules as `module.name`, however they were imported."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names.add(f"{node.value.id}.{node.attr}")
    return names


def test_a_leak_is_seen_however_it_is_imported() -> None:
    for line in (
        "import subprocess",
        "from subprocess import run",
        "from time import sleep",
        "import time; time.sleep(1)",
    ):
        assert used(ast.parse(line)) & {"subprocess", "time.sleep"}, line
