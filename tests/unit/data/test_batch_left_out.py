"""A batch that comes out and is not trained on: the next would be taken for it, so the script is told."""

from __future__ import annotations

import pytest

from everstep.data.record_index import RecordIndexService
from everstep.errors import UsageError


def test_a_batch_that_the_loop_leaves_out_is_an_error_not_another_count() -> None:
    service = RecordIndexService(batch_size=4, dataset_size=40)
    service.join_steps(is_newcomer=False)
    service.regrouped(1, [], settles=True)
    trained_on = [service.fetch_record_index() for _ in range(4)]
    batch = service.take()
    left_out = [service.fetch_record_index() for _ in range(4)]
    with pytest.raises(UsageError, match="1 that came out before") as told:
        service.fetch_record_index()
    service.close()
    assert (trained_on, left_out, batch.num_records) == ([0, 1, 2, 3], [4, 5, 6, 7], 4)
    assert told.value.hint is not None and "once for each batch" in told.value.hint
