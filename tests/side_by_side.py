"""All tests, in two runs at the same time: stories of platforms wait for other people's programs most of the time.

The output of the first run is shown as it comes, that of the second when both are done. The last line, for machines, is
of both."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import IO

PLATFORMS = Path("tests/platforms")
KUBERNETES = PLATFORMS / "kubernetes"  # at the end: the first time, it is compiled beside the others
PARTS = (
    ["tests", f"--ignore={PLATFORMS}"],
    [*(str(path) for path in sorted(PLATFORMS.glob("*")) if path.is_dir() and path != KUBERNETES),
     *map(str, sorted(PLATFORMS.glob("test_*.py"))), str(KUBERNETES)],
)  # fmt: skip
NAMES = ("tests", "failures", "errors", "skipped")
COUNTS = re.compile(rb"^tests=(\d+) failures=(\d+) errors=(\d+) skipped=(\d+)", re.M)
LOOK_S = 0.2


class Run:
    def __init__(self, arguments: list[str], output: IO[bytes]) -> None:
        self.output, self._shown = output, 0
        command = [sys.executable, "-m", "pytest", *arguments]
        self.process = subprocess.Popen(command, stdout=output, stderr=output)

    def show(self) -> None:
        """What was not shown yet."""
        new = os.pread(self.output.fileno(), 1 << 24, self._shown)
        self._shown += len(new)
        sys.stdout.buffer.write(new)
        sys.stdout.flush()

    def counts(self) -> Counter[str]:
        found = COUNTS.findall(os.pread(self.output.fileno(), 1 << 24, 0))
        numbers = found[-1] if found else (0, 0, 1, 0)  # a run that did not come to its end
        return Counter(dict(zip(NAMES, map(int, numbers), strict=True)))


def main() -> int:
    began = time.monotonic()
    with tempfile.TemporaryFile() as first, tempfile.TemporaryFile() as second:
        runs = [Run(sys.argv[1:] + more, output) for more, output in zip(PARTS, (first, second), strict=True)]
        try:
            while any(run.process.poll() is None for run in runs):
                runs[0].show()
                time.sleep(LOOK_S)
        except KeyboardInterrupt:  # the terminal has told them too
            for run in runs:
                run.process.wait()
        for run in runs:
            run.show()
        counts = runs[0].counts() + runs[1].counts()
    text = " ".join(f"{name}={counts[name]}" for name in NAMES)
    print(f"\n{text} time={time.monotonic() - began:.1f}", flush=True)
    return max(abs(run.process.returncode) for run in runs)


if __name__ == "__main__":
    sys.exit(main())
