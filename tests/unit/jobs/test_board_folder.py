"""What TensorBoard reads: written from series, brought up to date, and written anew if points were replaced."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from everstep import wire
from everstep.jobs.board_folder import BoardFolder, own_folder

pytest.importorskip("tensorboard")
Point = tuple[int, float, float | str]
_PAGE = 3


class Coordinator:
    """Series by number."""

    def __init__(self, series: dict[int, tuple[str, list[Point]]]) -> None:
        self.all, self.num_windows = series, 0

    def close(self) -> None:
        pass

    def series(self, after: int = 0, *, is_own: bool = False) -> wire.SeriesList:
        assert is_own
        found = [_view(number, *self.all[number]) for number in sorted(self.all) if number > after]
        return wire.SeriesList(series=found, num_series=len(self.all))

    def series_window(self, series: int, *, start: int, is_full: bool) -> wire.SeriesWindow:
        assert is_full
        self.num_windows += 1
        name, points = self.all[series]
        rest = [each for each in points if each[0] >= start]
        some = rest[:_PAGE]
        return wire.SeriesWindow(
            series=series, name=name, start=start, stop=some[-1][0] + 1 if rest[_PAGE:] else 1 << 50,
            num_points=len(some), num_rows=1, span_steps=1, first_steps=[each[0] for each in some],
            first_times=[each[1] for each in some], firsts=[each[2] for each in some],
        )  # fmt: skip


def _view(number: int, name: str, points: Sequence[Point]) -> wire.SeriesView:
    return wire.SeriesView(
        series=number, name=name, count=len(points), first_step=points[0][0], last_step=points[-1][0],
        last_time=points[-1][1], last=points[-1][2], least=None, most=None,
    )  # fmt: skip


class Link:
    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def of_job(self, _job: str) -> Coordinator:
        return self._coordinator


def trial(**more: Any) -> wire.TrialView:
    facts: dict[str, Any] = {
        "experiment": 12, "trial": 7, "trial_id": 70, "job": "e12-t7", "state": "RUNNING", "reason": "", "seed": 1,
        "hparams": {"lr": 0.125, "optimizer": {"name": "adam"}, "is_wide": True}, "bracket": 0, "target": 9,
        "length": 0, "latest": None, "best": None, "best_length": 0, "num_restarts": 0, "num_slots": 1,
        "started_at": 5.0,
    }  # fmt: skip
    return wire.TrialView(**(facts | more))


def loss(*steps: int, factor: float = 1.0) -> list[Point]:
    return [(step, 100.0 + step, factor * step) for step in steps]


class Board:
    """TensorBoard's own reader over the folder."""

    def __init__(self, folder: Path, series: dict[int, tuple[str, list[Point]]]) -> None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        self.coordinator = Coordinator(series)
        self.folder = folder / "experiment_12" / "trial_7"
        self._board = BoardFolder(Link(self.coordinator), folder)  # type: ignore[arg-type]
        self._accumulator, self._reader = EventAccumulator, None

    def refresh(self, **more: Any) -> None:
        self._board.refresh([trial(**more)], [])

    def points(self, tag: str) -> list[tuple[int, float, float]]:
        self._reader = self._reader or self._accumulator(str(self.folder), size_guidance={"tensors": 0, "scalars": 0})
        self._reader.Reload()
        return [(each.step, each.wall_time, each.value) for each in self._reader.Scalars(tag)]

    def reader(self) -> Any:
        return self._accumulator(str(self.folder)).Reload()


def test_points_are_added_as_they_come_each_once(tmp_path: Path) -> None:
    board = Board(tmp_path, {1: ("training/loss", loss(1, 2, 3, 4, 5))})
    board.refresh()
    assert board.points("training/loss") == loss(1, 2, 3, 4, 5)
    board.coordinator.all[1][1].extend(loss(6, 7))
    board.coordinator.all[2] = ("validation/loss", [(7, 1.0, "nan"), (8, 2.0, "inf")])
    board.refresh()
    board.refresh()
    assert board.points("training/loss") == loss(*range(1, 8))
    values = [value for _, _, value in board.points("validation/loss")]
    assert math.isnan(values[0]) and values[1] == math.inf


def test_a_series_without_news_costs_no_call(tmp_path: Path) -> None:
    board = Board(tmp_path, {1: ("loss", loss(1, 2))})
    board.refresh()
    before = board.coordinator.num_windows
    board.refresh()
    assert board.coordinator.num_windows == before


@pytest.mark.parametrize(
    "replaced",
    [loss(1, 2) + loss(3, 4, 5, 6, factor=10.0), loss(1, 2), [*loss(1, 2, 3), (4, 200.0, 4.0)], loss(0, 1, 2, 3, 4)],
    ids=["trained again and further", "cut", "the last one again", "one that came late"],
)
def test_steps_that_were_trained_again_replace_the_old_ones(replaced: list[Point], tmp_path: Path) -> None:
    board = Board(tmp_path, {1: ("loss", loss(1, 2, 3, 4)), 2: ("other", loss(1))})
    board.refresh()
    assert board.points("loss") == loss(1, 2, 3, 4)
    board.coordinator.all[1] = ("loss", replaced)
    board.refresh()
    assert board.points("loss") == replaced
    assert board.points("other") == loss(1)


def test_hyperparameters_and_the_end_are_there_for_the_hparams_tab(tmp_path: Path) -> None:
    from tensorboard.plugins.hparams import metadata

    board = Board(tmp_path, {1: ("loss", loss(1))})
    board.refresh()
    board.refresh(state="COMPLETED", ended_at=50.0)
    board.refresh(state="COMPLETED", ended_at=50.0)
    contents = board.reader().PluginTagToContent("hparams")
    start = metadata.parse_session_start_info_plugin_data(contents[metadata.SESSION_START_INFO_TAG])
    assert start.hparams["lr"].number_value == 0.125 and start.hparams["is_wide"].bool_value
    assert (start.hparams["optimizer.name"].string_value, start.start_time_secs) == ("adam", 5.0)
    end = metadata.parse_session_end_info_plugin_data(contents[metadata.SESSION_END_INFO_TAG])
    assert (end.status, end.end_time_secs) == (1, 50.0)


def saved(uri: Path | str) -> wire.SavedCheckpoint:
    return wire.SavedCheckpoint(
        uuid="u", uri=str(uri), step=1, job="e12-t7", experiment=12, trial=7, metric=None, metrics={},
        state="COMPLETED", num_bytes=0, created_at=0.0,
    )  # fmt: skip


def test_a_trials_own_files_are_linked_new_ones_too(tmp_path: Path) -> None:
    own = tmp_path / "run" / "tensorboard"
    (own / "below").mkdir(parents=True)
    first, second = own / "events.out.tfevents.1.host.1.0", own / "below" / "events.out.tfevents.2.host.1.0"
    first.write_bytes(b"")
    (own / "notes.txt").write_text("not shown")
    coordinator = Coordinator({1: ("loss", loss(1))})
    board = BoardFolder(Link(coordinator), tmp_path / "board")  # type: ignore[arg-type]
    board.refresh([trial()], [saved(tmp_path / "run" / "checkpoints")])
    second.write_bytes(b"")
    board.refresh([trial()], [saved(tmp_path / "run" / "checkpoints")])
    shown = tmp_path / "board" / "experiment_12" / "trial_7"
    links = {str(path.relative_to(shown)): path.resolve() for path in shown.rglob("*") if path.is_symlink()}
    assert links == {first.name: first, f"below/{second.name}": second}
    assert (board.num_linked, coordinator.num_windows) == (1, 0)


def test_checkpoints_elsewhere_have_no_files_here(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").mkdir()
    assert own_folder(["s3://bucket/run/checkpoints", "/nowhere/checkpoints", str(tmp_path / "checkpoints")]) is None
    (tmp_path / "tensorboard" / "events.out.tfevents.1").write_bytes(b"")
    assert own_folder([f"file://{tmp_path}/checkpoints"]) == tmp_path / "tensorboard"
