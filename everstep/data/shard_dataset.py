"""An iterable dataset over leased samples: whole batches, the last of an epoch as short as it is.

Used as `DataLoader(ShardDataset(…), batch_size=None, num_workers=k)`: the batches are made here, because torch would
drop the short ones, and mix those of two epochs. Which samples, `RecordIndexService` says."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset, default_collate
from torch.utils.data._utils.fetch import _IterableDatasetFetcher

from everstep import wire
from everstep.data.loader_server import IndexBatches, Obtained, locals_of
from everstep.data.record_index import RecordIndexService
from everstep.data.text_lines import TextLines
from everstep.errors import UsageError

REASON_LENGTH = 300  # of the reason reported for a record that cannot be read


class ShardDataset(IterableDataset[Any]):
    """`source`: a map-style dataset, the path of a text file (a record is a line), or a list of files' paths (a record
    is a file's content, as bytes). `transform` is applied to each record, `collate_fn` makes a batch of several.

    `on_bad_shard`: "stop" raises an error that reading a record causes; "skip" reports it to the coordinator, another
    worker tries, and after `shard_failures` times the record is left out, and listed with the reason.
    The other arguments are RecordIndexService's. `service` is what a controller wants."""

    def __init__(
        self,
        source: Any,
        batch_size: int,
        num_epochs: int | None = None,
        shuffle: bool = False,
        dataset_name: str | None = None,
        num_minibatches_per_shard: int | None = None,
        seed: int = 0,
        *,
        transform: Callable[[Any], Any] | None = None,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
        on_bad_shard: str = wire.STOP,
        overlap_epochs: bool = False,
    ) -> None:
        self._source = _records(source)
        self._transform, self._collate, self._on_bad_shard = transform, collate_fn, on_bad_shard
        self.dataset_size = len(self._source)
        self.service = RecordIndexService(
            batch_size,
            num_epochs,
            self.dataset_size,
            shuffle,
            dataset_name,
            num_minibatches_per_shard,
            seed,
            on_bad_shard=on_bad_shard,
            overlap_epochs=overlap_epochs,
        )
        self.service.deliver_tail()

    def __iter__(self) -> Iterator[Any]:
        if locals_of(_IterableDatasetFetcher.__init__).get("auto_collation"):
            raise UsageError(
                f"a ShardDataset makes its batches of {self.service.batch_size} records itself",
                hint="use DataLoader(dataset, batch_size=None, num_workers=…)",
                code="shard-dataset-batched-twice",
            )
        return self._batches(self.service.batches())

    def report_batch_done(self, batch_size: int | None = None) -> bool:
        """For those who train without a controller."""
        return self.service.report_batch_done(batch_size)

    def state_dict(self, usage: Iterable[wire.LeasePart] = ()) -> dict[str, Any]:
        return self.service.state_dict(usage)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.service.load_state_dict(state)

    def close(self) -> None:
        self.service.close()

    def _batches(self, batches: IndexBatches) -> Iterator[Any]:
        try:
            obtained = batches.next()
            while obtained is not None:
                records, failed = self._read(obtained)
                if failed and not obtained.is_ghost:
                    batches.amend(failed)
                if records:
                    yield self._collate(records)
                obtained = batches.next() if records else batches.again()
        finally:
            batches.close()

    def _read(self, obtained: Obtained) -> tuple[list[Any], list[tuple[int, str]]]:
        """The records, and those that could not be read, with the reasons."""
        records: list[Any] = []
        failed: list[tuple[int, str]] = []
        for offset, index in enumerate(obtained.indices):
            try:
                record = self._source[index]
                records.append(record if self._transform is None else self._transform(record))
            except Exception as error:
                is_last = offset + 1 == len(obtained.indices)
                if self._on_bad_shard != wire.SKIP or (obtained.is_ghost and is_last and not records):
                    raise
                failed.append((offset, f"record {index}: {type(error).__name__}: {error}"[:REASON_LENGTH]))
        return records, failed


class _Files:
    def __init__(self, paths: Sequence[str | os.PathLike[str]]) -> None:
        self._paths = [os.fspath(path) for path in paths]

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> bytes:
        return Path(self._paths[number]).read_bytes()


def _records(source: Any) -> Any:
    if isinstance(source, str | os.PathLike):
        return TextLines(source)
    if isinstance(source, list | tuple) and source and all(isinstance(each, str | os.PathLike) for each in source):
        return _Files(source)
    if not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
        raise UsageError(
            f"a ShardDataset cannot read a {type(source).__name__}",
            hint="give it a dataset with __len__ and __getitem__, a text file's path, or a list of files' paths",
            code="shard-source-unreadable",
        )
    return source
