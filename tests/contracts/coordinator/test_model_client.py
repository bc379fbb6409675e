"""Determined's client at a real coordinator: models, checkpoints, and what it lists and filters."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep import wire
from everstep.client.calls import Coordinator
from everstep.errors import Refused, UsageError
from everstep.experimental import client
from everstep.record.log_chunk import STDERR
from lab.experiments import ToyTrials
from lab.log_writer import NOW, Writer
from lab.people import ALICE, write_tokens
from lab.saved_reports import save

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, server_class: Any) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("client")
    write_tokens(folder)
    server = server_class(folder, str(folder / "store.db"))
    yield server
    server.stop()
    assert "Traceback" not in server.log_file.read_text()


@pytest.fixture(autouse=True)
def logged_in(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As alice, with a worker's token for what trials do."""
    path = tmp_path / "alice"
    path.touch(mode=0o600)
    path.write_text(f"{ALICE}\nworker:of-a-worker\n")
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "home"))
    client.login(server.url, token_file=path)
    yield
    client.logout()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print('training')\n")
    return tmp_path


@pytest.fixture
def experiment(folder: Path) -> client.Experiment:
    return created(folder)


@pytest.fixture
def toy(server: Any, experiment: client.Experiment) -> Iterator[ToyTrials]:
    made = ToyTrials(server.url, server.token, experiment.id)
    yield made
    made.close()


def created(folder: Path, **more: Any) -> client.Experiment:
    searcher = {"name": "random", "metric": "loss", "max_trials": 2, "max_length": {"batches": 64}}
    config = {"name": f"n-{uuid.uuid4().hex}", "entrypoint": "python3 train.py", "searcher": searcher}
    hyperparameters = {"lr": {"log": [0.01, 0.1]}}
    return client.create_experiment({**config, "hyperparameters": hyperparameters, **more}, folder / "code")


def name() -> str:
    return f"m {uuid.uuid4().hex}"


def test_a_model_as_determined_has_it() -> None:
    made = client.create_model(name(), "what it is", {"a": 1}, ["x", "y"])
    assert (made.description, made.metadata, made.labels, made.username) == (
        "what it is",
        {"a": 1},
        ["x", "y"],
        "alice",
    )
    assert not made.archived and made.creation_time == made.last_updated_time
    for found in (client.get_model(made.name), client.get_model(made.model_id), client.get_model_by_id(made.model_id)):
        assert found.view == made.view
    assert made.get_version() is None and made.list_versions() == []
    made.add_metadata({"b": [2], "c": None})
    made.remove_metadata(["a", "c"])
    made.set_labels(["z"])
    made.set_description("better")
    made.set_notes("n")
    made.set_name(f"new {made.name}")
    made.archive()
    again = client.get_model(made.name)
    assert (again.metadata, again.labels, again.description, again.notes) == ({"b": [2]}, ["z"], "better", "n")
    assert again.archived
    again.unarchive()
    made.reload()
    assert not made.archived
    assert "z" in client.get_model_labels()
    made.delete()
    with pytest.raises(Refused):
        client.get_model(made.model_id)


def test_models_in_order_and_by_what_they_are() -> None:
    mark = uuid.uuid4().hex
    made = [client.create_model(f"{mark} {each}", f"d{each}", labels=[each, mark]) for each in ("b", "a", "c")]

    def found(*args: Any, **more: Any) -> list[str]:
        return [each.name[-1] for each in client.list_models(*args, name=mark.upper(), **more)]

    assert found() == ["a", "b", "c"]
    assert found(client.ModelSortBy.NAME, client.OrderBy.DESC) == ["c", "b", "a"]
    assert found(client.ModelSortBy.CREATION_TIME) == ["b", "a", "c"]
    assert found(description="DA") == ["a"] and found(labels=["c", mark]) == ["c"] and found(labels=["c", "b"]) == []
    made[0].archive()
    assert found() == ["a", "c"] and found(archived=True) == ["a", "b", "c"]


def test_versions_of_a_model_and_their_checkpoints(toy: ToyTrials, folder: Path) -> None:
    toy.train(1)
    uuids = [save(toy, 1, folder / "a", step, step / 100) for step in (32, 64)]
    model = client.create_model(name())
    first = model.register_version(uuids[0])
    assert (first.model_name, first.model_id, first.model_version) == (model.name, model.model_id, 1)
    assert model.register_version(client.get_checkpoint(uuids[1])).model_version == 2
    newest = model.get_version()
    assert newest is not None and (newest.model_version, newest.checkpoint_uuid) == (2, uuids[1])
    assert [each.model_version for each in model.list_versions()] == [2, 1]
    assert [each.model_version for each in model.list_versions(client.OrderBy.ASC)] == [1, 2]
    path = model.get_version(1).checkpoint.download(folder / "got")  # type: ignore[union-attr]
    assert everstep.Checkpointer(path).load(32) == {"weight": 0.32}
    first.set_name("v")
    first.set_comment("c")
    first.set_notes("n")
    first.set_labels(["l"])
    first.add_metadata({"a": 1, "b": 2})
    first.remove_metadata(["a"])
    again = model.get_version(1)
    assert again is not None
    assert (again.name, again.comment, again.notes, again.labels, again.metadata) == ("v", "c", "n", ["l"], {"b": 2})
    again.reload()
    again.delete()
    assert [each.model_version for each in model.list_versions()] == [2]
    with pytest.raises(Refused):
        model.get_version(1)
    assert uuids[1] in model.list_versions()._repr_html_()


def test_a_checkpoint_has_metadata_files_and_the_trial_that_trained_it(
    toy: ToyTrials, experiment: client.Experiment, folder: Path
) -> None:
    toy.train(1)
    found = client.get_checkpoint(save(toy, 1, folder / "a", 64, 0.5))
    found.add_metadata({"why": "best", "x": 1})
    found.remove_metadata(["x"])
    assert found.metadata == {"why": "best"}
    found.write_metadata_file(folder / "metadata.json")
    assert "best" in (folder / "metadata.json").read_text()
    training = found.training
    trial = experiment.await_first_trial()
    assert training is not None and (training.experiment_id, training.trial_id) == (experiment.id, trial.id)
    assert training.hparams == trial.hparams and training.validation_metrics == {"loss": 0.5} == found.get_metrics()
    assert training.experiment_config == experiment.config
    assert "manifest.json" in found.resources and found.resources["manifest.json"] > 0
    assert found.state is client.CheckpointState.COMPLETED
    toy.people.act(experiment.id, wire.ExperimentAction(action="kill"))
    with pytest.raises(UsageError):
        found.remove_files([])
    experiment.wait(0.1)
    found.remove_files(["**/nothing"])
    assert found.state is client.CheckpointState.COMPLETED
    found.remove_files(["manifest.json"])
    assert found.state is client.CheckpointState.PARTIALLY_DELETED
    found.delete()
    assert found.state is client.CheckpointState.DELETED
    assert experiment.list_checkpoints() == []


def test_trials_and_checkpoints_in_order(toy: ToyTrials, experiment: client.Experiment, folder: Path) -> None:
    toy.train(1)
    toy.train(2)
    uuids = {
        (trial, step): save(toy, trial, folder / str(trial), step, loss)
        for trial, step, loss in ((1, 16, 0.3), (1, 64, 0.2), (2, 64, 0.1))
    }
    first, second = experiment.list_trials()
    assert [first.number, second.number] == [1, 2]
    descending = experiment.list_trials(client.TrialSortBy.ID, client.OrderBy.DESC)
    assert [each.number for each in descending] == [2, 1]
    assert [each.number for each in experiment.iter_trials(order_by=client.OrderBy.DESC, limit=1)] == [2]
    assert first.get_experiment().id == experiment.id

    def keys(found: Any) -> list[tuple[int, int]]:
        by_uuid = {each: key for key, each in uuids.items()}
        return [by_uuid[each.uuid] for each in found]

    assert keys(experiment.list_checkpoints()) == [(2, 64), (1, 64), (1, 16)]
    assert keys(experiment.list_checkpoints("loss", client.OrderBy.DESC)) == [(1, 16), (1, 64), (2, 64)]
    by_step = experiment.list_checkpoints(client.CheckpointSortBy.BATCH_NUMBER, client.OrderBy.ASC, max_results=1)
    assert keys(by_step) == [(1, 16)]
    assert keys(experiment.top_n_checkpoints(2)) == [(2, 64), (1, 64)]
    assert keys(first.list_checkpoints()) == [(1, 64), (1, 16)]
    assert keys(first.list_checkpoints("loss", client.OrderBy.DESC, 1)) == [(1, 16)]
    assert keys([first.top_checkpoint()]) == [(1, 64)]


def test_experiments_in_order_and_by_whose_they_are(folder: Path) -> None:
    made = [created(folder, labels=["order"]) for _ in range(2)]
    mine = client.list_experiments(labels=["order"], users=["alice"])
    assert [each.id for each in mine] == [made[1].id, made[0].id]
    oldest = client.list_experiments(client.ExperimentSortBy.ID, client.OrderBy.ASC, labels=["order"])
    assert [each.id for each in oldest] == [made[0].id, made[1].id]
    assert client.list_experiments(labels=["order"], users=["bob"]) == []
    wanted = client.list_experiments(experiment_ids=[made[0].id], states=[client.ExperimentState.ACTIVE])
    assert [each.id for each in wanted] == [made[0].id]


def test_what_a_trial_printed_by_all_filters(toy: ToyTrials, experiment: client.Experiment) -> None:
    trial = experiment.await_first_trial()
    with toy.open(1) as job:
        one, two = Writer(job, "n1"), Writer(job, "n2")
        one.say("a", "WARNING: b", rank=0)
        two.say("c", rank=1)
        two.say("ERROR: d", rank=1, stream=STDERR)
        one.say("e", rank=2)

    def lines(**wanted: Any) -> list[str]:
        return list(trial.iter_logs(**wanted))

    assert lines() == ["a", "WARNING: b", "c", "ERROR: d", "e"]
    assert lines(head=2) == ["a", "WARNING: b"] and lines(tail=2) == ["ERROR: d", "e"]
    assert lines(rank_ids=[1]) == ["c", "ERROR: d"] and lines(rank_ids=[0, 2]) == ["a", "WARNING: b", "e"]
    assert lines(rank_ids=[0, 2], tail=1) == ["e"] and lines(rank_ids=[0, 2], head=1) == ["a"]
    assert lines(stdtypes=["stderr"]) == ["ERROR: d"] and lines(stdtypes=["stdout"], tail=1) == ["e"]
    assert lines(min_level=client.LogLevel.WARNING) == ["WARNING: b", "ERROR: d"]
    assert lines(agent_ids=["n2"]) == ["c", "ERROR: d"] and lines(contains="b") == ["WARNING: b"]
    assert lines(timestamp_after=NOW + 1) == ["WARNING: b", "ERROR: d", "e"]
    assert lines(timestamp_before=NOW + 1) == ["a", "c"]
    with pytest.raises(UsageError) as refused:
        lines(head=1, tail=1)
    assert refused.value.code == "log-head-and-tail"
    with pytest.raises(UsageError) as refused:
        lines(rank_ids=[0, 1], tail=1, follow=True)
    assert refused.value.code == "log-tail-of-several"


def test_the_metrics_of_a_trial_in_short(toy: ToyTrials, experiment: client.Experiment) -> None:
    trial = experiment.await_first_trial()
    assert trial.summary_metrics == {"latest": None, "best": None, "best_length": 0}
    toy.train(1)
    with toy.job(1) as job:
        worker = job.reserve(wire.ReserveWorker(agent="a0", request=uuid.uuid4().hex)).worker
        points = [wire.MetricReport(kind="training", step=s, time=1.0, values={"loss": 1 / s}) for s in (1, 2, 4)]
        job.report_metrics(worker, wire.MetricReports(reports=points))
    trial.reload()
    summary = trial.summary_metrics
    assert summary["training"] == {"loss": {"last": 0.25, "min": 0.25, "max": 1.0, "count": 3}}
    assert summary["best"] == summary["latest"] == toy.loss(1, 64)
    found = list(client.iter_trials_metrics([trial.id], "training"))
    assert [each.steps_completed for each in found] == [1, 2, 4]


def test_who_one_is(server: Any, tmp_path: Path) -> None:
    assert (client.whoami().username, client.whoami().is_admin) == ("alice", False)
    client.login(server.url, token_file=server.token_file)  # with all tokens
    assert client.whoami().is_admin
    wrong = tmp_path / "wrong"
    wrong.touch(mode=0o600)
    wrong.write_text("user:alice:nobodys")
    client.login(server.url, token_file=wrong)
    with pytest.raises(Refused):
        client.whoami()


def test_an_experiment_with_a_template(server: Any, folder: Path) -> None:
    with Coordinator(server.url, ALICE, "none") as people:
        text = wire.TemplateText(config={}, written="max_restarts: 2\nsearcher: {max_trials: 9}\n")
        people.set_template("small", text)
    config = {"entrypoint": "python3 train.py", "searcher": {"name": "random", "metric": "loss", "max_length": 4}}
    made = client.create_experiment(config, folder / "code", template="small", is_paused=True)
    assert made.config["max_restarts"] == 2 and made.config["searcher"]["max_trials"] == 9


def test_a_notebook_shows_tables_without_running_what_is_in_them(experiment: client.Experiment) -> None:
    experiment.set_name(HOSTILE)
    experiment.set_labels([HOSTILE])
    model = client.create_model(f"{HOSTILE.replace('/', '')} {uuid.uuid4().hex}", HOSTILE, {HOSTILE: HOSTILE})
    shown = [
        experiment,
        client.list_experiments(),
        experiment.await_first_trial(),
        experiment.list_trials(),
        model,
        client.list_models(),
        client.whoami(),
    ]
    for each in shown:
        html = each._repr_html_()
        assert html.startswith("<table>") and "<script" not in html, html
    assert "&lt;script&gt;" in experiment._repr_html_()
    assert repr(experiment).startswith(f"Experiment(id={experiment.id}, name=") and repr(model).startswith("Model(id=")
