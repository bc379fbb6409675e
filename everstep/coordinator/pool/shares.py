"""How many slots each experiment should have: strict priority, and among equals weighted max-min fairness over people,
then over each person's experiments, within quotas and limits.

A trial needs its minimum or nothing. So an experiment whose share is smaller than its next trial either gets the whole
minimum, or leaves its share to others. Its turn comes when its owner has used less than others lately. The slots that
remain after dividing take turns in the same way. Over time, both make use match the shares."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import floor, inf

from everstep.coordinator.pool.claims import Claims, ExperimentClaim

Shares = dict[int, int]  # slots by experiment
_EXACT = 1e-9
_EVEN = 0.05  # of the mean: use that differs by less is equal


@dataclass(slots=True)
class Claimant:
    """A person, or an experiment."""

    least: int
    most: int
    weight: float
    used: float
    held: int
    name: tuple[object, ...]  # breaks ties


def divide(claimants: Sequence[Claimant], num_slots: int, turn_s: float) -> list[int]:
    """Weighted max-min. The slots that remain after rounding down go to those that have used least for their weight
    lately. One that has a slot of these keeps it for a turn."""
    level = _level(claimants, num_slots)
    exact = [min(max(level * each.weight, each.least), each.most) for each in claimants]
    whole = [floor(each + _EXACT) for each in exact]
    rest = min(num_slots, sum(each.most for each in claimants)) - sum(whole)
    if rest > 0:
        partly = [place for place, each in enumerate(exact) if each - whole[place] > _EXACT]
        partly.sort(key=lambda place: _turn(claimants[place], whole[place], exact[place], turn_s))
        for place in partly[:rest]:
            whole[place] += 1
    return whole


def _turn(claimant: Claimant, whole: int, exact: float, turn_s: float) -> tuple[object, ...]:
    lead = turn_s if claimant.held > whole else 0.0
    return ((claimant.used - lead) / claimant.weight, whole - exact, claimant.name)


def _level(claimants: Sequence[Claimant], num_slots: int) -> float:
    """Slots per unit of weight at which all claimants together have `num_slots`, if they can use that many."""
    total, slope, at = float(sum(each.least for each in claimants)), 0.0, 0.0
    bends = [(each.least / each.weight, each.weight) for each in claimants if each.most > each.least]
    bends += [(each.most / each.weight, -each.weight) for each in claimants if each.most > each.least]
    for where, change in sorted(bends):
        if slope > _EXACT and total + slope * (where - at) >= num_slots:
            return at + (num_slots - total) / slope
        total, slope, at = total + slope * (where - at), slope + change, where
    return inf if total <= num_slots else at


def decide_shares(claims: Claims, turn_s: float) -> Shares:
    """Smaller numbers of priority first; each class gets what those before it cannot use."""
    classes: dict[int, list[ExperimentClaim]] = defaultdict(list)
    for each in claims.experiments:
        classes[each.priority].append(each)
    left = Counter(claims.open_slots)
    quotas = _quotas(claims)
    shares: Shares = {}
    for priority in sorted(classes):
        found = _Class(classes[priority], claims, left, quotas, turn_s).decide()
        for each in classes[priority]:
            shares[each.number] = found[each.number]
            left[each.kind] -= found[each.number]
            quotas[each.person] -= found[each.number]
    return shares


def _quotas(claims: Claims) -> dict[str, float]:
    """Open slots that each person may have."""
    people = {each.candidate.person for each in claims.trials.values()}
    quotas = {each: inf if (quota := claims.person(each).quota) is None else float(quota) for each in people}
    for each in claims.trials.values():
        quotas[each.candidate.person] -= len(each.fixed)
    return {person: max(quota, 0) for person, quota in quotas.items()}


class _Class:
    """The experiments of one priority."""

    def __init__(
        self,
        experiments: Sequence[ExperimentClaim],
        claims: Claims,
        left: Counter[str],
        quotas: dict[str, float],
        turn_s: float,
    ) -> None:
        self._experiments, self._claims, self._quotas, self._turn_s = experiments, claims, quotas, turn_s
        self._num_slots, self._left = max(sum(left.values()), 0), left
        self._least = dict.fromkeys((each.number for each in experiments), 0)
        self._most = {each.number: self._demand(each) for each in experiments}
        self._people: dict[str, list[ExperimentClaim]] = defaultdict(list)
        for each in experiments:
            self._people[each.person].append(each)
        self._was_due: set[int] = set()

    def _demand(self, experiment: ExperimentClaim) -> int:
        return int(min(experiment.demand, self._quotas[experiment.person], self._room(experiment)))

    def _room(self, experiment: ExperimentClaim) -> int:
        return max(min(self._left[experiment.kind], self._num_slots), 0) if experiment.kind else self._num_slots

    def decide(self) -> Shares:
        while True:
            shares = self._divide(self._experiments, self._num_slots)
            if self._keeps_kinds(shares):
                stuck = [
                    each for each in self._experiments if usable(each, shares[each.number])[0] < shares[each.number]
                ]
                if not stuck:
                    return self._lend(shares)
                self._resolve(stuck, shares)

    def _divide(self, experiments: Iterable[ExperimentClaim], num_slots: int) -> Shares:
        """Among people, then among the experiments of each."""
        people: dict[str, list[ExperimentClaim]] = defaultdict(list)
        for each in experiments:
            people[each.person].append(each)
        names = sorted(people)
        by_person = divide([self._person(name, people[name]) for name in names], num_slots, self._turn_s)
        shares: Shares = {}
        for name, slots in zip(names, by_person, strict=True):
            theirs = people[name]
            parts = divide([self._claimant(each) for each in theirs], slots, self._turn_s)
            shares.update(zip((each.number for each in theirs), parts, strict=True))
        return shares

    def _person(self, name: str, experiments: Sequence[ExperimentClaim]) -> Claimant:
        return Claimant(
            least=sum(self._least[each.number] for each in experiments),
            most=int(min(sum(self._most[each.number] for each in experiments), self._quotas[name])),
            weight=self._claims.person(name).weight,
            used=self._claims.used_by_person.get(name, 0.0),
            held=sum(each.num_held for each in experiments),
            name=(min(each.queued_at for each in experiments), name),
        )

    def _claimant(self, each: ExperimentClaim) -> Claimant:
        return Claimant(
            least=self._least[each.number],
            most=self._most[each.number],
            weight=each.weight,
            used=each.used,
            held=each.num_held,
            name=(each.queued_at, each.number),
        )

    # --- kinds of machines

    def _keeps_kinds(self, shares: Shares) -> bool:
        """Whether each kind has as many slots as its experiments should get. If not, they divide those among them."""
        kept = True
        for kind in sorted({each.kind for each in self._experiments} - {""}):
            its = [each for each in self._experiments if each.kind == kind]
            room = self._room(its[0])
            if sum(shares[each.number] for each in its) > room:
                self._most |= self._divide(its, room)
                kept = False
        return kept

    # --- minimums

    def _resolve(self, stuck: list[ExperimentClaim], shares: Shares) -> None:
        """Each either gets enough for its next trial, or leaves what it cannot use to others."""
        stuck.sort(key=self._waits)
        spare = sum(shares[each.number] - usable(each, shares[each.number])[0] for each in stuck)
        num_due = 0
        for each in stuck:
            used, need = usable(each, shares[each.number])
            is_spare = need - used <= spare
            if self._may_have(each, need) and (is_spare or (num_due == 0 and self._is_due(each))):
                num_due += not is_spare
                self._least[each.number] = need
                spare = max(spare - (need - used), 0)
            else:
                self._most[each.number] = used
                self._least[each.number] = min(self._least[each.number], used)

    def _waits(self, each: ExperimentClaim) -> tuple[object, ...]:
        """Those that have used least come first; those that run keep their turn for a while."""
        person, used = self._claims.person(each.person), self._used_by(each.person)
        own = (each.used - self._turn_s * each.num_held) / each.weight
        return (used / person.weight, own, each.queued_at, each.number)

    def _used_by(self, person: str) -> float:
        """The person's recent use; counted lower while it is this person's turn."""
        held = sum(each.num_held for each in self._people[person])
        return self._claims.used_by_person.get(person, 0.0) - self._turn_s * held

    def _may_have(self, experiment: ExperimentClaim, need: int) -> bool:
        """Whether it may get this many slots, given the minimums that are already fixed."""
        more = need - self._least[experiment.number]
        theirs = self._people[experiment.person]
        of_kind = [each for each in self._experiments if each.kind == experiment.kind]
        return (
            need <= self._demand(experiment)
            and sum(self._least[each.number] for each in theirs) + more <= self._quotas[experiment.person]
            and sum(self._least.values()) + more <= self._num_slots
            and sum(self._least[each.number] for each in of_kind) + more <= self._room(experiment)
        )

    def _is_due(self, each: ExperimentClaim) -> bool:
        """It may get its minimum although others get less than their shares: they have used more lately."""
        if each.number in self._was_due:
            return False
        self._was_due.add(each.number)
        person = self._claims.person(each.person)
        people = [
            (self._claims.used_by_person.get(name, 0.0), self._claims.person(name).weight) for name in self._people
        ]
        theirs = [(other.used - self._turn_s * other.num_held, other.weight) for other in self._people[each.person]]
        own = each.used - self._turn_s * each.num_held
        return _is_behind(self._used_by(each.person), person.weight, people) and _is_behind(own, each.weight, theirs)

    def _lend(self, shares: Shares) -> Shares:
        """Slots that are left over may be enough for a minimum that was left out."""
        left = self._num_slots - sum(shares.values())
        for each in sorted(self._experiments, key=self._waits) if left > 0 else ():
            share = shares[each.number]
            of_kind = sum(shares[other.number] for other in self._experiments if other.kind == each.kind)
            of_person = sum(shares[other.number] for other in self._people[each.person])
            most = min(left, self._room(each) - of_kind, self._quotas[each.person] - of_person)
            found, _ = usable(each, min(share + int(most), self._demand(each)))
            shares[each.number], left = max(share, found), left - max(found - share, 0)
        return shares


def usable(experiment: ExperimentClaim, share: int) -> tuple[int, int]:
    """How many of these slots its trials can use, and how many it needs to run one more trial (0: all may run)."""
    num_running = bisect_right(experiment.least_sums, share) - 1
    used = min(share, experiment.most_sums[num_running])
    has_more = num_running + 1 < len(experiment.least_sums)
    return used, experiment.least_sums[num_running + 1] if has_more else 0


def _is_behind(used: float, weight: float, everyone: Sequence[tuple[float, float]]) -> bool:
    mean = sum(used for used, _ in everyone) / sum(weight for _, weight in everyone)
    return used / weight <= mean + abs(mean) * _EVEN + _EXACT
