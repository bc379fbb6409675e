"""What a body or a path may hold."""

from __future__ import annotations

import pytest

from everstep.coordinator.edge.bodies import parse, read_parameters
from everstep.errors import Refused
from everstep.wire import Stop, to_json
from everstep.wire.operations import OPERATIONS

BY_NAME = {each.name: each for each in OPERATIONS}


def test_nul_is_refused_and_six_characters_that_look_like_it_are_not():
    odd = Stop(reason="a path: C:\\u0000")
    assert parse(Stop, to_json(odd)) == odd
    with pytest.raises(Refused) as refused:
        parse(Stop, to_json(Stop(reason="no database takes \0")))
    assert refused.value.code == "body-has-nul"


def test_nul_in_a_path_is_refused():
    with pytest.raises(Refused) as refused:
        read_parameters(BY_NAME["watch"], {"job": "j", "worker": "w\0"}, b"")
    assert refused.value.code == "parameter-has-nul"


def test_a_query_is_read_by_its_types():
    assert read_parameters(BY_NAME["metrics"], {"job": "j"}, b"since=-3&other=1") == {"since": -3}
    assert read_parameters(BY_NAME["view"], {"job": "j"}, b"is_brief=true") == {"is_brief": True}
    with pytest.raises(Refused) as refused:
        read_parameters(BY_NAME["metrics"], {"job": "j"}, b"limit=0")
    assert refused.value.code == "parameter-invalid"
