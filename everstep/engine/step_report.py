"""What a worker says about its step to all others: a header before it sends gradients, a pulse with their sum.

From these, all workers decide alike. Reads the step's work and changes nothing."""

from __future__ import annotations

import time

from everstep.engine.pulse import STEPS, Header, Pulse
from everstep.engine.regroup import Regrouping
from everstep.engine.step_work import StepWork
from everstep.engine.world import World


def header_of(work: StepWork, world: World, note: bytes) -> Header:
    assert work.plan is not None
    mine = set(work.plan.micro_batches(world.rank))
    weights = tuple(
        work.weights[micro_batch] if micro_batch in mine else -1.0 for micro_batch in range(work.num_micro_batches)
    )
    return Header(
        generation=world.generation,
        step=work.step,
        kind=STEPS,
        place=work.data.place(),
        weights=weights,
        note_bytes=len(note),
    )


def pulse_of(work: StepWork, regrouping: Regrouping, note: bytes) -> Pulse:
    world = regrouping.world
    return Pulse(
        generation=world.generation,
        step=work.step,
        wants_regroup=regrouping.membership.newcomers > 0,
        is_leaving=regrouping.is_asked_to_leave,
        wants_check=work.comparison.is_due(time.monotonic(), is_first=world.rank == 0),
        settings=work.comparison.settings,
        weights=work.comparison.weights,
        used=work.gradients.used_parameters(),
        micro_batch_s=work.balance.pace.micro_batch_s,
        sum_s=work.balance.pace.sum_s,
        note=work.data.last_note(note),
    )
