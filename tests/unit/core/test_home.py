"""The folder of all that is kept for a user."""

from __future__ import annotations

import pytest

from everstep import env
from everstep.errors import UsageError


def test_a_user_without_a_home_folder_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.HOME, "~nobody-has-this-name/everstep")
    with pytest.raises(UsageError) as refused:
        env.home()
    assert (refused.value.code, env.HOME in refused.value.hint) == ("home-missing", True)
