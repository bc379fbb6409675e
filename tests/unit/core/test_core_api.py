"""What of Determined's Core API is here, and what says that it is not."""

from __future__ import annotations

import pytest

from everstep import core


def test_the_core_api_is_said_to_be_missing_with_what_to_use_instead() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'init'.*use everstep.get_hparams\(\), everstep.report"):
        core.init()
    with pytest.raises(AttributeError, match="no attribute 'other'$"):
        _ = core.other
