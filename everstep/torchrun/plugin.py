"""What torchrun finds under the entry point `torchrun.handlers`. Loaded whenever torch's elastic part is: light."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


def creator() -> Callable[[RendezvousParameters], RendezvousHandler]:
    return create


def create(parameters: RendezvousParameters) -> RendezvousHandler:
    from everstep.torchrun.handler import Handler

    return Handler(parameters)
