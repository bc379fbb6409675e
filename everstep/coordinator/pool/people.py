"""What a pool's people may use: the weight of each among the others, and the most slots at a time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Person:
    weight: float = 1.0  # of a person's share among those of equal priority
    quota: int | None = None  # slots at a time; None: no limit


@dataclass(frozen=True, kw_only=True, slots=True)
class People:
    """People by name. Everyone else has the default; all those without a name count as one person."""

    known: Mapping[str, Person] = field(default_factory=dict)
    default: Person = field(default_factory=Person)

    def of(self, name: str) -> Person:
        return self.known.get(name, self.default)


NOBODY = People()  # in particular
