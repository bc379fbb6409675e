"""A trial that knows the coordinator's calls and nothing else: trains to each target at once, reports, asks again.

`--hold`: it first waits for the file `go`; `--seconds`: for this long. Asked to end, it leaves the file `saved` and
ends well. All in the folder that --folder names: there, each start leaves a line in `starts.jsonl`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

from everstep import env, wire
from everstep.client.calls import Coordinator

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path)
parser.add_argument("--lr", type=float)
parser.add_argument("--hold", action="store_true")
parser.add_argument("--seconds", type=float, default=0.0)
parser.add_argument("--fail", action="store_true")
parser.add_argument("--read", type=Path)
options = parser.parse_args()

trial = json.loads(os.environ["EVERSTEP_TRIAL"])
config = json.loads(Path(os.environ["EVERSTEP_EXPERIMENT"]).read_text())
start = {
    "pid": os.getpid(),
    "trial": trial["trial"],
    "facts": trial,
    "lr": options.lr,
    "hyperparameters": config["hyperparameters"],
    "folder": os.getcwd(),
    "code": os.path.realpath(__file__),
    "threads": os.environ.get("OMP_NUM_THREADS"),
    "slot_memory": os.environ.get("EVERSTEP_SLOT_MEMORY"),
    "time": time.time(),
}


def save(_number: int, _frame: object) -> None:
    (options.folder / f"saved-{trial['trial']}").touch()
    sys.exit(0)


signal.signal(signal.SIGTERM, save)
with open(options.folder / "starts.jsonl", "a") as file:
    file.write(json.dumps(start) + "\n")
if options.fail:
    sys.exit(3)
if options.read:
    options.read.read_text()
while options.hold and not (options.folder / "go").exists():
    time.sleep(0.01)

time.sleep(options.seconds)
token = env.token()
url = env.coordinator_url()
assert token is not None and url is not None
seen = 0
with Coordinator(url, token, env.job()) as coordinator:
    while True:
        target = coordinator.target(wire.TargetRequest(seen=seen, wait_s=1.0))
        if target.wish == wire.TRAIN:
            assert target.length is not None
            coordinator.report_result(
                wire.TrialResult(length=target.length, metric=config["hyperparameters"]["lr"] / target.length)
            )
            seen = target.number
        elif target.wish != wire.WAIT:
            sys.exit(0)
