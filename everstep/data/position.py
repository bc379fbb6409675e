"""How far training has come in the data: an absolute number of samples in an epoch, advanced by each commit.

The same on all workers; part of the state that newcomers and laggards receive. Never "steps × batch × world size"."""

from __future__ import annotations

from typing import Any

from everstep.data.epoch_order import EpochOrder
from everstep.data.sampler import resume_point
from everstep.engine.pulse import DataPlace
from everstep.errors import UsageError


class Position:
    def __init__(self, *, size: int, seed: int, shuffle: bool) -> None:
        self.size = size
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0
        self.samples = 0  # of the epoch, consumed by committed steps
        self.order: EpochOrder | None = None  # known once the number of micro-batches is
        self.is_in_one = False  # the loop goes through an epoch
        self.last_iterated = -1  # the epoch that it has left last
        self._done_after: dict[str, int] = {}  # what is done once after each epoch: after which it was done last
        self._done_before = -1  # the same, for what the state that training began with does not name

    def advance(self, *_: object) -> None:
        """A step was committed."""
        order = self._known_order()
        self.samples += order.samples_at(self.samples)
        self._turn()

    def advance_to(self, epoch: int) -> bool:
        """Leave what is left of the present epoch out, if a later one is wanted."""
        self._turn()
        if epoch <= self.epoch:
            return False
        self.epoch, self.samples = epoch, 0
        return True

    def _turn(self) -> None:
        """At an epoch's end the position is the start of the next."""
        if not self._known_order().samples_at(self.samples):
            self.epoch, self.samples = self.epoch + 1, 0

    def expect_after(self, name: str) -> None:
        self._done_after.setdefault(name, self._done_before)

    def expect_in_steps(self, name: str) -> None:
        """It has shown that it is done in steps, not after epochs."""
        self._done_after.pop(name, None)

    @property
    def first_unfinished(self) -> int:
        """The epoch to continue with: the one just trained, if something is still to be done after it."""
        is_left = self.samples == 0 and any(done < self.epoch - 1 for done in self._done_after.values())
        return self.epoch - 1 if is_left else self.epoch

    def is_first_after(self, name: str) -> bool:
        """Whether something that is done once after each epoch is still to be done after the one just left.

        Not for a worker that was brought past it by a peer's state or a checkpoint: there it is in the state."""
        if self.last_iterated <= self._done_after.get(name, self._done_before):
            return False
        self._done_after[name] = self.last_iterated
        return True

    def place(self) -> DataPlace:
        """Which data the step to come is made of."""
        return DataPlace(self.epoch, self.samples, self._known_order().samples_at(self.samples))

    @property
    def records(self) -> int:
        """All that were trained on, from the first epoch on."""
        return self._known_order().records(self.epoch, self.samples)

    def void_micro_batches(self) -> tuple[int, ...]:
        return self._known_order().void_micro_batches(self.samples)

    def _known_order(self) -> EpochOrder:
        if self.order is None:
            raise UsageError(
                "the loader is not bound to a trainer", hint="pass it to ElasticTrainer", code="position-not-bound"
            )
        return self.order

    def state_dict(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "position": self.samples,
            "size": self.size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "done_after": dict(self._done_after),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What a checkpoint or a peer says. An empty state is a fresh start."""
        self.epoch, self.samples = resume_point(state, size=self.size, seed=self.seed, shuffle=self.shuffle)
        self._done_before, done = self.epoch - 1, state.get("done_after", {})
        self._done_after = dict.fromkeys(self._done_after, self._done_before) | done
