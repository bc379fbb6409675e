"""record.json: read as it was written; what is not one is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everstep.errors import UsageError
from everstep.record.about import LOGS, CopiedFile, RecordAbout, parse_about
from everstep.wire import fitting_config

FILE = CopiedFile(size_bytes=3, sha256="0" * 64)
ABOUT = RecordAbout(job="job", state="succeeded", configuration={"script": "ü.py"}, files={LOGS: FILE})


def test_it_is_read_as_it_was_written() -> None:
    assert parse_about(ABOUT.to_json(), "record.json") == ABOUT


def test_an_argument_that_is_not_unicode_is_shown_by_its_escape() -> None:
    given = {"command": ["train.py", "--in=\udcff.txt"], "\udcfe": 1}
    shown = {"command": ["train.py", r"--in=\udcff.txt"], r"\udcfe": 1}
    assert parse_about(RecordAbout(job="job", configuration=given).to_json(), "record.json").configuration == shown
    assert fitting_config(given) == shown


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"format": 2}, "record-format-unknown"),
        ({"files": {"../../etc/passwd": {"size_bytes": 3, "sha256": "0" * 64}}}, "record-unreadable"),
        ({"files": {LOGS: {"size_bytes": 3, "sha256": "../.."}}}, "record-unreadable"),
        ({"files": [1]}, "record-unreadable"),
    ],
)
def test_another_format_and_names_that_no_record_has_are_refused(changes: dict[str, Any], code: str) -> None:
    told = {**json.loads(ABOUT.to_json()), **changes}
    with pytest.raises(UsageError) as refused:
        parse_about(json.dumps(told).encode(), "record.json")
    assert refused.value.code == code


def test_what_is_not_json_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        parse_about(b"[]", "record.json")
