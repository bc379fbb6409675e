"""Ordinary mistakes in scripts end with an error and exit code 1, on all workers: never with other weights, nor with
some of the workers."""

from __future__ import annotations

import re

import pytest

from lab.patience import PATIENT
from lab.stage import Stage


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        ("learning-rate", r"lr of optimizer 0, group 0 is 0\.1 on w\d and 0\.05 on w\d"),  # one of them is rank 1
        ("weights", "the checksum of bias is "),
        ("break", "trains on samples "),
        ("usage", r"optimizer\.step\(\) outside of a step would change this worker alone"),
    ],
)
def test_a_mistake_stops_the_job_with_a_sentence(mistake: str, sentence: str) -> None:
    with Stage(mistake, script="mistakes.py", workers=2, policy=PATIENT) as cluster:
        stopped = cluster.wait("job.stopped")
        result = cluster.finish(check=False)
        report = (cluster.directory / "node1.log").read_text()
    assert re.search(sentence, stopped["reason"])
    assert re.search(sentence, report)
    assert result.exit_codes == {"node1": 1}
    assert not result.events("job.finished")
