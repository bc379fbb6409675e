"""Which files of a checkpoint a pattern means."""

from __future__ import annotations

import pytest

from everstep.checkpoint.file_patterns import matching

NAMES = ["manifest.json", "model.bin", "rank0/model.bin", "rank0/deep/a.bin", "rank10/opt.bin", "a[1].bin"]


@pytest.mark.parametrize(
    ("glob", "found"),
    [
        ("*", ["manifest.json", "model.bin", "a[1].bin"]),
        ("**", NAMES),
        ("**/*", NAMES),
        ("**/*.bin", [each for each in NAMES if each.endswith(".bin")]),
        ("**/model.bin", ["model.bin", "rank0/model.bin"]),
        ("./model.bin", ["model.bin"]),
        ("rank?/*", ["rank0/model.bin"]),
        ("rank*/**", ["rank0/model.bin", "rank0/deep/a.bin", "rank10/opt.bin"]),
        ("rank0/**/a.bin", ["rank0/deep/a.bin"]),
        ("a[1].bin", ["a[1].bin"]),
        ("MODEL.bin", []),
        ("../*", []),
    ],
)
def test_a_pattern_takes_these(glob: str, found: list[str]) -> None:
    assert matching(NAMES, [glob]) == found


def test_several_patterns_take_what_any_of_them_takes() -> None:
    assert matching(NAMES, ["model.bin", "rank10/*"]) == ["model.bin", "rank10/opt.bin"]
