"""From `everstep run -f` to the first step of a submitted job, and where the time goes; the last line is JSON.

The times are those at which a user who follows the job sees its lines: the command returns, the first agent starts a
worker, all workers have done their first step.

    python benchmarks/submit.py [--file job.yaml] [--platform local] [--rounds 5]

The file says what a job needs on the platform (image, volumes, options); what it runs is replaced."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

EVERSTEP = [sys.executable, "-m", "everstep"]
SCRIPT = Path(__file__).parents[1] / "tests" / "platforms" / "scripts" / "train.py"
PHASES = (("first worker", r"\bw\d+ started"), ("first step", r"generation \d+ trains with (\d+) workers"))
HUNG_S = 300.0


def seconds_of(job: dict[str, Any], folder: Path, platform: str) -> dict[str, float]:
    env = os.environ | {"EVERSTEP_HOME": str(folder / "home")}
    shutil.copy(SCRIPT, folder / "train.py")
    (folder / "job.yaml").write_text(yaml.safe_dump({**job, "entrypoint": ["train.py", "--steps", "3"], "nodes": 2}))
    began = time.monotonic()
    submit = [*EVERSTEP, "run", "-f", "job.yaml", "--platform", platform]
    info = yaml.safe_load(subprocess.run(submit, cwd=folder, env=env, check=True, stdout=subprocess.PIPE).stdout)
    seen = {"submitted": time.monotonic() - began}
    job_id = info["everstep"]["id"]
    watch = subprocess.Popen([*EVERSTEP, "watch", job_id], cwd=folder, env=env, stdout=subprocess.PIPE, text=True)
    assert watch.stdout is not None
    for line in watch.stdout:
        for phase, pattern in PHASES:
            found = re.search(pattern, line)
            if found and phase not in seen and (not found.groups() or found[1] == "2"):
                seen[phase] = time.monotonic() - began
    seen["end"] = time.monotonic() - began
    is_failed = watch.wait(HUNG_S) != 0
    subprocess.run([*EVERSTEP, "cancel", job_id], cwd=folder, env=env, check=True, stderr=subprocess.DEVNULL)
    if is_failed or len(seen) != len(PHASES) + 2:
        raise SystemExit(f"{job_id} failed: {seen}")
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--file", type=Path)
    parser.add_argument("--platform", default="local")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    job = yaml.safe_load(arguments.file.read_text()) if arguments.file else {}
    rounds = []
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as folder:
            rounds.append(seconds_of(job, Path(folder), arguments.platform))
    medians = {phase: statistics.median(each[phase] for each in rounds) for phase in rounds[0]}
    print(
        f"{arguments.platform}: two nodes, one worker each; seconds since the command was typed, {len(rounds)} rounds"
    )
    for phase, median in medians.items():
        taken = [each[phase] for each in rounds]
        print(f"{phase:16s} {median:8.2f}  ({min(taken):.2f} to {max(taken):.2f})")
    last = {f"{phase.replace(' ', '_')}_s": median for phase, median in medians.items()}
    print(json.dumps({"platform": arguments.platform, **last}))


if __name__ == "__main__":
    main()
