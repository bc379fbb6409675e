"""What a body or a path may hold."""

from __future__ import annotations

import pytest

from everstep.coordinator.edge.bodies import check_name, parse
from everstep.errors import Refused
from everstep.wire import Stop, to_json


def test_nul_is_refused_and_six_characters_that_look_like_it_are_not():
    odd = Stop(reason="a path: C:\\u0000")
    assert parse(Stop, to_json(odd)) == odd
    with pytest.raises(Refused, match="NUL"):
        parse(Stop, to_json(Stop(reason="no database takes \0")))


def test_nul_in_a_path_is_refused():
    with pytest.raises(Refused, match="NUL"):
        check_name("agent", "a\0")
