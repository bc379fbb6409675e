"""Folders of assignments: how many stay, and which."""

from __future__ import annotations

from pathlib import Path

from everstep.pool.assignment_folders import MOST_KEPT, AssignmentFolders


def numbers(folder: Path) -> set[int]:
    return {int(each.name) for each in (folder / "assignments").iterdir()}


def test_the_newest_stay_and_good_ones_do_not_push_out_failed_ones(tmp_path: Path) -> None:
    folders = AssignmentFolders(tmp_path)
    for number in range(1, 2 * MOST_KEPT):
        folders.make(number)
        folders.let_go(number, is_failed=number == 1)
    folders.make(1000)
    assert numbers(tmp_path) == {1, *range(MOST_KEPT, 2 * MOST_KEPT), 1000}


def test_the_next_agent_keeps_them_and_counts_them(tmp_path: Path) -> None:
    folders = AssignmentFolders(tmp_path)
    folders.make(1)
    folders.let_go(1, is_failed=True)
    (folders.make(2) / "node.log").write_text("earlier")
    again = AssignmentFolders(tmp_path)
    assert numbers(tmp_path) == {1, 2}
    assert not list(again.make(2).iterdir()), "of another coordinator, with the same number"
    for number in range(3, 3 + MOST_KEPT):
        again.make(number)
        again.let_go(number, is_failed=False)
    assert numbers(tmp_path) == {1, 2, *range(3, 3 + MOST_KEPT)}, "2 runs"
