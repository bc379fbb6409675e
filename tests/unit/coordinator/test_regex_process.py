"""Regular expressions in a process of their own: each answer belongs to its question."""

from __future__ import annotations

from contextlib import closing

import pytest

from everstep.coordinator.regex_process import RegexProcess
from everstep.errors import TemporaryError


def test_a_process_that_starts_too_slowly_is_not_asked_again() -> None:
    with closing(RegexProcess(start_s=0.0)) as process:
        with pytest.raises(TemporaryError, match="did not start within 0 s"):
            process.searching("b")(b"a\nb\n")
        process._start_s = 30.0  # the machine is less busy now

        assert process.searching("b")(b"a\nb\n") == [1]
        assert process.searching("a")(b"a\nb\n") == [0]
