"""Event files for TensorBoard, written with the messages of its own package: scalars, and the hyperparameters of a
trial for its HPARAMS tab. Needs the package tensorboard, and neither TensorFlow nor torch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from everstep import wire
from everstep.errors import UsageError
from everstep.wire.hparams import flat
from everstep.wire.metrics import Value

_NAME = "events.out.tfevents.0000000000.everstep"  # sorts before all others of a folder: read first
_VERSION = "brain.Event:2"
_SUCCESS, _FAILURE = 1, 2  # of its hparams.Status


def check_installed() -> None:
    try:
        import tensorboard.main  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"TensorBoard is not installed: {error}",
            hint="pip install 'everstep[tensorboard]'",
            code="tensorboard-missing",
        ) from None


class EventWriter:
    """Adds events to one file of a folder. The file is open only while it is written to: there may be thousands."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2

        self.path = folder / _NAME
        self._event: Any = event_pb2.Event
        self._log: Any = event_pb2.SessionLog
        self._summary: Any = summary_pb2.Summary
        folder.mkdir(parents=True, exist_ok=True)
        self._write([self._event(wall_time=0.0, file_version=_VERSION)])

    def begin_trial(self, trial: wire.TrialView) -> None:
        """Its hyperparameters."""
        from tensorboard.plugins.hparams import metadata, plugin_data_pb2

        began_at = trial.started_at or trial.created_at
        start = plugin_data_pb2.SessionStartInfo(group_name=trial.job, start_time_secs=began_at)
        for name, value in flat(trial.hparams):
            if isinstance(value, bool):
                start.hparams[name].bool_value = value
            elif isinstance(value, int | float):
                start.hparams[name].number_value = value
            else:
                start.hparams[name].string_value = value if isinstance(value, str) else json.dumps(value)
        self._session(metadata.SESSION_START_INFO_TAG, began_at, session_start_info=start)

    def end_trial(self, trial: wire.TrialView) -> None:
        """How it ended."""
        from tensorboard.plugins.hparams import metadata, plugin_data_pb2

        ended_at = trial.ended_at or 0.0
        status = _SUCCESS if trial.state == wire.COMPLETED else _FAILURE
        end = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=ended_at)
        self._session(metadata.SESSION_END_INFO_TAG, ended_at, session_end_info=end)

    def _session(self, tag: str, time: float, **info: Any) -> None:
        from tensorboard.plugins.hparams import metadata, plugin_data_pb2

        about = metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(**info))
        value = self._summary.Value(tag=tag, metadata=about, tensor=metadata.NULL_TENSOR)
        self._write([self._event(wall_time=time, step=0, summary=self._summary(value=[value]))])

    def start_over(self) -> None:
        """What comes next replaces all scalars so far."""
        self._write([self._event(wall_time=0.0, step=0, session_log=self._log(status=self._log.START))])

    def scalars(self, tag: str, points: Iterable[tuple[int, float, Value]]) -> None:
        """Of each: step, time and value."""
        self._write(
            self._event(
                wall_time=time,
                step=step,
                summary=self._summary(value=[self._summary.Value(tag=tag, simple_value=float(value))]),
            )
            for step, time, value in points
        )

    def _write(self, events: Iterable[Any]) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        with self.path.open("ab") as file:
            writer = RecordWriter(file)
            for event in events:
                writer.write(event.SerializeToString())
