"""How much of the page's calls there may be at a time. Apart from its messages, which workers need not make."""

from __future__ import annotations

from typing import Annotated

from everstep.wire.bounds import MAX_NAME, Bounds

MOST_JOBS = 1000  # in one answer …
MOST_COMPARED = 100  # … and next to each other
MOST_MARKS = 5000
MOST_DAYS = 366

JobNames = Annotated[str, Bounds(max_length=MAX_NAME * MOST_COMPARED)]  # with commas between them
