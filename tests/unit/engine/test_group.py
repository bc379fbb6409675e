"""Forming a group is given up from another thread."""

from __future__ import annotations

import socket
import threading

import pytest
import torch.distributed as dist

from everstep.engine.group import FORM_S, Attempt, generation_store
from everstep.engine.world import World


def world(port: int) -> World:
    return World(generation=1, rank=1, size=2, store_address="127.0.0.1", store_port=port)


def test_where_nobody_listens_an_attempt_that_is_given_up_ends_before_the_script_does() -> None:
    """Else its thread would come back from C++ into an interpreter that is no more: an abort after the last step."""
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))
        attempt, ends = Attempt(), list[str]()

        def form() -> None:
            with pytest.raises(dist.DistNetworkError):
                generation_store(world(dead.getsockname()[1]), "engine", attempt=attempt)
            ends.append("given up")

        thread = threading.Thread(target=form)
        thread.start()
        attempt.give_up()
        thread.join(FORM_S)
        assert ends == ["given up"]
        thread.join()
