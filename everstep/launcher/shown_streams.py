"""Which of a node's workers, and which of their streams, are shown on the console. All of it is always in files.

Pure. The numbers are torchrun's: 1 stdout, 2 stderr, 3 both, 0 none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NONE, STDOUT, STDERR, BOTH = 0, 1, 2, 3


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownStreams:
    """Streams of each local rank: the same for all, or by rank, where a rank that is not named has none."""

    of_all: int = NONE
    by_rank: Mapping[int, int] = field(default_factory=dict)

    def has(self, local_rank: int, stream: int) -> bool:
        streams = self.by_rank.get(local_rank, NONE) if self.by_rank else self.of_all
        return bool(streams & stream)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """Streams repeated on the console: all, except those redirected to their files and not teed."""

    redirects: ShownStreams = field(default_factory=ShownStreams)
    tee: ShownStreams = field(default_factory=ShownStreams)
    local_ranks: frozenset[int] | None = None  # None: all
    is_quiet: bool = False

    def has(self, local_rank: int, stream: int) -> bool:
        if self.is_quiet or (self.local_ranks is not None and local_rank not in self.local_ranks):
            return False
        return self.tee.has(local_rank, stream) or not self.redirects.has(local_rank, stream)
