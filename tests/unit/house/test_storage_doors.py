"""Files and remote storage have one door each: `everstep/storage/`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import everstep

PACKAGE = Path(everstep.__file__).parent
MAKES_FILES = {"open", "touch", "chmod"}  # os.open, Path.touch, Path.chmod and their namesakes
SOCKETS = {"ipc/local_socket.py", "nursery/warm.py"}  # the mode of a unix socket is set after it was bound


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(("storage/", "templates/")):
            yield name, ast.parse(path.read_text(), name)


def test_only_storage_imports_fsspec() -> None:
    found = []
    for name, tree in modules():
        for node in ast.walk(tree):
            imported = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [f"{name}:{node.lineno}" for each in imported if each.split(".")[0] == "fsspec"]
    assert found == [], "use everstep.storage.base.open_storage or everstep.storage.shared_folder.SharedFolder"


def test_only_storage_makes_private_files() -> None:
    found = []
    for name, tree in modules():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            called = getattr(call.func, "attr", getattr(call.func, "id", ""))
            inside = [each for argument in [*call.args, *call.keywords] for each in ast.walk(argument)]
            is_private = any(isinstance(each, ast.Constant) and each.value == 0o600 for each in inside)
            makes = any(isinstance(each, ast.Attribute) and each.attr in {"O_CREAT", "O_EXCL"} for each in inside)
            if called in MAKES_FILES and (is_private or makes) and not (called == "chmod" and name in SOCKETS):
                found.append(f"{name}:{call.lineno}")
    assert found == [], "use everstep.storage.private_file"
