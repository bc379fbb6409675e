"""A worker that knows nothing of us: prints on both streams, and its environment into a file.

tell.py [fail]"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

rank = os.environ["LOCAL_RANK"]
Path(f"env-{os.environ['RANK']}.json").write_text(json.dumps(dict(os.environ)))
print(f"out of {rank}: an apple")
print(f"err of {rank}: an orange", file=sys.stderr)
if "fail" in sys.argv:
    error = {"message": {"message": "ValueError: recorded", "extraInfo": {}}}
    Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps(error))
    raise ValueError("a bad batch")
