"""Trainers end with their tests. No story here is about time, and the machine may be busy."""

from __future__ import annotations

from hypothesis import settings

from lab.alone import ended_trainers  # noqa: F401  for all tests here

settings.register_profile("busy machine", deadline=None)
settings.load_profile("busy machine")
