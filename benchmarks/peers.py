"""The other systems that benchmarks compare with. They have their own environment, which `make peers` creates.

A benchmark asks for a peer by the name that it is imported by, and starts it with the interpreter that it gets. Where
there is none, the benchmark continues without it: its JSON has null for the peer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / ".venv-peers"
FIND = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"


def peer_python(package: str, folder: Path = FOLDER) -> str | None:
    """The interpreter of the peers' environment if it has the package; otherwise None, after printing how to get it."""
    python = folder / "bin" / "python"
    if python.exists() and subprocess.run([python, "-c", FIND, package], check=False).returncode == 0:
        return str(python)
    print(f"{package} is not installed in {folder}: no result for it. Get it with `make peers`.", file=sys.stderr)
    return None
