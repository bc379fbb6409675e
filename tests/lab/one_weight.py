"""A trial with one weight, whose value and loss after each batch are known in advance.

The model is `w * x`, the loss its mean square, w begins at 1. With all x = 1 the gradient is 2w, so SGD at a learning
rate of 0.25 halves the weight with each batch: after n batches it is 2**-n, and the loss of batch n (from 0) is 4**-n,
both without rounding. A `Target` pulls the weight to each sample's own number instead, so that the order matters."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import data

from everstep import pytorch
from everstep.pytorch import Batch, PyTorchCallback, PyTorchTrial, PyTorchTrialContext, Trainer

SIZE = 16  # samples
MICRO_BATCH = 2  # samples of a micro-batch


class Ones(data.Dataset):
    """Sample i: 1, and i."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": torch.ones(1), "index": torch.tensor(index)}


class Weight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x


class Diary(PyTorchCallback):
    """Records every call of its hooks, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def count(self, hook: str) -> int:
        return sum(name == hook for name, _ in self.told)

    def of(self, hook: str) -> list[Any]:
        return [args for name, args in self.told if name == hook]

    @property
    def order(self) -> list[str]:
        return [name for name, _ in self.told]


def _note(hook: str) -> Callable[..., None]:
    def noted(self: Diary, *args: Any) -> None:
        self.told.append((hook, args))

    return noted


for _hook in [name for name in vars(PyTorchCallback) if name.startswith("on_")]:
    setattr(Diary, _hook, _note(_hook))


class OneWeight(PyTorchTrial):
    """`evaluate`: what evaluate_batch returns, from the weight and the batch. `more`: further training metrics."""

    def __init__(
        self,
        context: PyTorchTrialContext,
        *,
        lr: float = 0.25,
        size: int = SIZE,
        batch_size: int = MICRO_BATCH,
        shuffle: bool = False,
        drop_last: bool = False,
        validation_size: int = 6,
        callbacks: Mapping[str, PyTorchCallback] | None = None,
        evaluate: Callable[[Tensor, dict[str, Tensor]], dict[str, Any]] | None = None,
        more: Callable[[OneWeight], dict[str, Any]] | None = None,
        in_batch: Callable[[OneWeight, int], None] | None = None,
        clip: Callable[[Iterator[Any]], Any] | None = None,
        momentum: float = 0.0,
        reducer: Any = pytorch.Reducer.AVG,
        loader: Callable[..., Any] = pytorch.DataLoader,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **wrapping: Any,
    ) -> None:
        self.context = context
        self.model = model or context.wrap_model(Weight())
        self.optimizer = optimizer or context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), lr=lr, momentum=momentum), **wrapping
        )
        self.diary = Diary()
        self.callbacks = {"diary": self.diary, **(callbacks or {})}
        self.weights: list[float] = []  # before each batch
        self.lrs: list[float] = []
        self._begun: set[int] = set()
        self.batches: list[tuple[int, int, list[int]]] = []  # epoch, batch and samples of each micro-batch
        self.evaluated: list[list[int]] = []  # samples of each batch
        self._size, self._validation_size, self._batch_size = size, validation_size, batch_size
        self._shuffle, self._drop_last, self._make_loader = shuffle, drop_last, loader
        self._evaluate, self._more, self._in_batch, self._clip = evaluate, more, in_batch, clip
        self._reducer = reducer

    @property
    def w(self) -> float:
        return float(self.model.w.detach())

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        return dict(self.callbacks)

    def build_training_data_loader(self) -> Any:
        return self._make_loader(
            Ones(self._size), batch_size=self._batch_size, shuffle=self._shuffle, drop_last=self._drop_last
        )

    def build_validation_data_loader(self) -> Any:
        return self._make_loader(Ones(self._validation_size), batch_size=MICRO_BATCH)

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        return self.model(batch["x"]).square().mean()

    def train_batch(self, batch: dict[str, Tensor], epoch_idx: int, batch_idx: int) -> Any:
        self.batches.append((epoch_idx, batch_idx, batch["index"].tolist()))
        if batch_idx not in self._begun:
            self._begun.add(batch_idx)
            self.weights.append(self.w)
            self.lrs.append(self.optimizer.param_groups[0]["lr"])
        if self._in_batch is not None:
            self._in_batch(self, batch_idx)
        loss = self.loss(batch)
        more = self._more(self) if self._more is not None else {}
        self.update(loss)
        return {"loss": loss, **more}

    def update(self, loss: Tensor) -> None:
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer, clip_grads=self._clip)

    def evaluate_batch(self, batch: dict[str, Tensor], batch_idx: int) -> dict[str, Any]:
        self.evaluated.append(batch["index"].tolist())
        if self._evaluate is not None:
            return self._evaluate(self.model.w, batch)
        return {"validation_loss": self.loss(batch)}

    def evaluation_reducer(self) -> Any:
        return self._reducer

    @property
    def samples(self) -> list[int]:
        """In the order in which they were trained on."""
        return [index for _, _, micro_batch in self.batches for index in micro_batch]


class Target(OneWeight):
    """The weight is pulled to the number of each sample: the last ones count most."""

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        target = batch["index"].unsqueeze(1) / SIZE
        return (self.model(batch["x"]) - target).square().mean()


@contextlib.contextmanager
def trainer(
    kind: type[OneWeight] = OneWeight, *, context: Mapping[str, Any] | None = None, **options: Any
) -> Iterator[tuple[OneWeight, Trainer]]:
    """A trial in a new context: `context` goes to init(), the options to the trial."""
    settings = {"micro_batches": 1, "enable_tensorboard_logging": False, **(context or {})}
    with pytorch.init(**settings) as made:
        trial = kind(made, **options)
        yield trial, Trainer(trial, made)


def fit(
    kind: type[OneWeight] = OneWeight,
    *,
    context: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> OneWeight:
    """Train it; `arguments` go to Trainer.fit()."""
    with trainer(kind, context=context, **(options or {})) as (trial, made):
        made.fit(**{"max_length": Batch(8), **arguments})
        return trial


def training_losses(trial: OneWeight) -> list[float]:
    """Of each batch, as reported."""
    windows = trial.diary.of("on_training_workload_end")
    return [float(batch["loss"]) for _, batches in windows for batch in batches]


def reported(kind: str, folder: Path = Path("runs")) -> list[dict[str, Any]]:
    """The lines of this kind in all metrics.jsonl under the folder."""
    lines = [
        json.loads(line) for path in sorted(folder.rglob("metrics.jsonl")) for line in path.read_text().splitlines()
    ]
    return [line for line in lines if line["kind"] == kind]
