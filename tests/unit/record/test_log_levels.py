"""The level of a line is found from its text."""

from __future__ import annotations

import pytest

from everstep.record.log_levels import CRITICAL, DEBUG, ERROR, INFO, WARNING, LevelFinder, level_of


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("WARNING:root:low on memory", WARNING),
        ("INFO:everstep:hello", INFO),
        ("2026-01-02 03:04:05,678 - train - ERROR - no such file", ERROR),
        ("2026-01-02 03:04:05,678 WARNING: everstep.engine: slow", WARNING),
        ("2026-01-02 03:04:05,678 DEBUG everstep: x", DEBUG),
        ("[2026-01-02 03:04:05,678][train][CRITICAL] gone", CRITICAL),
        ("[2026-01-02 03:04:05,678] [WARNING] x", WARNING),
        ("[ERROR] x", ERROR),
        ("error: x", ERROR),
        ("warning: x", WARNING),
        ("DEBUG x", DEBUG),
        ("03:04:05 | WARNING | loguru", WARNING),
        ("2026-01-02 03:04:05.678 | ERROR    | __main__:main:3 - loguru", ERROR),
        ("[rank0]:[W1117 19:00:00.123456789 socket.cpp:200] x", WARNING),
        ("[rank1]:[E1117 19:00:00.123456789 ProcessGroupNCCL.cpp:600] x", ERROR),
        ("W1117 19:00:00.123456 140000 file.cc:12] x", WARNING),
        ("I1117 19:00:00.123456 140000 file.cc:12] x", INFO),
        ("/a/train.py:12: UserWarning: x", WARNING),
        ("DeprecationWarning: x", WARNING),
        ("Traceback (most recent call last):", ERROR),
        ("[rank0]: Traceback (most recent call last):", ERROR),
        ("ValueError: no", ERROR),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory", ERROR),
        ("Fatal Python error: Segmentation fault", CRITICAL),
        ("", INFO),
        ("epoch 3: loss 0.25", INFO),
        ("info about the model", INFO),
        ("error rate 0.1", INFO),
        ("validation_error=0.25", INFO),
        ("the errors: none", INFO),
    ],
)
def test_a_line_has_the_level_that_it_names(line, level):
    assert level_of(line) == level


def test_what_belongs_to_a_traceback_or_a_warning_has_its_level():
    finder = LevelFinder()
    lines = [
        ("step 1", INFO),
        ("Traceback (most recent call last):", ERROR),
        ('  File "x.py", line 1, in <module>', ERROR),
        ("    f()", ERROR),
        ("", ERROR),
        ("  File …", ERROR),
        ("my.package.Mishap: with a name that says nothing", ERROR),
        ("step 2", INFO),
        ("x.py:3: UserWarning: careful", WARNING),
        ("  warnings.warn('careful')", WARNING),
        ("step 3", INFO),
        ("  indented", INFO),
    ]
    assert [(line, finder.next(line)) for line, _ in lines] == lines
