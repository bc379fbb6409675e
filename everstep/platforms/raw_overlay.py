"""Objects of a platform as plain values: without what is empty, and with a user's raw options merged in. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are not empty."""
    return {key: value for key, value in values.items() if value not in (None, "", (), [], {})}


def lay_over(ours: Any, theirs: Any) -> Any:
    """Merge mappings by key; append lists, but merge items that have a name into the item of that name, as
    `kubectl patch` does; replace anything else."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        both = {key: lay_over(ours[key], value) if key in ours else value for key, value in theirs.items()}
        return {**ours, **both}
    if isinstance(ours, Sequence) and isinstance(theirs, Sequence) and not isinstance(ours, str):
        return _joined(list(ours), list(theirs))
    return theirs


def _joined(ours: list[Any], theirs: list[Any]) -> list[Any]:
    places = {each["name"]: place for place, each in enumerate(ours) if _has_name(each)}
    for each in theirs:
        if _has_name(each) and each["name"] in places:
            place = places[each["name"]]
            ours[place] = lay_over(ours[place], each)
        else:
            ours.append(each)
    return ours


def _has_name(value: Any) -> bool:
    return isinstance(value, Mapping) and "name" in value
