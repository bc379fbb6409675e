"""From what trials have to what they should have: which slots are given now, and which must be given back first.

Starting a trial is always worth a move. The trials that give way shrink to their minimums before any is parked; the
lowest priority and the newest give way first. Growing a trial must pay: it must save more time than the newcomer's
start and two regroups take, and neither trial may have been resized just before. Free slots wait for a trial that needs
several of them; nothing is taken back without need. A slot that is being given back counts toward its giver's limits
until it is free."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from everstep import wire
from everstep.coordinator.pool.claims import EMPTY_S, Claims, ExperimentClaim, TrialClaim, is_leaving
from everstep.coordinator.pool.facts import GIVEN, PARKING, Assignment, Grant, PoolFacts, SlotRelease, TrialKey
from everstep.coordinator.pool.limits import Name, SlotLimits
from everstep.coordinator.pool.places import FreeSlots, first_to_leave
from everstep.coordinator.pool.sizes import Sizes

WAITS = "it waits for the search, and another trial wants its slot"


@dataclass(slots=True, eq=False)
class Moves:
    give: list[Grant] = field(default_factory=list)
    release: list[SlotRelease] = field(default_factory=list)
    given: set[TrialKey] = field(default_factory=set)
    blocked: set[TrialKey] = field(default_factory=set)  # by limits, until others have given their slots back
    num_free: Counter[str] = field(default_factory=Counter)  # left over, by kind
    given_up: dict[int, list[TrialClaim]] = field(default_factory=dict)  # by experiment: a trial for each slot
    look_at: list[float] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Shortage:
    """A trial that should have more slots than it has."""

    claim: TrialClaim
    experiment: ExperimentClaim
    has: int
    size: int  # that it should have
    to_start: int = 0  # slots that are missing
    to_grow: int = 0

    @property
    def kind(self) -> str:
        return self.experiment.kind

    @property
    def order(self) -> tuple[object, ...]:
        """Trials that need a certain kind come first. There is enough for all, so the others can take what is left."""
        return (not self.kind, self.experiment.priority, self.claim.candidate.queued_at, self.claim.order)


@dataclass(slots=True, eq=False)
class _Surplus:
    """A trial that has more slots than it should have."""

    claim: TrialClaim
    experiment: int
    priority: int
    size: int
    left: list[Assignment]  # it has these, the first to leave at the front
    is_waiting: bool = False

    @property
    def order(self) -> tuple[object, ...]:
        """Who gives way first: trials that wait for the search, because they lose nothing."""
        rank, experiment, trial = self.claim.order
        return (not self.is_waiting, -self.priority, tuple(-each for each in rank), -experiment, -trial)

    @property
    def is_part(self) -> bool:
        """Whether it has only part of its minimum: it lost the rest, and gets no new slots."""
        return self.size == 0 and len(self.claim.held) < self.claim.least

    @property
    def why_useless(self) -> str:
        held, need = len(self.claim.held), self.claim.least
        return f"it needs {need} slots and has {held}" if self.is_part else "its last slots hardly made it faster"

    @property
    def least(self) -> int:
        """It shrinks to this at first."""
        return self.size if self.is_waiting else max(self.size, min(self.claim.least, len(self.claim.held)))


def decide_moves(facts: PoolFacts, claims: Claims, sizes: Sizes) -> Moves:
    return _Mover(facts, claims, sizes).decide()


class _Mover:
    def __init__(self, facts: PoolFacts, claims: Claims, sizes: Sizes) -> None:
        self._facts, self._claims, self._sizes = facts, claims, sizes
        self._free = FreeSlots(claims.free, claims.nodes)
        self._reserved: Counter[str] = Counter()  # free slots that trials wait for, by kind
        self._coming = Counter(claims.ending)  # by kind
        self._limits = SlotLimits(claims)
        self._blocked: list[_Shortage] = []  # must wait until slots of their own experiment or person are free
        self._barred: frozenset[str] = frozenset()  # nodes whose slots are of no use now
        self._moves = Moves()

    def decide(self) -> Moves:
        if self._facts.is_complete:
            self._leave()
            self._kill_late()
        starts, growths = self._wishes()
        for wish in sorted(starts, key=lambda each: each.order):
            self._start(wish)
        for wish in sorted(growths, key=lambda each: each.order):
            self._grow(wish)
        if self._facts.is_complete:
            self._take_back(starts, growths)
        self._moves.num_free = self._free.by_kind()
        return self._moves

    def _take_back(self, starts: list[_Shortage], growths: list[_Shortage]) -> None:
        surplus = sorted(self._surplus(), key=lambda each: each.order)
        self._make_room([each for each in starts if each.to_start], surplus)
        self._take_over([each for each in growths if each.to_grow], surplus)
        self._keep_limits(surplus)

    # --- slots that must be given back in any case

    def _leave(self) -> None:
        leaving = {each.agent for each in self._claims.nodes.values() if is_leaving(each, self._facts.now)}
        for each in sorted(self._facts.assignments, key=attrgetter("number")) if leaving else ():
            if each.agent in leaving and each.state == GIVEN and each.pool == self._facts.pool:
                self._release(each, f"{each.agent} must be emptied")
        times = [each.leaves_at for each in self._claims.nodes.values() if each.leaves_at is not None]
        self._moves.look_at += [each - EMPTY_S for each in times]

    def _kill_late(self) -> None:
        for each in sorted(self._facts.assignments, key=attrgetter("number")) if self._facts.parking_since else ():
            since = self._facts.parking_since.get(each.number)
            claim = self._claims.trials.get(each.key)
            if each.state != PARKING or since is None or claim is None:
                continue
            timeout_s = claim.candidate.preemption_timeout_s
            if self._facts.now >= since + timeout_s:
                reason = f"it was asked to leave, but did not within its preemption_timeout of {timeout_s:g} s"
                self._moves.release.append(SlotRelease(number=each.number, how=wire.KILL, reason=reason))
            else:
                self._moves.look_at.append(since + timeout_s)

    # --- slots to give

    def _wishes(self) -> tuple[list[_Shortage], list[_Shortage]]:
        starts, growths = [], []
        for experiment in self._claims.experiments:
            for claim in experiment.trials:
                has, size = len(claim.held), self._sizes[claim.key]
                if size <= has:
                    continue
                wish = _Shortage(claim, experiment, has, size)
                if has < claim.least:
                    starts.append(wish)
                if size > claim.least:
                    growths.append(wish)
        return starts, growths

    def _available(self, wish: _Shortage) -> int:
        """Free slots that no trial waits for."""
        kind, excluded = wish.kind, wish.claim.candidate.excluded
        total = self._free.num_free("") - self._reserved.total()
        free = max(min(total, self._free.num_free(kind) - self._reserved[kind]) if kind else total, 0)
        return min(free, self._free.num_free_beside(kind, excluded)) if excluded else free

    def _start(self, wish: _Shortage) -> None:
        """All that it needs at once. If some are missing, the free ones wait for it."""
        claim = wish.claim
        need, available = claim.least - wish.has, self._available(wish)
        room = self._limits.room(claim.candidate)
        if need <= min(available, claim.candidate.max_slots - claim.num_live, room):
            self._give(wish, need, "free")
            return
        if room < need:
            self._blocked.append(wish)
            self._moves.blocked.add(claim.key)
        self._reserved[wish.kind] += min(need, available)
        wish.to_start = max(need - available, 0)

    def _grow(self, wish: _Shortage) -> None:
        claim = wish.claim
        most = claim.candidate.max_slots - claim.num_live - (wish.has - len(claim.held))
        wanted = min(wish.size - wish.has, most)
        if wish.has < claim.least or wanted <= 0 or not self._pays(wish, wanted):
            return
        number = int(max(min(wanted, self._available(wish), self._limits.room(claim.candidate)), 0))
        if number and self._pays(wish, number):
            self._give(wish, number, self._growth(wish, number))
        wish.to_grow = wanted - number

    def _pays(self, wish: _Shortage, number: int) -> bool:
        """Whether growing pays. A trial that only starts needs no reason to be larger."""
        if not wish.claim.runs:
            return True
        now = wish.has + len(wish.claim.fixed)
        saved_s = wish.claim.saved_s(now, now + number)
        return saved_s is None or saved_s > wish.claim.move_s

    def _growth(self, wish: _Shortage, number: int) -> str:
        now = wish.has + len(wish.claim.fixed)
        saved_s = wish.claim.saved_s(now, now + number) if wish.claim.runs else None
        return f"grows to {now + number} slots" + (f", which saves {saved_s:.0f} s" if saved_s is not None else "")

    def _give(self, wish: _Shortage, number: int, why: str) -> None:
        excluded = wish.claim.candidate.excluded
        places = self._free.take(wish.kind, number, wish.claim.held, self._reserved, excluded)
        wish.has += len(places)
        self._limits.take(wish.claim.candidate, len(places))
        self._moves.given.add(wish.claim.key)
        self._moves.give += [
            Grant(candidate=wish.claim.candidate, agent=agent, slot=slot, reason=_reason(agent, slot, why))
            for agent, slot in places
        ]

    # --- slots to take back

    def _surplus(self) -> Iterable[_Surplus]:
        for experiment in self._claims.experiments:
            for claim in experiment.trials:
                if len(claim.held) > self._sizes[claim.key]:
                    size, held = self._sizes[claim.key], first_to_leave(claim.held)
                    is_waiting = claim.candidate.is_waiting
                    yield _Surplus(claim, experiment.number, experiment.priority, size, held, is_waiting)
        yield from self._waiting_surplus()

    def _waiting_surplus(self) -> Iterable[_Surplus]:
        """Trials that wait for the search keep their minimums as long as no other trial should have these slots."""
        left = Counter(self._claims.open_slots)
        for experiment in self._claims.experiments:
            left[experiment.kind] -= sum(self._sizes[each.key] for each in experiment.trials)
        room = self._room_below_limits()
        for claim in self._claims.waiting:
            held, candidate = first_to_leave(claim.held), claim.candidate
            kind = self._kind(held[0])
            names = [name for name in (candidate.experiment, candidate.person) if name in room]
            most = min(*(room[name] for name in names), left[kind], left.total())
            kept = int(max(min(candidate.min_slots, len(held), most), 0))
            left[kind] -= kept
            room.subtract(dict.fromkeys(names, kept))
            if kept < len(held):
                yield _Surplus(claim, candidate.experiment, candidate.priority, kept, held, is_waiting=True)

    def _kind(self, given: Assignment) -> str:
        return self._claims.nodes[given.agent].kind

    def _make_room(self, starts: list[_Shortage], surplus: list[_Surplus]) -> None:
        """For the highest priority first. A lower one gives way at once, an equal one after it has settled."""
        for priority in sorted({each.experiment.priority for each in starts}):
            wishes = [each for each in starts if each.experiment.priority == priority]
            self._make_room_for([each for each in wishes if not each.claim.candidate.excluded], surplus, priority)
            for wish in wishes:
                if wish.claim.candidate.excluded:
                    self._make_room_for([wish], surplus, priority)

    def _make_room_for(self, wishes: list[_Shortage], surplus: list[_Surplus], priority: int) -> None:
        """All of these may be placed on the same nodes."""
        self._barred = wishes[0].claim.candidate.excluded if wishes else frozenset()
        short: Counter[str] = Counter()
        for wish in wishes:
            short[wish.kind] += wish.to_start
        self._use_coming(short)
        if short.total() > 0:
            givers = [
                each
                for each in surplus
                if each.left and (each.is_waiting or each.priority > priority or self._has_settled(each.claim))
            ]
            self._take(givers, short, _name(min(wishes, key=lambda each: each.order).claim))
            self._swap(short)
        self._barred = frozenset()

    def _take(self, givers: list[_Surplus], short: Counter[str], who: str) -> None:
        """First everything that the lowest priority can give, and so on; trials shrink before any is parked."""
        for priority in sorted({each.priority for each in givers}, reverse=True):
            its = [each for each in givers if each.priority == priority]
            for each in its:
                self._shrink(each, each.least, short, f"{who} needs a slot to start")
            for each in its:
                if each.size == 0 and each.left and self._wanted(each.left, short):
                    self._park(each, short, f"{who} needs its slots to start")

    def _use_coming(self, short: Counter[str]) -> None:
        for kind in sorted(short, reverse=True):  # "" comes last
            for source in [kind] if kind else sorted(self._coming):
                number = min(short[kind], self._coming[source])
                short[kind] -= number
                self._coming[source] -= number

    def _wanted(self, held: Iterable[Assignment], short: Counter[str]) -> list[Assignment]:
        return [
            each for each in held if each.agent not in self._barred and (short[self._kind(each)] > 0 or short[""] > 0)
        ]

    def _shrink(self, surplus: _Surplus, least: int, short: Counter[str], reason: str) -> None:
        for each in list(surplus.left):
            if len(surplus.left) <= least or not self._wanted([each], short):
                continue
            self._count(each, short)
            surplus.left.remove(each)
            self._give_way(surplus, each, reason)

    def _count(self, given: Assignment, short: Counter[str]) -> None:
        kind = self._kind(given) if short[self._kind(given)] > 0 else ""
        short[kind] -= 1

    def _park(self, surplus: _Surplus, short: Counter[str], reason: str) -> None:
        """All at once: fewer than its minimum are of no use to it."""
        for each in surplus.left:
            self._count(each, short)
            self._give_way(surplus, each, reason)
        surplus.left = []

    def _swap(self, short: Counter[str]) -> None:
        """A trial that may run anywhere gives way to one that needs this kind, and gets slots elsewhere."""
        if not any(number > 0 for kind, number in short.items() if kind):
            return
        for experiment in sorted(self._claims.experiments, key=lambda each: (-each.priority, -each.number)):
            for claim in reversed(experiment.trials) if not experiment.kind else ():
                gone = {each.number for each in self._moves.release}
                held = [each for each in first_to_leave(claim.held) if each.number not in gone]
                wanted = [each for each in held if short[self._kind(each)] > 0]
                if not wanted or not self._has_settled(claim):
                    continue
                spare = len(held) - claim.least
                for each in wanted[:spare] if spare > 0 else held:
                    short[self._kind(each)] -= 1
                    self._release(each, "another trial needs this kind of machine; this one may run elsewhere")

    def _take_over(self, wishes: list[_Shortage], surplus: list[_Surplus]) -> None:
        """Trials grow by slots of others, if it pays and both have settled."""
        givers: dict[int, deque[_Surplus]] = {}  # by experiment
        for each in surplus if wishes else ():
            if len(each.left) > each.size and (each.is_waiting or self._has_settled(each.claim)):
                givers.setdefault(each.experiment, deque()).append(each)
        for wish in wishes:
            short = Counter({wish.kind: wish.to_grow})
            self._use_coming(short)
            if short[wish.kind] > 0 and givers and self._has_settled(wish.claim):
                self._take_from(wish, givers, short)

    def _take_from(self, wish: _Shortage, givers: dict[int, deque[_Surplus]], short: Counter[str]) -> None:
        for number, its in list(givers.items()):
            while its and short[wish.kind] > 0 and self._may_take(wish, its[0], short):
                giver = its[0]
                reason = f"{_name(wish.claim)} should grow"
                least = (
                    len(giver.left) - 1 if number == wish.experiment.number and not giver.is_waiting else giver.least
                )
                self._shrink(giver, max(least, giver.least), short, reason)
                if giver.size == 0 and len(giver.left) == giver.least and short[wish.kind] > 0:
                    self._park(giver, short, reason)
                if len(giver.left) <= giver.size:
                    its.popleft()
                wish.has += number == wish.experiment.number
            if not its:
                del givers[number]
            if short[wish.kind] <= 0:
                return

    def _may_take(self, wish: _Shortage, giver: _Surplus, short: Counter[str]) -> bool:
        return bool(self._wanted(giver.left, short)) and self._gains(wish, giver)

    def _has_settled(self, claim: TrialClaim) -> bool:
        resized_at = self._facts.resized_at.get(claim.key)
        if resized_at is None or self._facts.now >= resized_at + self._facts.settle_s:
            return True
        self._moves.look_at.append(resized_at + self._facts.settle_s)
        return False

    def _gains(self, wish: _Shortage, giver: _Surplus) -> bool:
        """More than the giver loses, if both are of one experiment; between experiments, shares decide."""
        if giver.is_waiting or giver.experiment != wish.experiment.number:
            return True
        taker, now = wish.claim, wish.has + len(wish.claim.fixed)
        loser, then = giver.claim, len(giver.left) + len(giver.claim.fixed)
        saved_s, lost_s = taker.saved_s(now, now + 1), loser.saved_s(then - 1, then)
        return saved_s is not None and lost_s is not None and saved_s - lost_s > taker.move_s

    def _keep_limits(self, surplus: list[_Surplus]) -> None:
        """Slots beyond limits, and slots that have turned out to be useless, are given back even if no trial wants
        them."""
        above, blocked = self._above_limits(), self._blocked_by_limits()
        for each in surplus:
            claim, names = each.claim, (each.experiment, each.claim.candidate.person)
            useful = max(claim.most, claim.least)
            while len(each.left) > each.size:
                too_many = any(
                    above[name] > 0 or (above[name] + blocked[name] > 0 and self._gives_way_to_own(each, name))
                    for name in names
                )
                is_useless = not each.is_waiting and (len(each.left) > useful or each.is_part)
                if not too_many and not (is_useless and self._has_settled(claim)):
                    break
                reason = "more slots than its limit allows" if too_many else each.why_useless
                for given in [each.left[0]] if len(each.left) > each.least else list(each.left):
                    each.left.remove(given)
                    above.subtract(names)
                    self._give_way(each, given, reason)

    def _room_below_limits(self) -> Counter[Name]:
        """How many slots each experiment and person may have beyond what trials that do not wait should have."""
        room: Counter[Name] = Counter()
        for claim in self._claims.trials.values():
            for name, limit in self._limits.of(claim.candidate).items():
                room.setdefault(name, limit)
                room[name] -= self._sizes.get(claim.key, 0) + len(claim.fixed)
        return room

    def _above_limits(self) -> Counter[Name]:
        """How many slots each experiment and person holds beyond the limit."""
        gone = {each.number for each in self._moves.release}
        above: Counter[Name] = Counter()
        for claim in self._claims.trials.values():
            for name, limit in self._limits.of(claim.candidate).items():
                above.setdefault(name, -limit)
                above[name] += sum(each.number not in gone for each in (*claim.held, *claim.fixed))
        return above

    def _blocked_by_limits(self) -> Counter[Name]:
        """Slots that wait for others of the same experiment or person."""
        blocked: Counter[Name] = Counter()
        for wish in self._blocked:
            blocked.update(self._limits.missing(wish.claim.candidate, wish.claim.least - wish.has))
        return blocked

    def _gives_way_to_own(self, surplus: _Surplus, name: Name) -> bool:
        """Whether it gives way to a trial of the same experiment or person, which should have its slots."""
        first = min(each.experiment.priority for each in self._blocked if name in self._limits.of(each.claim.candidate))
        return surplus.is_waiting or surplus.priority > first or self._has_settled(surplus.claim)

    def _give_way(self, surplus: _Surplus, given: Assignment, reason: str) -> None:
        self._release(given, WAITS if surplus.is_waiting else reason)
        self._moves.given_up.setdefault(surplus.experiment, []).append(surplus.claim)

    def _release(self, given: Assignment, reason: str) -> None:
        self._moves.release.append(SlotRelease(number=given.number, how=wire.PARK, reason=reason))


def _name(claim: TrialClaim) -> str:
    return wire.trial_job(claim.candidate.experiment, claim.candidate.trial)


def _reason(agent: str, slot: int, why: str) -> str:
    return f"slot {slot} of {agent} was free" if why == "free" else why
