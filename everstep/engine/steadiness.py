"""Check once whether a script leaves its state alone between two commits.

If it does, its state can be sent straight from memory while the worker computes. If a script perturbs its weights
within a step, as adversarial training does, its state is copied first, and never in the middle of a perturbation."""

from __future__ import annotations

from everstep.engine.parcel import large_tensors
from everstep.engine.registry import Registry
from everstep.engine.state import tensor_sum
from everstep.engine.state_room import in_pages
from everstep.errors import EverstepError

_AT_STEP = 2  # counted in this process: by then, optimizers have their state


class Steadiness:
    """The check of one worker's script."""

    def __init__(self, registry: Registry) -> None:
        self.is_steady = False  # also: not known yet
        self.state_bytes = 0  # what a newcomer needs for the large tensors; 0: not known yet
        self._registry = registry
        self._num_steps = 0
        # At the beginning of the step, as long as the script is not known to be steady:
        self._weights: list[bytes] | None = None
        self._large: list[bytes] | None = None

    def committed(self) -> None:
        self._num_steps += 1
        self._weights = self._large = None

    def micro_batch_begins(self) -> None:
        if self.is_steady or self._weights is not None:
            return
        self._weights = self._weight_sums()
        if self._num_steps == _AT_STEP:
            self._large = self._large_sums()

    def backward_ended(self) -> None:
        """At any time from here to the update, a peer may need this worker's state."""
        if self._large is not None and not self.is_steady:
            self.is_steady = self.is_intact and self._large_sums() == self._large

    @property
    def is_intact(self) -> bool:
        """The weights are those of the last commit, as far as is known."""
        return self._weights is None or self._weight_sums() == self._weights

    def loaded(self) -> None:
        """A peer's state: that of its last commit."""
        self._weights = self._large = None

    def note_change(self) -> None:
        """Called when the state has changed while it was sent."""
        self.is_steady, self._num_steps = False, _AT_STEP + 1

    def _weight_sums(self) -> list[bytes]:
        return [tensor_sum(p) for module in self._registry.modules for p in module.parameters()]

    def _large_sums(self) -> list[bytes]:
        try:
            large = large_tensors(self._registry.state())
        except EverstepError:  # it cannot be sent at all; a worker that stays alone need not know
            return []
        self.state_bytes = sum(in_pages(tensor.numel() * tensor.element_size()) for tensor in large)
        return [tensor_sum(tensor) for tensor in large]
