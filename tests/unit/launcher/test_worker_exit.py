"""What C libraries say when a worker ends does not hide the error that ended it."""

from __future__ import annotations

import subprocess
import sys

import pytest

ENDS = """
import ctypes, sys
from everstep.nursery import exit
exit._names.append({module!r})
exit.hide_leaks()
ctypes.CDLL(None).perror(b"leaked")
print("my error", file=sys.stderr)
"""


@pytest.mark.parametrize(("module", "is_said"), [("triton._C", False), ("torch", True)])
def test_reports_of_leaks_are_hidden_and_errors_are_not(module: str, is_said: bool) -> None:
    ended = subprocess.run([sys.executable, "-c", ENDS.format(module=module)], capture_output=True, text=True)
    assert ended.returncode == 0
    assert ("leaked" in ended.stderr, "my error" in ended.stderr) == (is_said, True)
