"""How fast trials train on each number of slots, and how soon a new slot is useful: measured while they train.

Pure: what the coordinator knows about jobs goes in about once a second, with times. Knows nothing of jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from everstep.coordinator.experiments.seam import TrialPace
from everstep.coordinator.pool.facts import START_S, TrialKey, TrialSpeed

LONG_S = 60.0  # what was measured longer ago hardly counts …
LEAST_S = 2.0  # … and a speed counts once it was measured for this long …
LEAST_BATCHES = 3  # … and for this many batches
_STARTS_KEPT = 0.7  # of the mean so far, with each new start


@dataclass(slots=True)
class _Measured:
    """Batches and seconds; older ones count less."""

    batches: float = 0.0
    seconds: float = 0.0

    def note(self, batches: float, seconds: float) -> None:
        kept = max(0.0, 1.0 - seconds / LONG_S)
        self.batches, self.seconds = self.batches * kept + batches, self.seconds * kept + seconds

    @property
    def per_s(self) -> float | None:
        is_enough = self.seconds >= LEAST_S and self.batches >= LEAST_BATCHES
        return self.batches / self.seconds if is_enough else None


@dataclass(slots=True)
class _MeasuredTrial:
    last: TrialPace | None = None
    sizes: dict[int, _Measured] = field(default_factory=lambda: defaultdict(_Measured))

    def speeds(self) -> dict[int, float]:
        return {size: per_s for size, each in self.sizes.items() if (per_s := each.per_s) is not None}


class TrialSpeeds:
    """The speeds of all trials of a pool."""

    def __init__(self) -> None:
        self._trials: dict[TrialKey, _MeasuredTrial] = {}
        self._ordered_at: dict[int, float] = {}  # by assignment, until its worker trains
        self._start_s: dict[int, float] = {}  # by experiment
        self.told: dict[TrialKey, TrialSpeed] = {}  # of all that hold slots

    def note_order(self, assignment: int, now: float) -> None:
        self._ordered_at[assignment] = now

    def note(self, key: TrialKey, now: TrialPace | None, nodes: Mapping[int, str]) -> None:
        """`now`: None if it does not train. `nodes`: by assignment."""
        trial = self._trials.setdefault(key, _MeasuredTrial())
        for number in self._ordered_at.keys() & nodes.keys():
            if now is not None and nodes[number] in now.nodes:
                self._note_start(key[0], now.formed_at - self._ordered_at.pop(number))
        before, trial.last = trial.last, now
        if before is None or now is None or now.at <= before.at or now.is_waiting or before.is_waiting:
            return
        if (before.generation, before.size) == (now.generation, now.size) and before.step and now.step >= before.step:
            trial.sizes[now.size].note(now.step - before.step, now.at - before.at)

    def _note_start(self, experiment: int, seconds: float) -> None:
        """From the order to the first step of a new worker."""
        kept = _STARTS_KEPT if experiment in self._start_s else 0.0
        self._start_s[experiment] = kept * self._start_s.get(experiment, 0.0) + (1.0 - kept) * seconds

    def keep(self, held: Mapping[TrialKey, Collection[int]]) -> None:
        """Forget all that was measured of other experiments than these, which hold these assignments."""
        experiments = {experiment for experiment, _ in held}
        numbers = {number for each in held.values() for number in each}
        self._trials = {key: each for key, each in self._trials.items() if key[0] in experiments}
        self._start_s = {key: each for key, each in self._start_s.items() if key in experiments}
        self._ordered_at = {key: each for key, each in self._ordered_at.items() if key in numbers}
        self.told = self._tell(held)

    @property
    def num_known(self) -> int:
        """How many speeds are known. Speeds change slowly, so only a new one is a reason to decide again."""
        return sum(len(each.speeds()) for each in self._trials.values()) + len(self._start_s)

    def _tell(self, keys: Iterable[TrialKey]) -> dict[TrialKey, TrialSpeed]:
        """The speeds of these trials; where unknown, those of other trials of the same experiment."""
        measured: dict[int, dict[TrialKey, dict[int, float]]] = defaultdict(dict)
        for key, trial in self._trials.items():
            if speeds := trial.speeds():
                measured[key[0]][key] = speeds
        usual = {experiment: _Usual.of(list(found.values())) for experiment, found in measured.items()}
        return {
            key: TrialSpeed(
                batches_per_s=usual[key[0]].fill(measured[key[0]].get(key, {})) if key[0] in usual else {},
                start_s=self._start_s.get(key[0], START_S),
            )
            for key in keys
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class _Usual:
    """The usual speeds in an experiment."""

    least: int  # the smallest number of slots that was measured …
    per_s: float  # … the speed on it …
    gains: Mapping[int, float]  # … and by number of slots, how much faster than that, on average

    @classmethod
    def of(cls, measured: Sequence[Mapping[int, float]]) -> _Usual:
        least = min(min(each) for each in measured)
        based = [each for each in measured if least in each]
        sizes = {size for each in based for size in each}
        gains = {size: fmean(each[size] / each[least] for each in based if size in each) for size in sorted(sizes)}
        return cls(least=least, per_s=fmean(each[least] for each in based), gains=gains)

    def fill(self, own: Mapping[int, float]) -> dict[int, float]:
        """A trial's own speeds, completed with estimates for sizes that it has not had yet."""
        base = min((size for size in own if size in self.gains), default=0)
        per_s = own[base] / self.gains[base] if base else self.per_s
        return {**{size: per_s * gain for size, gain in self.gains.items()}, **own} if base or not own else dict(own)
