"""A script that knows nothing of us but `everstep.report`: it restarts from step 5 after a first attempt that fails."""

from __future__ import annotations

import math
import os
import sys

import everstep

is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
steps = range(10) if is_first else range(5, 8)
for step in steps:
    everstep.report(
        {"loss": math.nan if step == 6 else float(step), "rank": int(os.environ["RANK"]), "words": ["a", step]},
        step=step,
    )
sys.exit(int(is_first and os.environ["RANK"] == "0"))  # at its end, it has sent all that it has reported
