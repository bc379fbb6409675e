"""How much of the page's calls there may be at a time. Apart from its messages, which workers need not make."""

from __future__ import annotations

from typing import Annotated

from everstep.wire.bounds import MAX_NAME, Bounds

MOST_JOBS = 1000  # in one answer …
MOST_COMPARED = 100  # … and next to each other
MOST_MARKS = 5000
MOST_DAYS = 366
MOST_COLUMNS_SHOWN = 50  # metrics and hyperparameters in a list of experiments
MOST_CURVE_POINTS = 200_000
MOST_USE_POINTS = 1000
MOST_CODE_FILES = 10_000
MOST_TEXT_BYTES = 1 << 18  # of a code file
MOST_TOPICS = 100  # that a reader of the stream follows besides jobs

ColumnNames = Annotated[str, Bounds(max_length=MAX_NAME * MOST_COLUMNS_SHOWN)]  # with commas between them
TrialNumbers = Annotated[str, Bounds(max_length=20 * MOST_JOBS)]  # with commas between them
FilePath = Annotated[str, Bounds(max_length=4096)]
JobNames = Annotated[str, Bounds(max_length=MAX_NAME * MOST_COMPARED)]  # with commas between them
