"""Trainers end with their tests."""

from __future__ import annotations

from lab.alone import ended_trainers  # noqa: F401  for all tests here
