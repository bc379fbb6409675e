"""Expect one of our errors by its code: the sentence may change."""

from __future__ import annotations

import pytest

from everstep.errors import EverstepError


def refused(code: str, kind: type[EverstepError] = EverstepError) -> pytest.RaisesExc[EverstepError]:
    return pytest.raises(kind, check=lambda error: error.code == code)
