"""A script of torchrun's that knows nothing of us: rank 0 ends at once, the others when the file gate-end is there."""

from __future__ import annotations

import os
import time
from pathlib import Path

while os.environ["RANK"] != "0" and not Path("gate-end").exists():
    time.sleep(0.02)
