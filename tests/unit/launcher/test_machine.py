"""Where others reach this machine."""

from __future__ import annotations

import pytest

from everstep.errors import UsageError
from everstep.launcher.machine import own_address


def test_an_address_of_this_machine_is_taken_as_it_is() -> None:
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert own_address("localhost") in ("127.0.0.1", "::1")


def test_a_name_that_leads_nowhere_is_refused() -> None:
    with pytest.raises(UsageError, match="has no address"):
        own_address("no-such-host.invalid")
