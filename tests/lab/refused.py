"""Expect one of our errors by its code: the sentence may change."""

from __future__ import annotations

import pytest

from everstep.errors import EverstepError


def refused(
    code: str | tuple[str, ...], kind: type[EverstepError] = EverstepError, *, match: str | None = None
) -> pytest.RaisesExc[EverstepError]:
    """`code`: or one of these."""
    codes = (code,) if isinstance(code, str) else code
    return pytest.raises(kind, match=match, check=lambda error: error.code in codes)
