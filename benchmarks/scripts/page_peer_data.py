"""Write a series of POINTS points where TensorBoard or MLflow reads it. Runs in the peers' environment.

page_peer_data.py tensorboard FOLDER POINTS        page_peer_data.py mlflow FOLDER POINTS"""

from __future__ import annotations

import math
import sqlite3
import sys
from pathlib import Path

NAME, RUN = "x", "plotted"


def tensorboard(folder: Path, num_points: int) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder / RUN), max_queue_size=10_000)
    for step in range(num_points):
        summary = Summary(value=[Summary.Value(tag=NAME, simple_value=math.sin(step))])
        writer.add_event(Event(step=step, wall_time=float(step), summary=summary))
    writer.close()


def mlflow(folder: Path, num_points: int) -> None:
    """The run and its first point by MLflow itself; the other points by SQL, since its own way takes minutes."""
    from mlflow.tracking import MlflowClient

    database = folder / "mlflow.db"
    client = MlflowClient(f"sqlite:///{database}")
    experiment = client.create_experiment(RUN, artifact_location=str(folder / "artifacts"))
    run = client.create_run(experiment, run_name=RUN).info.run_id
    client.log_metric(run, NAME, 0.0, step=0, timestamp=0)
    rows = ((NAME, math.sin(step), step * 1000, run, step, False) for step in range(1, num_points))
    columns = "key, value, timestamp, run_uuid, step, is_nan"
    with sqlite3.connect(database) as connection:
        connection.executemany(f"insert into metrics ({columns}) values (?, ?, ?, ?, ?, ?)", rows)
        last = (math.sin(num_points - 1), (num_points - 1) * 1000, num_points - 1)
        connection.execute("update latest_metrics set value = ?, timestamp = ?, step = ?", last)
    connection.close()
    print(f"/#/experiments/{experiment}/runs", f"/#/experiments/{experiment}/runs/{run}/model-metrics")


if __name__ == "__main__":
    kind, folder, num_points = sys.argv[1:]
    {"tensorboard": tensorboard, "mlflow": mlflow}[kind](Path(folder), int(num_points))
