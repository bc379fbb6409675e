"""What a body or a path may hold."""

from __future__ import annotations

import pytest

from everstep.coordinator.edge.dispatch import Routes, parse
from everstep.errors import Refused
from everstep.wire import Stop, to_json
from everstep.wire.operations import OPERATIONS

ROUTES = Routes(OPERATIONS)


def test_nul_is_refused_and_six_characters_that_look_like_it_are_not():
    odd = Stop(reason="a path: C:\\u0000")
    assert parse(Stop, to_json(odd)) == odd
    with pytest.raises(Refused) as refused:
        parse(Stop, to_json(Stop(reason="no database takes \0")))
    assert refused.value.code == "body-has-nul"


def test_nul_in_a_path_is_refused():
    route, parts = ROUTES.find("POST", "/v1/jobs/j/workers/w\0/watch")
    [(index, read)] = route.readers
    with pytest.raises(Refused) as refused:
        read(parts[index])
    assert refused.value.code == "parameter-has-nul"


def test_a_query_is_read_by_its_types():
    reports, _ = ROUTES.find("GET", "/v1/jobs/j/reports")
    view, _ = ROUTES.find("GET", "/v1/jobs/j")
    assert reports.read_query(b"since=-3&other=1") == {"since": -3}
    assert view.read_query(b"is_brief=true") == {"is_brief": True}
    with pytest.raises(Refused) as refused:
        reports.read_query(b"limit=0")
    assert refused.value.code == "parameter-invalid"
