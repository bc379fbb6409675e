"""Never two histories, and no state dropped that anybody still holds: a simulated job, whatever happens to it.

The workers here really step, freeze, die, lose the network and send each other the state; the coordinator sees only
what they tell it. What must hold is stated in terms of the workers' state, not of the coordinator's rules."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from everstep.coordinator.roster.facts import Generation

FENCE_S = 60.0
MAX_WORKERS = 6


@dataclass
class Process:
    """A worker as it is. `group` is the generation it takes part in, 0 while it is in none."""

    name: str
    group: int = 0
    settled: int = 0
    step: int = 0
    heard_at: float = 0.0  # when it last reached the coordinator
    is_running: bool = True
    is_cut: bool = False  # from the coordinator, not from its peers
    is_dead: bool = False
    is_fresh: bool = True  # nothing was committed by others since its script loaded what was saved
    wants_to_leave: bool = False
    is_released: bool = False

    @property
    def can_call(self) -> bool:
        return self.is_running and not self.is_cut and not self.is_dead and not self.is_released


class Histories(RuleBasedStateMachine):
    stage_class = None

    @initialize(start_workers=st.integers(1, 3), max_workers=st.sampled_from([None, 3]))
    def begin(self, start_workers, max_workers):
        self.play = self.stage_class(start_workers=start_workers, max_workers=max_workers, fence_s=FENCE_S)
        self.processes: dict[str, Process] = {}
        self.proved = (0, 0)  # generation and steps that all its members committed: the state that must not get lost
        self.latest: Generation = self.play.generation
        for _ in range(start_workers):
            self.start()
        for process in self.living():
            self.play.arrive(process.name)
        self.look()

    # --- what workers do ---

    @precondition(lambda self: len(self.living()) < MAX_WORKERS and not self.play.roster.is_over)
    @rule()
    def start(self):
        (name,) = self.play.add(1)
        self.processes[name] = Process(name, heard_at=self.play.now)
        self.look()

    @rule(data=st.data())
    def arrive(self, data):
        process = self.pick(data, lambda p: p.can_call)
        if process and not self.play.roster.is_over:
            self.make_arrive(process, data)

    @rule(data=st.data())
    def all_arrive(self, data):
        """The pulse of a step boundary, or a loss that all were told of."""
        for process in self.living():
            if process.can_call and not process.wants_to_leave and not self.play.roster.is_over:
                self.make_arrive(process, data)

    def make_arrive(self, process, data):
        is_stale = self.play.roster.workers[process.name].is_stale
        if is_stale or self.play.status(process.name) == "left":  # it could not hear of it: refused, so it ends
            process.is_dead = True
            return
        reachable = sorted(self.processes.keys() - {process.name})
        cut = data.draw(st.lists(st.sampled_from(reachable), max_size=1)) if reachable else []
        process.group, process.wants_to_leave, process.heard_at = 0, False, self.play.now
        self.play.arrive(process.name, settled=process.settled, step=process.step, unreachable=tuple(cut))
        self.look()

    @rule(data=st.data())
    def settle_one(self, data):
        if process := self.pick(data, self.has_yet_to_settle):
            self.settle(process)

    @rule(data=st.data(), num_steps=st.integers(0, 2), is_interrupted=st.booleans())
    def work(self, data, num_steps, is_interrupted):
        """All who can settle; then updates by all members of a group, the last of them perhaps by some only."""
        for process in filter(self.has_yet_to_settle, self.living()):
            self.settle(process)
        for number in range(num_steps):
            for group in {p.group for p in self.living() if p.group}:
                self.step(group, data if is_interrupted and number == num_steps - 1 else None)

    @staticmethod
    def has_yet_to_settle(process):
        return process.is_running and not process.is_dead and process.group and process.settled < process.group

    def settle(self, process):
        """Take over the leader's state, or find that one's own is the same."""
        members = [self.processes[member.worker] for member in self.generation_of(process).members]
        leader = self.leader(members, self.generation_of(process).continues)
        if leader and leader.is_running and not leader.is_dead and leader.group == process.group:
            process.step, process.settled = leader.step, process.group
            if process.can_call and self.play.generation.number == process.group:
                self.play.settle(process.name, step=process.step)
                self.look()

    def step(self, group, interruptions):
        """A group need not be the generation that the coordinator knows: it steps as long as all of it can."""
        if not self.can_step(group):
            return
        members = [self.processes[name] for name in self.members_of(group)]
        assert group == self.play.generation.number, "two histories: an old generation stepped on"
        self.proved = max(self.proved, (group, min(p.step for p in members)))
        for process in members:
            process.step += interruptions is None or interruptions.draw(st.booleans())
        for process in self.living():
            process.is_fresh = process.is_fresh and process in members

    @rule(data=st.data())
    def interrupted_update(self, data):
        """A worker that was stopped inside an update holds nothing; here, only when others hold the state."""
        process = self.pick(data, lambda p: p.can_call and p.group and self.can_step(p.group))
        if process and any(p is not process and self.holds_proved(p) for p in self.living()):
            process.settled = 0
            self.make_arrive(process, data)

    @rule(data=st.data())
    def leave(self, data):
        process = self.pick(data, lambda p: p.can_call and p.group == self.play.generation.number)
        if process and self.play.generation.is_open:
            process.wants_to_leave, process.heard_at = True, self.play.now
            self.play.leave(process.name, step=process.step)
            process.group = 0
            self.look()

    # --- what happens to them ---

    @rule(data=st.data())
    def kill(self, data):
        if process := self.pick(data, lambda p: not p.is_dead):
            process.is_dead = True

    @rule(data=st.data())
    def report_death(self, data):
        if process := self.pick(data, lambda p: p.is_dead, of=self.processes.values()):
            self.play.exit(process.name, step=process.step)
            self.look()

    @rule()
    def kill_all_members(self):
        """One machine with all of them: only those who wait outside are left."""
        for process in [self.processes[member.worker] for member in self.play.generation.members]:
            process.is_dead = True
            self.play.exit(process.name, step=process.step)
        self.look()

    @rule(data=st.data())
    def obey_kill_order(self, data):
        if process := self.pick(data, lambda p: self.play.status(p.name) == "lost"):
            process.is_dead = True
            self.play.exit(process.name, step=process.step)
            self.look()

    @rule(data=st.data())
    def freeze_or_thaw(self, data):
        if process := self.pick(data, lambda p: not p.is_dead):
            process.is_running = not process.is_running
            self.stop_the_fenced()

    @rule(data=st.data())
    def cut_or_mend(self, data):
        if process := self.pick(data, lambda p: not p.is_dead):
            process.is_cut = not process.is_cut

    @rule()
    def cut_all(self):
        """The coordinator's own network fails: the generation goes on without it."""
        for process in self.living():
            process.is_cut = True

    @rule(seconds=st.sampled_from([0.5, 2.0, 3.0, 30.0, FENCE_S]))
    def time_passes(self, seconds):
        callers = [p for p in self.living() if p.can_call]
        for process in callers:
            process.heard_at = self.play.now + seconds
        self.play.now += seconds
        self.stop_the_fenced()
        self.play.now -= seconds
        self.play.after(seconds, *(p.name for p in callers))
        self.look()

    def stop_the_fenced(self):
        """Whoever could not reach the coordinator for so long stops by itself, as soon as it runs at all."""
        for process in self.living():
            if self.play.now - process.heard_at >= FENCE_S:
                process.is_dead = True

    # --- what the coordinator made of it ---

    def look(self):
        """Everybody who can hear is told; then the promises are checked."""
        generation = self.play.generation
        if generation.number != self.latest.number:
            assert generation.number == self.latest.number + 1
            self.check_formed(generation)
        self.latest = generation
        for process in self.living():
            self.tell(process)

    def tell(self, process):
        roster = self.play.roster
        if not process.can_call:
            return
        if self.play.status(process.name) == "left":
            others = [p for p in self.living() if p is not process]
            assert roster.is_finished or not process.step or any(self.holds_proved(p) for p in others)
            process.is_released = process.is_dead = True
        elif process.name in roster.recalled:
            process.wants_to_leave = False
        elif roster.generation.is_open and roster.is_member(process.name) and not process.wants_to_leave:
            process.group = roster.generation.number

    def check_formed(self, generation):
        members = [self.processes[member.worker] for member in generation.members]
        for process in self.living():
            assert not (process.group and process.name in {p.name for p in members}), "a member did not stand ready"
        leader = self.leader(members, generation.continues)
        if "NO LIVE WORKER" in generation.reason and not any(self.holds_proved(p) for p in members):
            holders = [p for p in self.living() if self.holds_proved(p) and not self.was_waited_for(p)]
            assert not holders, f"live holders were given up: {holders}"
            self.proved = (0, leader.step if leader else 0)
            assert all(p.is_fresh for p in members), "one that loaded before the loss may lead"
        assert leader, "nobody may lead"
        assert leader.step >= self.proved[1], "a proved step got lost"

    # --- facts about the simulation ---

    def pick(self, data, wanted, of=None):
        found = [p for p in (self.living() if of is None else of) if wanted(p)]
        return data.draw(st.sampled_from(found)) if found else None

    def can_step(self, group):
        members = [self.processes[name] for name in self.members_of(group)]
        return all(p.group == p.settled == group and p.is_running and not p.is_dead for p in members)

    def living(self):
        return [p for p in self.processes.values() if not p.is_dead]

    def holds_proved(self, process):
        generation, step = self.proved
        return process.settled >= max(1, generation) and process.step >= step

    def was_waited_for(self, process):
        """Alive and called, but neither came nor was killed for as long as anybody is waited for; or let go."""
        lost_at = self.play.roster.lost_at.get(process.name)
        is_over = lost_at is not None and self.play.now - lost_at >= FENCE_S
        return is_over or self.play.status(process.name) == "left"

    def generation_of(self, process):
        return self.play.generation if process.group == self.play.generation.number else self.play.roster.previous

    def members_of(self, group):
        for generation in (self.play.generation, self.play.roster.previous):
            if generation.number == group:
                return [member.worker for member in generation.members]
        return list(self.processes)  # older: somebody in it has gone on, so that it cannot step

    @staticmethod
    def leader(members, continues):
        able = [p for p in members if p.settled >= continues]
        return max(able, key=lambda p: (p.settled, p.step), default=None)

    @invariant()
    def the_next_look_is_ahead(self):
        play = getattr(self, "play", None)
        assert play is None or play.next_look is None or play.next_look > play.now


@pytest.mark.parametrize("num_examples", [150])
def test_there_is_one_history(stage, num_examples):
    class Simulation(Histories):
        stage_class = stage

    limits = settings(max_examples=num_examples, stateful_step_count=60, deadline=None)
    case = Simulation.TestCase
    case.settings = limits
    case("runTest").runTest()
