"""What the members of a generation tell each other before they are connected: a card each, and a book of all cards.

Rank 0 collects the cards and puts the book into its store. So a member makes two requests per round in a world of any
size. If members asked for each other's cards, each pair would need a request."""

from __future__ import annotations

import json
import zlib
from typing import Any

import torch.distributed as dist

from everstep.engine.world import World


def swap_cards(store: dist.Store, world: World, name: str, card: Any) -> list[Any]:
    """The cards of all members, by rank. A card is made of plain values. `name`: the name of the round."""
    store.set(f"{name}/{world.rank}", json.dumps(card))
    if world.rank == 0:
        cards = store.multi_get([f"{name}/{rank}" for rank in range(world.size)])
        text = b"[" + b",".join(cards) + b"]"
        store.set(f"{name}/book", zlib.compress(text, 1))  # type: ignore[arg-type]  # torch's stub knows only text
    book: list[Any] = json.loads(zlib.decompress(store.get(f"{name}/book")))
    return book
