"""What workers compare: equal digests for equal settings and weights, and a sentence for what differs."""

from __future__ import annotations

from dataclasses import replace

import numpy
import torch
from torch import nn

from everstep.engine.pulse import Pulse, decide_pulse
from everstep.engine.worker_comparison import PAUSE_S, UNKNOWN, Comparison, first_difference, way_out

PULSE = Pulse(generation=1, step=1, wants_regroup=False, is_leaving=False, used=b"")


def updated(**settings: object) -> Comparison:
    comparison = Comparison()
    model = nn.Linear(2, 1)
    comparison.note_update(0, torch.optim.Adam(model.parameters(), **settings))  # type: ignore[arg-type]
    comparison.committed()
    return comparison


def test_equal_settings_have_equal_digests_whatever_holds_them() -> None:
    rate = 0.1
    same = [updated(lr=rate), updated(lr=float("0.1")), updated(lr=rate, betas=(0.9, 0.999))]
    assert len({each.settings for each in same}) == 1
    assert updated(lr=numpy.float64(0.1)).settings == same[0].settings
    assert updated(lr=0.1000001).settings != same[0].settings
    assert updated(lr=0.1, amsgrad=True).settings != same[0].settings


def test_one_that_was_given_a_state_has_nothing_to_compare() -> None:
    comparison = updated(lr=0.1)
    comparison.note_weights([torch.ones(3)])
    comparison.forget()
    assert (comparison.settings, comparison.weights) == (UNKNOWN, UNKNOWN)


def test_an_optimizer_that_acts_now_and_then_is_compared_when_it_has_acted() -> None:
    """One that was given a state meanwhile has seen it act never, or in another order."""
    first, second = (torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=rate) for rate in (0.1, 0.2))
    old, new = Comparison(), Comparison()

    def update(comparison: Comparison, *optimizers: int) -> int:
        for number in optimizers:
            comparison.note_update(number, (first, second)[number])
        comparison.committed()
        return comparison.settings

    update(old, 0, 1)
    assert update(old, 0) == update(new, 0) != UNKNOWN
    assert update(old, 0, 1) == update(new, 1, 0)
    assert update(old, 0) != update(new, 0, 1)
    assert first_difference([("w0", old.facts([])), ("w1", new.facts([]))]) == (
        "the list of optimizers that acted is [0] on w0 and [0, 1] on w1"
    )


def test_one_changed_bit_changes_the_digest_of_all_weights() -> None:
    parameters = [torch.randn(5, 3), torch.ones(7, dtype=torch.bfloat16), torch.randn(4, dtype=torch.float64).t()]
    parameters += [torch.randn(2, dtype=torch.complex64), torch.randn(2, dtype=torch.complex128), torch.tensor(1.0)]
    one, other = Comparison(), Comparison()
    one.note_weights(parameters)
    other.note_weights([each.clone() for each in parameters])
    assert one.weights == other.weights != UNKNOWN
    parameters[1].view(torch.int16)[3] ^= 1
    other.note_weights(parameters)
    assert one.weights != other.weights


def test_weights_are_summed_at_first_and_then_now_and_then() -> None:
    comparison = Comparison()
    assert comparison.is_due(1.0, is_first=True) and not comparison.is_due(1.0, is_first=False)
    comparison.note_weights([torch.ones(3)])
    assert not comparison.is_due(comparison._due_at - PAUSE_S, is_first=True)
    assert comparison.is_due(comparison._due_at, is_first=True)
    comparison.is_wanted = True  # a checkpoint was saved
    assert comparison.is_due(0.0, is_first=False)


def test_the_sentence_says_what_differs_and_between_whom() -> None:
    said = [("w0", updated(lr=0.1).facts([])), ("w1", updated(lr=0.05).facts([])), ("w2", updated(lr=0.1).facts([]))]
    assert first_difference(said) == "lr of optimizer 0, group 0 is 0.1 on w0, w2 and 0.05 on w1"
    assert first_difference([said[0], said[2], ("w3", {})]) is None


def test_the_way_out_is_that_of_what_differs() -> None:
    assert way_out("lr of optimizer 0, group 0 is …").startswith("prepare each scheduler")
    assert "machines of one kind" in way_out("the checksum of bias is …")


def test_pulses_tell_of_a_difference_but_not_with_one_that_knows_nothing() -> None:
    assert not decide_pulse([replace(PULSE, settings=5), replace(PULSE, settings=5), PULSE], 1.0).is_differing
    assert decide_pulse([replace(PULSE, settings=5), replace(PULSE, settings=6)], 1.0).is_differing
    assert decide_pulse([replace(PULSE, weights=5), replace(PULSE, weights=6)], 1.0).is_differing
    assert decide_pulse([PULSE, replace(PULSE, wants_check=True)], 1.0).must_check
    beat = replace(PULSE, wants_check=True, settings=2**64 - 1, weights=7, used=b"\1")
    assert Pulse.unpack(beat.pack()) == beat
