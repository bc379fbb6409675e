"""`everstep e export` at a real coordinator: all facts and points, as files and in a real MLflow store."""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everstep import wire
from everstep.errors import UsageError
from everstep.jobs import export_files as exporting
from everstep.jobs.export_files import export_files, read_experiments, seconds_of
from everstep.jobs.mlflow_export import EXPERIMENT, TRIAL, export_to_mlflow
from lab import guide
from lab.command import ROOT, Shell
from lab.reported_trials import ReportedTrials

LOSSES: list[tuple[int, float, float | str]] = [(1, 10.0, 0.5), (2, 11.5, "nan"), (3, 12.0, "inf"), (4, 13.0, "-inf")]
MANY = [(step, 100.0 + step, step / 7) for step in range(2_500)]  # several pages
HPARAMS = {"lr": {"log": [1e-4, 1e-1]}, "optimizer": {"name": "adam", "betas": [0.9, 0.99], "is_fused": True}}


@pytest.fixture(scope="module")
def reported(server: Any) -> Iterator[ReportedTrials]:
    made = ReportedTrials(server, name="digits, =1+1", max_trials=3, hyperparameters=HPARAMS)
    made.report(1, {"validation/loss": LOSSES, "training/loss": MANY, "plain": [(7, 1.0, 2.0)]})
    made.saved = made.save(1, "/checkpoints/one", 64)  # type: ignore[attr-defined]
    made.toy.train(1)
    made.toy.train(2)
    yield made
    made.close()


@pytest.fixture
def shell(tmp_path: Path, server: Any) -> Shell:
    return Shell(tmp_path, EVERSTEP_COORDINATOR=server.url, EVERSTEP_TOKEN_FILE=str(server.token_file))


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def points_of(rows: list[dict[str, Any]], trial: int, name: str) -> list[tuple[int, float, str]]:
    return [
        (int(each["step"]), float(each["time"]), str(each["value"]))
        for each in rows
        if (int(each["trial"]), each["metric"]) == (trial, name)
    ]


def as_text(points: list[tuple[int, float, Any]]) -> list[tuple[int, float, str]]:
    return [(step, time, str(value)) for step, time, value in points]


def test_the_files_have_all_trials_points_and_checkpoints(reported: ReportedTrials, shell: Shell) -> None:
    said = shell.type("e", "export", str(reported.number), "-o", "got")
    assert said.split() == ["got/trials.csv", "got/metrics.csv", "got/checkpoints.csv"]
    folder, views = shell.folder / "got", reported.trials()
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoints.csv", "metrics.csv", "trials.csv"]

    trials = read_csv(folder / "trials.csv")
    assert [each["trial"] for each in trials] == ["1", "2", "3"]
    first, view = trials[0], views[0]
    assert (first["name"], first["state"], first["metric"]) == ("digits, =1+1", "COMPLETED", "loss")
    assert float(first["hparams.lr"]) == view.hparams["lr"]
    assert (first["hparams.optimizer.name"], first["hparams.optimizer.is_fused"]) == ("adam", "true")
    assert json.loads(first["hparams.optimizer.betas"]) == [0.9, 0.99]
    assert (float(first["best"]), float(first["latest"]), first["length"]) == (view.best, view.latest, "64")
    assert (first["checkpoints"], first["latest_checkpoint"]) == (reported.saved, reported.saved)
    assert trials[2]["checkpoints"] == trials[2]["best"] == "", "it has not begun"

    metrics = read_csv(folder / "metrics.csv")
    assert points_of(metrics, 1, "validation/loss") == as_text(LOSSES)
    assert points_of(metrics, 1, "training/loss") == as_text(MANY)
    assert points_of(metrics, 1, "plain") == [(7, 1.0, "2.0")]
    (checkpoint,) = read_csv(folder / "checkpoints.csv")
    assert (checkpoint["uuid"], checkpoint["uri"], checkpoint["step"]) == (reported.saved, "/checkpoints/one", "64")


def test_seconds_are_from_the_start_to_the_end(reported: ReportedTrials) -> None:
    view = reported.trials()[0]
    assert seconds_of(replace(view, started_at=10.0, ended_at=12.5)) == 2.5
    assert seconds_of(replace(view, started_at=10.0, ended_at=None)) is None
    assert seconds_of(replace(view, started_at=None)) is None, "it was taken over from another trial"


def test_json_lines_have_the_same_and_are_json(reported: ReportedTrials, tmp_path: Path) -> None:
    with reported.link() as link:
        found = read_experiments(link, [reported.number, reported.number])
        export_files(link, found, tmp_path, "jsonl", lambda _line: None)
    trials = read_lines(tmp_path / "trials.jsonl")
    assert [each["trial"] for each in trials] == [1, 2, 3], "an experiment that is named twice is exported once"
    assert trials[0]["hparams"] == reported.trials()[0].hparams
    assert trials[0]["checkpoints"] == [reported.saved]
    assert points_of(read_lines(tmp_path / "metrics.jsonl"), 1, "validation/loss") == as_text(LOSSES)
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()


def test_an_export_that_fails_leaves_the_files_of_the_last_one(
    reported: ReportedTrials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reported.link() as link:
        found = read_experiments(link, [reported.number])
        export_files(link, found, tmp_path, "csv", lambda _line: None)
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

        def broken(_link: Any, job: str) -> Iterator[wire.SeriesWindow]:
            raise KeyboardInterrupt
            yield

        monkeypatch.setattr(exporting, "trial_pages", broken)
        with pytest.raises(KeyboardInterrupt):
            export_files(link, found, tmp_path, "csv", lambda _line: None)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_folder_that_cannot_be_written_to_is_named(reported: ReportedTrials, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with reported.link() as link, pytest.raises(UsageError) as refused:
        export_files(link, read_experiments(link, [reported.number]), tmp_path / "taken", "csv", lambda _line: None)
    assert refused.value.code == "export-folder" and "taken" in refused.value.message


def test_long_exports_say_how_far_they_are(
    reported: ReportedTrials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everstep.jobs.spoken_progress.EVERY_S", 0.0)
    said: list[str] = []
    with reported.link() as link:
        export_files(link, read_experiments(link, [reported.number]), tmp_path, "csv", said.append)
    assert said[-1] == "metrics: 3 of 3 trials, 2,505 points"


def test_options_of_another_form_are_refused(shell: Shell) -> None:
    shell.type("e", "export", "1", "--to", "excel", is_good=False)
    assert "'excel' is not one of csv, jsonl, mlflow" in shell.last.stderr
    shell.type("e", "export", "1", "--uri", "http://127.0.0.1:1", is_good=False)
    assert "--uri" in shell.last.stderr and "--to csv" in shell.last.stderr


# --- MLflow, as it is ---


@pytest.fixture
def tracking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in (("MLFLOW_DISABLE_TELEMETRY", "true"), ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")):
        monkeypatch.setenv(name, value)  # as the export sets them, for the rest of its process
    pytest.importorskip("mlflow")
    return f"sqlite:///{tmp_path}/mlflow.db"


def export(reported: ReportedTrials, uri: str) -> list[str]:
    with reported.link() as link:
        return list(export_to_mlflow(link, read_experiments(link, [reported.number]), uri, lambda _line: None))


def history(client: Any, run: Any, key: str) -> list[tuple[int, float, float]]:
    return [(it.step, it.timestamp / 1000, it.value) for it in client.get_metric_history(run.info.run_id, key)]


def test_mlflow_gets_a_run_for_each_trial_and_another_export_updates_it(server: Any, tracking: str) -> None:
    reported = ReportedTrials(server, name="digits", max_trials=2, hyperparameters=HPARAMS, labels=["night"])
    reported.report(1, {"validation/loss": LOSSES, "at@odd": [(1, 1.0, 1.0)]})
    export(reported, tracking)

    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=tracking)

    def found() -> tuple[Any, dict[str, Any]]:
        (experiment,) = [each for each in client.search_experiments() if EXPERIMENT in each.tags]
        runs = client.search_runs([experiment.experiment_id])
        assert len({run.data.tags[TRIAL] for run in runs}) == len(runs) == 2
        return experiment, {run.data.tags[TRIAL]: run for run in runs}

    experiment, runs = found()
    assert (experiment.name, experiment.tags["everstep.labels"]) == ("digits", "night")
    first, view = runs["1"], reported.trials()[0]
    assert first.data.params["lr"] == json.dumps(view.hparams["lr"])
    assert (first.data.params["optimizer.name"], first.data.params["optimizer.is_fused"]) == ("adam", "true")
    assert (first.data.tags["everstep.job"], first.info.status) == (view.job, "SCHEDULED"), "it has had no slot"
    values = history(client, first, "validation/loss")
    assert [(step, time) for step, time, _ in values] == [(step, time) for step, time, _ in LOSSES]
    assert values[0][2] == 0.5 and math.isnan(values[1][2])
    assert [value for _, _, value in values[2:]] == [sys.float_info.max, -sys.float_info.max], "as MLflow keeps them"
    assert history(client, first, "at_odd") == [(1, 1.0, 1.0)]

    reported.report(1, {"validation/loss": [(5, 14.0, 0.25)], "training/loss": MANY})
    reported.toy.train_all()
    export(reported, tracking)
    same, again = found()
    assert (same.experiment_id, again["1"].info.run_id) == (experiment.experiment_id, first.info.run_id)
    assert again["1"].info.status == again["2"].info.status == "FINISHED"
    assert again["1"].info.end_time == round(1000 * (reported.trials()[0].ended_at or 0.0))
    assert [step for step, _, _ in history(client, first, "validation/loss")] == [1, 2, 3, 4, 5]
    assert sorted(history(client, first, "training/loss")) == MANY
    assert same.tags["everstep.state"] == "COMPLETED"

    export(reported, tracking)
    assert len(history(client, first, "training/loss")) == len(MANY)
    reported.close()


def test_experiments_of_one_name_stay_apart_in_mlflow(server: Any, tracking: str) -> None:
    pair = [ReportedTrials(server, name="digits", max_trials=1) for _ in range(2)]
    for each in (*pair, *pair):
        export(each, tracking)

    from mlflow import MlflowClient

    names = {each.name for each in MlflowClient(tracking_uri=tracking).search_experiments() if EXPERIMENT in each.tags}
    assert names == {"digits", f"digits ({pair[1].number})"}
    for each in pair:
        each.close()


def test_mlflow_that_does_not_answer_is_named_without_its_password(
    reported: ReportedTrials, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    shell.env |= {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    words = ("e", "export", str(reported.number), "--to", "mlflow")
    shell.type(*words, "--uri", "http://me:secret@127.0.0.1:9", is_good=False)
    assert "MLflow at http://127.0.0.1:9" in shell.last.stderr and "HINT" in shell.last.stderr
    assert "secret" not in shell.last.stderr + shell.last.stdout
    shell.type(*words, is_good=False)
    assert "MLFLOW_TRACKING_URI" in shell.last.stderr


def test_without_mlflow_the_way_out_is_told(reported: ReportedTrials, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UsageError) as refused:
        export(reported, "sqlite:///none.db")
    assert refused.value.code == "mlflow-missing" and "everstep[mlflow]" in str(refused.value)


# --- the guide ---


def test_the_commands_of_the_guide(server: Any, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    pair = [ReportedTrials(server, name="digits", max_trials=1) for _ in range(2)]
    (commands,) = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / "exports.md").read_text(), re.DOTALL)
    first, second = (each.number for each in pair)
    commands = re.sub(r"(?<=export )1( 2)?", lambda found: f"{first} {second}" if found[1] else f"{first}", commands)
    there = {"EVERSTEP_COORDINATOR": server.url, "EVERSTEP_TOKEN_FILE": str(server.token_file)}
    said = guide.type_in(commands, tmp_path, there)
    assert len(read_csv(tmp_path / "export" / "trials.csv")) == 2
    assert len(read_lines(tmp_path / "results" / "trials.jsonl")) == 1
    assert f"experiment {first} → MLflow experiment" in said and (tmp_path / "mlflow.db").stat().st_size
    assert not (tmp_path / "mlruns").exists()
    for each in pair:
        each.close()
