"""Run every benchmark, one after the other: python -m benchmarks. Each prints a table and a last line of JSON."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NAMES = (
    "recovery", "node_loss", "goodput", "launch", "step_overhead", "membership", "scale", "leases", "metrics", "join",
    "forming", "levels", "sampler", "loader", "controller", "stragglers", "footprint", "checkpoint", "trainer",
    "submit",
)  # fmt: skip


def main() -> int:
    failed = []
    for name in NAMES:
        print(f"== {name}", flush=True)
        if subprocess.run([sys.executable, Path(__file__).with_name(f"{name}.py")], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
