"""How quickly a pool decides, how fairly it shares, and what growing trials bring.

`decision_s`: processor time of one decision for 1,000 running trials on 10,000 slots, of 100 experiments and 20 people;
the slower of an unchanged pool and one whose trial has just ended. `fair_error`: how far slot-seconds are from the
shares, relative, for two people with weights 1 and 3 on 4 slots in a minute of virtual time.

Simulated: 64 trials of 60 s (on one slot) on 16 slots, adaptive_asha with 4 rungs, speed on w slots w ** 0.9.
`elastic_s`: until the search is over, with trials on 1 to 8 slots; `one_slot_s`: one slot for each trial;
`best_fixed_s`: the best fixed number of 1, 2, 4 and 8.

With `--real`, on this machine's cores, from training as it happens: the three makespans of a search, `move_stop_s` and
`slot_useful_s` (a slot moves from one running trial to another), `preempt_s` (from the reply to `create` of an urgent
experiment to the first micro-batch of its last slot), `pause_s` and `activate_s` (8 trials), `events_per_s`
(results of 128 trials that a real coordinator takes, each in its store before it replies: `pool_events.py`). See
`pool_real.py`.
Each figure is printed as soon as it is known.

`makespan_s`: of the elastic search, from its beginning to its last result; `simulated_s`: the same search in
SimulatedPool, with the speeds and times that were measured (`pool_trace.py`); `simulated_error`: how far it is off.

The last line is JSON: decision_s, fair_error, elastic_s, one_slot_s, best_fixed_s, best_fixed_slots, move_stop_s,
slot_useful_s, preempt_s, pause_s, activate_s, events_per_s, makespan_s, simulated_s, simulated_error, cores, real (the
keys that were measured with real training; those of searches are simulated otherwise, and the others null)."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import pool_real
from benchmarks.figures import Figures
from benchmarks.last_line import last_line
from everstep.coordinator.experiments.seam import Candidate
from everstep.coordinator.pool.decisions import decide_pool
from everstep.coordinator.pool.facts import GIVEN, Assignment, NodeFacts, PoolFacts, TrialSpeed
from everstep.coordinator.pool.people import People, Person
from everstep.testing import SimulatedPool
from everstep.wire import trial_job

NUM_PEOPLE, NUM_EXPERIMENTS, TRIALS_EACH = 20, 100, 10
NUM_NODES, SLOTS_EACH, MOST_SLOTS = 1250, 8, 16
ROUNDS = 9

NUM_TRIALS, NUM_SLOTS, TRIAL_S, LENGTH = 64, 16, 60.0, 256
FIXED = (1, 2, 4, 8)
SEARCHER = {
    "name": "adaptive_asha",
    "mode": "aggressive",
    "metric": "loss",
    "max_trials": NUM_TRIALS,
    "max_rungs": 4,
    "divisor": 4,
    "max_length": {"batches": LENGTH},
    "max_concurrent_trials": 0,
}


def full_pool() -> PoolFacts:
    """Every slot is in use."""
    draw = random.Random(1)
    candidates = [_candidate(experiment, trial, draw) for experiment in range(1, NUM_EXPERIMENTS + 1)
                  for trial in range(1, TRIALS_EACH + 1)]  # fmt: skip
    facts = PoolFacts(
        now=1000.0,
        candidates=candidates,
        nodes=[NodeFacts(agent=f"n{place:04}", num_slots=SLOTS_EACH) for place in range(NUM_NODES)],
        assignments=[],
        people=People(known={f"p{place}": Person(weight=1 + place % 3) for place in range(NUM_PEOPLE)}),
        speeds={
            (each.experiment, each.trial): TrialSpeed(batches_per_s={1: 1.0, 2: 1.9, 4: 3.6, 8: 6.5})
            for each in candidates
            if each.experiment % 2
        },
        used_by_person={f"p{place}": draw.uniform(0, 30_000) for place in range(NUM_PEOPLE)},
    )
    given = [
        Assignment(
            number=number,
            pool=facts.pool,
            agent=each.agent,
            slot=each.slot,
            experiment=each.candidate.experiment,
            trial=each.candidate.trial,
            state=GIVEN,
            reason="",
            began_at=0.0,
        )
        for number, each in enumerate(decide_pool(facts).give, 1)
    ]
    return replace(facts, assignments=given)


def _candidate(experiment: int, trial: int, draw: random.Random) -> Candidate:
    return Candidate(
        experiment=experiment,
        trial=trial,
        trial_id=experiment * 1000 + trial,
        job=trial_job(experiment, trial),
        rank=(experiment, trial),
        is_waiting=False,
        waiting_since=0.0,
        person=f"p{experiment % NUM_PEOPLE}",
        min_slots=4 if experiment % 10 == 0 else 1,
        max_slots=MOST_SLOTS,
        batches_left=draw.uniform(10, 1000),
    )


def decision_s() -> float:
    full = full_pool()
    gone = full.candidates[0]
    one_ended = replace(
        full,
        candidates=full.candidates[1:],
        assignments=[each for each in full.assignments if each.key != (gone.experiment, gone.trial)],
    )
    return max(_least_s(full), _least_s(one_ended))


def _least_s(facts: PoolFacts) -> float:
    found = []
    for _ in range(ROUNDS):
        began = time.process_time()
        decide_pool(facts)
        found.append(time.process_time() - began)
    return min(found)


def fair_error(seconds: float = 60.0) -> float:
    weights = {"alice": 1.0, "bob": 3.0}
    pool = SimulatedPool(nodes={"a": 4}, people={name: Person(weight=each) for name, each in weights.items()})
    for person in weights:
        searcher = {"name": "random", "metric": "loss", "max_trials": 100, "max_length": {"batches": LENGTH}}
        pool.submit(searcher=searcher, person=person, batches_per_s=_speed, max_slots=4)
    used = pool.run(until=seconds).slot_s
    total, of_weight = sum(used.values()), sum(weights.values())
    return max(abs(used[name] / total / (each / of_weight) - 1) for name, each in weights.items())


def makespan_s(min_slots: int, max_slots: int) -> float:
    pool = SimulatedPool(nodes={"a": NUM_SLOTS})
    pool.submit(
        searcher=SEARCHER,
        hyperparameters={"lr": {"log": [1e-4, 1e-1]}},
        curve=lambda hparams, length: abs(hparams["lr"] - 0.01) + 1 / length,
        batches_per_s=_speed,
        min_slots=min_slots,
        max_slots=max_slots,
    )
    return pool.run().makespan_s


def _speed(hparams: Any, slots: int) -> float:
    return LENGTH / TRIAL_S * float(slots**0.9)


def simulate(figures: Figures) -> None:
    figures.put(decision_s=round(decision_s(), 4))
    figures.put(fair_error=round(fair_error(), 4))
    figures.put(elastic_s=round(makespan_s(1, max(FIXED)), 2))
    fixed = {slots: round(makespan_s(slots, slots), 2) for slots in FIXED}
    print(f"simulated makespan with a fixed number of slots: {fixed}", flush=True)
    best = min(fixed, key=lambda slots: fixed[slots])
    figures.put(one_slot_s=fixed[1], best_fixed_s=fixed[best], best_fixed_slots=best)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--real",
        nargs="*",
        default=[],
        choices=pool_real.PARTS,
        help="what to measure with training, in this order; fixed: --fixed after the first, else part of search",
    )
    parser.add_argument("--slots", type=int, default=os.cpu_count())
    parser.add_argument("--trials", type=int, default=NUM_TRIALS)
    parser.add_argument("--full-s", type=float, default=TRIAL_S, help="of a full trial on one slot")
    parser.add_argument(
        "--fixed", type=int, nargs="*", default=[2, 4], help="slots per trial to compare with, besides 1"
    )
    parser.add_argument("--rounds", type=int, default=1, help="of searches")
    parser.add_argument("--length", type=int, default=LENGTH, help="batches of a full trial")
    parser.add_argument("--trace", type=Path, help="file for the trace of the elastic search, for pool_trace.py")
    args = parser.parse_args()
    found, measured = Figures(), Figures()

    def report() -> dict[str, Any]:
        missing = dict.fromkeys(pool_real.KEYS)
        return {
            **missing,
            **found.known,
            **measured.known,
            "cores": os.cpu_count(),
            "real": sorted(measured.known),
        }

    with last_line(report):
        simulate(found)
        settings = pool_real.Settings(
            num_slots=args.slots,
            num_trials=args.trials,
            full_s=args.full_s,
            fixed=tuple(args.fixed),
            num_rounds=args.rounds,
            length=args.length,
            trace=args.trace,
        )
        pool_real.measure(settings, args.real, measured)
    if measured.failed:
        sys.exit(f"failed: {', '.join(measured.failed)}")


if __name__ == "__main__":
    main()
