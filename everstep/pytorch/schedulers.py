"""Learning-rate schedulers, and when the trainer steps them: with each batch, optimizer step or epoch, or never."""

from __future__ import annotations

import enum
from typing import Any

from torch.optim.lr_scheduler import ReduceLROnPlateau

from everstep.engine.arguments import check_count
from everstep.errors import UsageError
from everstep.pytorch.progress import BatchProgress


class StepMode(enum.Enum):
    STEP_EVERY_EPOCH = 1
    STEP_EVERY_BATCH = 2
    MANUAL_STEP = 3
    STEP_EVERY_OPTIMIZER_STEP = 4


class LRScheduler:
    """A torch scheduler, and when it is stepped: at every `frequency`-th epoch, batch or optimizer step."""

    StepMode = StepMode

    def __init__(self, scheduler: Any, step_mode: Any, frequency: int = 1) -> None:
        if not isinstance(step_mode, StepMode):
            names = ", ".join(mode.name for mode in StepMode)
            raise UsageError(
                f"step_mode={step_mode!r}", hint=f"one of LRScheduler.StepMode: {names}", code="step-mode-unknown"
            )
        check_count("frequency", frequency, of="steps or epochs", code="scheduler-frequency-not-positive")
        if isinstance(scheduler, ReduceLROnPlateau) and step_mode is not StepMode.MANUAL_STEP:
            raise UsageError(
                f"ReduceLROnPlateau with {step_mode.name}: it needs a metric, which the trainer does not know",
                hint="use MANUAL_STEP, and in a callback: def on_validation_end(self, metrics): "
                'self.scheduler.step(metrics["validation_loss"])',
                code="scheduler-needs-a-metric",
            )
        self.scheduler, self.step_mode, self.frequency = scheduler, step_mode, frequency

    def is_due(self, before: BatchProgress, after: BatchProgress, aggregation: int) -> bool:
        """Whether to step it after the batch in between; never after a batch without an optimizer step."""
        if self.step_mode is StepMode.STEP_EVERY_EPOCH:
            return after.epochs // self.frequency > before.epochs // self.frequency
        if self.step_mode is StepMode.STEP_EVERY_OPTIMIZER_STEP:
            return after.batches % (aggregation * self.frequency) == 0
        if self.step_mode is StepMode.STEP_EVERY_BATCH:
            stepped = after.batches % aggregation == 0
            first = after.batches - aggregation  # batches since the last optimizer step count too
            return stepped and after.batches // self.frequency > first // self.frequency
        return False
