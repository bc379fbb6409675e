"""Creating an experiment keeps no other call waiting."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import FrameType

import pytest

from everstep.coordinator.experiments.experiment_calls import check_search
from everstep.coordinator.service import Service
from everstep.coordinator.store.store import Store
from everstep.errors import Refused
from everstep.search.optuna_process import PACKAGES
from lab.experiments import spec


def test_a_search_is_read_and_begun_beside_the_event_loop(tmp_path: Path) -> None:
    called = set()

    def note(frame: FrameType, event: str, arg: object) -> None:
        called.add(frame.f_code.co_name)

    async def create() -> None:
        service = Service(Store(str(tmp_path / "db")))
        sys.setprofile(note)  # of this thread, the event loop's
        try:
            view = await service.experiment_calls.create(spec("adaptive_asha", max_trials=64))
        finally:
            sys.setprofile(None)
        assert view.num_trials
        await service.close()

    asyncio.run(create())
    assert "create" in called and not called & {"check_search", "begin_search", "read_space"}


def test_a_sampler_whose_packages_are_missing_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGES, "tpe", ("no_such_package",))
    with pytest.raises(Refused) as error:
        check_search(spec("tpe"))
    assert error.value.code == "search-package-missing" and "pip install 'everstep[search]'" in error.value.message
