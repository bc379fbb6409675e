"""What `everstep e verify` prints: a row for each point of the training, under headers."""

from __future__ import annotations

import pytest

from everstep.cli import experiment_verify
from everstep.cli.experiment_show import print_rows
from everstep.jobs.verification import Compared


def test_each_column_has_a_header(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Compared(what="validation", length=8, kept="ab", again="ab")]
    print_rows(experiment_verify._COLUMNS, [experiment_verify._row(each) for each in rows])
    _, header, _, row, *_ = capsys.readouterr().out.splitlines()
    columns = [[cell.strip() for cell in line[1:-1].replace("│", "┃").split("┃")] for line in (header, row)]
    assert dict(zip(*columns, strict=True)) == {
        "length": "8",
        "what": "validation",
        "kept": "ab",
        "again": "ab",
        "equal": "yes",
    }
