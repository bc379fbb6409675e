"""Run every benchmark, one after the other: python -m benchmarks. Each prints a table and a last line of JSON."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NAMES = (
    "recovery", "node_loss", "goodput", "launch", "step_overhead", "membership", "scale", "leases", "metrics",
    "page --minutes 1", "join", "forming", "levels", "sampler", "loader", "controller", "stragglers", "footprint",
    "checkpoint", "trainer", "submit",
)  # fmt: skip


def main() -> int:
    failed = []
    for name in NAMES:
        print(f"== {name}", flush=True)
        file, *arguments = name.split()
        command = [sys.executable, Path(__file__).with_name(f"{file}.py"), *arguments]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
