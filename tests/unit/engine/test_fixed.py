"""A world that does not change: what it says when a peer is lost."""

from __future__ import annotations

import pytest

from everstep.engine.fixed_world import Fixed
from everstep.errors import PermanentError


@pytest.mark.parametrize(
    ("coordinator", "way_out"),
    [("", "start the script with `everstep run`"), ("http://127.0.0.1:1", "use everstep.DistributedDataParallel")],
)
def test_a_lost_peer_is_an_error_with_the_way_out(
    coordinator: str, way_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("EVERSTEP_COORDINATOR", coordinator)
    with pytest.raises(PermanentError, match="a peer was lost") as caught:
        Fixed(None).next_group(1)
    assert way_out in str(caught.value.hint)
