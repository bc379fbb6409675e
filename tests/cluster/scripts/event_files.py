"""Write TensorBoard's files as a script does that knows nothing of Everstep.

event_files.py FIRST LAST [UNTIL]     Points of `loss` from step FIRST to before LAST; then wait for the file UNTIL."""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter


def add(writer: EventFileWriter, tag: str, step: int, value: float) -> None:
    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
    writer.add_event(Event(step=step, wall_time=1000.0 + step, summary=summary))


first, last = int(sys.argv[1]), int(sys.argv[2])
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
folder = Path("logs") / f"rank{os.environ['RANK']}-{first}"
train, validation = EventFileWriter(str(folder / "train")), EventFileWriter(str(folder / "validation"))
for step in range(first, last):
    add(train, "loss", step, math.nan if step == 3 else float(step))
    add(validation, "loss", step, -float(step))
train.flush()
validation.flush()
print("written", flush=True)
if len(sys.argv) > 3:
    while not Path(sys.argv[3]).exists():
        time.sleep(0.05)
train.close()
validation.close()
