"""Shares by speed: steps end as early as possible, shares change only for a clear gain, and all decide the same."""

from __future__ import annotations

from itertools import pairwise, product
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.engine.balance import SURE_AFTER, Balance, Stragglers
from everstep.engine.dealing import decide_deal, equal_shares, num_nodes, shares_by_speed, slowness
from everstep.engine.pace import LEAST_STEPS, WINDOW, HostClock, MicroBatchPace
from everstep.engine.pulse import Pulse, decide_pulse
from everstep.engine.tree import cover
from everstep.engine.world import World

SLOW_LAST = (0.1, 0.1, 0.1, 0.2)


@given(paces=st.lists(st.sampled_from([1.0, 1.5, 2.0, 3.0]), min_size=2, max_size=3), number=st.integers(3, 9))
def test_shares_by_speed_end_as_early_as_possible(paces: list[float], number: int) -> None:
    def end(shares: Any) -> float:
        return max(share * pace for share, pace in zip(shares, paces, strict=True))

    found = shares_by_speed(number, paces)
    possible = [each for each in product(range(1, number + 1), repeat=len(paces)) if sum(each) == number]
    assert sum(found) == number and min(found) >= 1
    assert end(found) == min(map(end, possible))


def test_a_slow_worker_gets_fewer_micro_batches_and_the_step_time_is_predicted() -> None:
    deal = decide_deal((4, 4, 4, 4), SLOW_LAST, 0.01, is_exact=False)
    assert deal is not None
    assert deal.shares == (5, 5, 4, 2)
    assert (deal.step_s, deal.step_s_before) == pytest.approx((0.51, 0.81))


@given(st.lists(st.floats(0.095, 0.105), min_size=2, max_size=8), st.integers(1, 12))
def test_equal_machines_keep_equal_shares(paces: list[float], each: int) -> None:
    assert decide_deal((each,) * len(paces), paces, 0.0, is_exact=True) is None


@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6), st.integers(1, 8), st.floats(0.0, 1.0), st.booleans())
def test_after_a_change_the_same_speeds_change_nothing_more(
    paces: list[float], each: int, sum_s: float, is_exact: bool
) -> None:
    before = equal_shares(each * len(paces), len(paces))
    deal = decide_deal(before, paces, sum_s, is_exact=is_exact)
    if deal is not None:
        settled_sum_s = deal.step_s - max(s * p for s, p in zip(deal.shares, paces, strict=True))
        assert decide_deal(deal.shares, paces, max(0.0, settled_sum_s), is_exact=is_exact) is None


@given(st.integers(1, 70), st.data())
def test_sums_of_a_run_are_counted_as_the_tree_has_them(num_leaves: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, num_leaves - 1))
    stop = data.draw(st.integers(start + 1, num_leaves))
    assert num_nodes(start, stop, num_leaves) == len(cover(range(start, stop), num_leaves))


def test_if_sums_dominate_a_step_runs_end_where_subtrees_end() -> None:
    assert decide_deal((4, 4, 4, 4), SLOW_LAST, 2.0, is_exact=True) is None, "too little to gain"
    deal = decide_deal((4, 4, 4, 4), SLOW_LAST, 0.5, is_exact=False)
    assert deal is not None and deal.shares == (5, 5, 4, 2)
    assert decide_deal((4, 4, 4, 4), SLOW_LAST, 0.5, is_exact=True) is None, "twice the sums to send"


def test_times_that_are_noise_change_nothing() -> None:
    assert decide_deal((4, 4), (0.0001, 0.0002), 0.0, is_exact=True) is None


def test_a_worker_of_unknown_speed_counts_as_the_median() -> None:
    deal = decide_deal((4, 4, 4, 4), (0.1, 0.1, 0.2, 0.0), 0.0, is_exact=True)
    assert deal is not None and deal.shares == (5, 5, 2, 4)
    assert decide_deal((4, 4), (0.0, 0.0), 0.0, is_exact=True) is None


class Ticks(HostClock):
    """A clock that a test sets."""

    now = 0.0

    def mark(self) -> float:
        return self.now


def step(pace: MicroBatchPace, clock: Ticks, work_s: float, number: int = 2, sum_s: float = 0.5) -> None:
    clock.now += work_s
    pace.computed(number)
    clock.now += sum_s
    pace.committed()


def test_a_pace_is_a_median_without_the_first_step_of_a_generation() -> None:
    pace, clock = MicroBatchPace(), Ticks()
    pace.clock = clock
    step(pace, clock, 100.0)  # compiles
    for work_s in [2.0] * LEAST_STEPS:
        assert pace.micro_batch_s == 0.0
        step(pace, clock, work_s)
    step(pace, clock, 50.0)  # a validation before it
    assert (pace.micro_batch_s, pace.sum_s) == (1.0, 0.5)
    pace.forget_step()
    step(pace, clock, 100.0)
    assert pace.micro_batch_s == 1.0, "what was measured before a regroup stays"
    for _ in range(WINDOW + 1):
        step(pace, clock, 6.0)
    assert pace.micro_batch_s == 3.0


def test_a_step_with_a_micro_batch_without_weight_says_nothing_about_speed() -> None:
    pace, clock = MicroBatchPace(), Ticks()
    pace.clock = clock
    for _ in range(10):
        step(pace, clock, 1.0, number=0)
    assert pace.micro_batch_s == 0.0


def heard(micro_batch_s: tuple[float, ...], sum_s: float = 0.01) -> Any:
    pulses = [
        Pulse(generation=1, step=0, wants_regroup=False, is_leaving=False, used=b"", micro_batch_s=each, sum_s=sum_s)
        for each in micro_batch_s
    ]
    return decide_pulse([Pulse.unpack(each.pack()) for each in pulses], 1.0)


def test_all_workers_of_a_generation_decide_the_same_whatever_they_have_heard_before() -> None:
    old, new = Balance(), Balance()
    old.begin_generation(["w0", "w1"], 8, can_deal=True, is_exact=True)
    for _ in range(3):
        old.committed(heard((0.1, 0.5)), World(generation=1, rank=0, size=2), 1)
    assert old.shares == (7, 1)
    for balance in (old, new):
        balance.begin_generation(["w0", "w1", "w2"], 8, can_deal=True, is_exact=True)
    for paces in [(0.1, 0.1, 0.0), (0.1, 0.1, 0.3), (0.2, 0.1, 0.3)] * 7:
        for rank, balance in enumerate((old, new)):
            balance.committed(heard(paces), World(generation=2, rank=rank, size=3), 2)
        assert (old.shares, old.num_deals) == (new.shares, new.num_deals)
    assert old.num_deals > 0


def test_shares_stay_for_some_steps_after_a_change() -> None:
    balance, world = Balance(), World(generation=1, rank=1, size=2)
    balance.begin_generation(["w0", "w1"], 8, can_deal=True, is_exact=True)
    changes = []
    for number in range(4 * WINDOW):
        before = balance.shares
        balance.committed(heard((0.1, 0.3) if number % 2 else (0.3, 0.1)), world, number)
        changes += [number] if balance.shares != before else []
    assert min(b - a for a, b in pairwise(changes)) >= WINDOW


def test_if_each_worker_has_a_fixed_number_nothing_is_dealt() -> None:
    balance = Balance()
    balance.begin_generation(["w0", "w1"], 8, can_deal=False, is_exact=False)
    for number in range(20):
        balance.committed(heard((0.1, 0.5)), World(generation=1, rank=0, size=2), number)
    assert balance.shares == (4, 4)


def test_a_slow_worker_is_named_once_and_once_more_when_it_has_recovered() -> None:
    stragglers = Stragglers()
    slow, even = {"w0": 0.1, "w1": 0.1, "w2": 0.21}, {"w0": 0.1, "w1": 0.1, "w2": 0.11}
    assert [stragglers.hear(slow) for _ in range(SURE_AFTER - 1)] == [[]] * (SURE_AFTER - 1)
    ((worker, factor),) = stragglers.hear(slow)
    assert (worker, factor) == ("w2", pytest.approx(2.1))
    assert [stragglers.hear(slow) for _ in range(50)] == [[]] * 50
    said = [stragglers.hear(even) for _ in range(50)]
    assert [each for each in said if each] == [[("w2", pytest.approx(1.1))]]


def test_a_worker_is_not_named_for_a_short_hiccup() -> None:
    stragglers = Stragglers()
    for number in range(50):
        assert stragglers.hear({"w0": 0.1, "w1": 0.3 if number % SURE_AFTER else 0.1}) == []


@given(st.lists(st.floats(0.01, 10.0), min_size=2, max_size=9))
def test_a_workers_factor_is_its_time_over_the_median_of_the_others(paces: list[float]) -> None:
    found = slowness({f"w{rank}": pace for rank, pace in enumerate(paces)})
    for rank, pace in enumerate(paces):
        usual = median(paces[:rank] + paces[rank + 1 :])
        assert found[f"w{rank}"] == pytest.approx(pace / usual) or abs(pace - usual) < 0.0021


def test_a_worker_is_compared_with_the_others_even_if_there_is_only_one() -> None:
    assert slowness({"w0": 0.1, "w1": 0.2})["w1"] == pytest.approx(2.0)
    assert slowness({"w0": 0.1, "w1": 0.0}) == {"w0": 0.0, "w1": 0.0}, "not known"
    assert slowness({"w0": 0.0001, "w1": 0.0003})["w1"] == 1.0, "noise"


class Device(Ticks):
    """A device works in the background: how long something took is known one mark later."""

    def between_s(self, first: float, second: float) -> float | None:
        return second - first if second < self.now else None


def test_times_of_a_device_are_read_with_the_next_step() -> None:
    pace, clock = MicroBatchPace(), Device()
    pace.clock = clock
    for _ in range(LEAST_STEPS + 1):
        step(pace, clock, 2.0)
    assert pace.micro_batch_s == 0.0
    step(pace, clock, 9.0)
    assert (pace.micro_batch_s, pace.sum_s) == (1.0, 0.5)
