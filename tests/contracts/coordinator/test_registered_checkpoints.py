"""What is registered as a version of a model is never collected: with real files, on each kind of store."""

from __future__ import annotations

import uuid
from contextlib import closing
from pathlib import Path

import pytest

import everstep
from everstep import wire
from everstep.checkpoint import catalog
from everstep.checkpoint.index import checkpoint_uuid
from everstep.checkpoint.manifest import RetentionPolicy
from everstep.client.calls import Coordinator
from everstep.errors import Refused
from everstep.storage.base import open_storage
from lab.command import everstep as type_everstep
from lab.command import until
from lab.experiments import ToyTrials, spec
from lab.saved_reports import folder_of, saved

NOTHING = wire.CheckpointsKept(trial_best=0, trial_latest=0)
DELETE = wire.ExperimentAction(action="delete")


@pytest.fixture
def people(server_on_each_store):
    server = server_on_each_store
    with Coordinator(server.url, server.token, f"plain-{uuid.uuid4().hex}") as coordinator:
        yield coordinator


@pytest.fixture
def toy_of(server_on_each_store):
    made = []

    def make(experiment):
        made.append(ToyTrials(server_on_each_store.url, server_on_each_store.token, experiment))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def model(people):
    return people.create_model(wire.NewModel(request=uuid.uuid4().hex, name=f"m-{uuid.uuid4().hex}")).name


def register(people, model, uuid_):
    return people.register_version(model, wire.NewVersion(checkpoint=uuid_)).version


def trained(people, toy, folder, lengths=(8, 16, 64), on_saved=lambda _length, _uuid: None):
    """Its UUIDs, by length; the experiment is over then."""
    found = {}
    with toy.open(1) as job:
        for length in lengths:
            report = saved(folder, length, metrics={"loss": length / 100})
            job.report_checkpoint(report)
            found[length] = report.uuid
            on_saved(length, report.uuid)
            job.report_result(wire.TrialResult(length=length, metric=length / 100, batches=length))
    assert toy.view().state in wire.ENDED
    return found


def is_deleted(people, uuid_):
    return people.checkpoint(uuid_).state == "DELETED"


def test_at_the_end_of_its_experiment_by_its_rules_and_when_these_change(people, toy_of, tmp_path, model):
    kept = wire.CheckpointsKept(trial_best=0, trial_latest=1)
    toy = toy_of(people.create_experiment(spec("random", max_trials=1, kept=kept)).experiment)
    uuids = trained(
        people, toy, tmp_path, on_saved=lambda length, each: register(people, model, each) if length == 16 else None
    )
    until(lambda: is_deleted(people, uuids[8]))
    assert not is_deleted(people, uuids[16]) and folder_of(tmp_path, 16).is_dir()
    people.change(toy.experiment, wire.ExperimentChange(kept=NOTHING))
    until(lambda: is_deleted(people, uuids[64]))
    assert people.checkpoint(uuids[16]).state == "COMPLETED" and folder_of(tmp_path, 16).is_dir()
    assert not folder_of(tmp_path, 8).exists() and not folder_of(tmp_path, 64).exists()


def test_when_its_experiment_is_deleted_which_says_what_stays(people, toy_of, tmp_path, model):
    toy = toy_of(people.create_experiment(spec("random", max_trials=1)).experiment)
    uuids = trained(people, toy, tmp_path)
    for length in (16, 64):
        register(people, model, uuids[length])
    reason = people.act(toy.experiment, DELETE).reason
    assert "2 checkpoints stay" in reason and f"{model} 1" in reason and f"{model} 2" in reason, reason
    until(lambda: not folder_of(tmp_path, 8).exists())
    assert folder_of(tmp_path, 16).is_dir() and folder_of(tmp_path, 64).is_dir()
    version = people.model_version(model, 1)
    assert (version.checkpoint.uuid, version.checkpoint.state) == (uuids[16], "COMPLETED")
    assert version.checkpoint.metrics == {"loss": 0.16}

    people.delete_version(model, 1)  # from now on, as its experiment says: it is deleted
    until(lambda: not folder_of(tmp_path, 16).exists())
    assert folder_of(tmp_path, 64).is_dir()
    people.delete_model(model)
    until(lambda: not folder_of(tmp_path, 64).exists())
    assert not [each for each in tmp_path.iterdir() if each.name.endswith(".keep")]


def test_an_experiment_without_registered_checkpoints_says_nothing_of_them(people, toy_of, tmp_path):
    toy = toy_of(people.create_experiment(spec("random", max_trials=1)).experiment)
    trained(people, toy, tmp_path)
    assert people.act(toy.experiment, DELETE).reason == "deleted"


def test_while_one_of_two_models_still_has_it(people, toy_of, tmp_path, model):
    other = people.create_model(wire.NewModel(request=uuid.uuid4().hex, name=f"o-{uuid.uuid4().hex}")).name
    toy = toy_of(people.create_experiment(spec("random", max_trials=1, kept=NOTHING)).experiment)
    uuids = trained(
        people,
        toy,
        tmp_path,
        on_saved=lambda _length, each: [register(people, name, each) for name in (model, other)],
    )
    people.delete_model(other)
    people.change(toy.experiment, wire.ExperimentChange(kept=wire.CheckpointsKept(trial_best=0, trial_latest=2)))
    people.delete_version(model, 1)
    until(lambda: not folder_of(tmp_path, 8).exists())
    assert not is_deleted(people, uuids[16]) and not is_deleted(people, uuids[64])


def test_by_the_rules_of_the_worker_that_trains(people, tmp_path, model):
    """Its Checkpointer knows no coordinator."""
    people.create_job(wire.JobSpec())
    with everstep.Checkpointer(tmp_path, keep_latest=1, keep_best=0) as checkpointer:
        for step in (1, 2, 3, 4):
            checkpointer.save(step, {"weight": float(step)}, wait=True)
            uuid_ = checkpoint_uuid(tmp_path, step)
            people.report_checkpoint(
                wire.CheckpointReport(uuid=uuid_, uri=str(tmp_path), step=step, generation=_of(tmp_path))
            )
            if step == 2:
                register(people, model, uuid_)
    assert _steps(tmp_path) == [2, 4]
    with everstep.Checkpointer(tmp_path) as reader:
        assert reader.load(2) == {"weight": 2.0}
    said = type_everstep("checkpoint", "prune", ".", "--keep-latest", "1", "--keep-best", "0", folder=tmp_path)
    assert "registered as a version of a model" in said.stdout and _steps(tmp_path) == [2, 4]
    assert (
        "registered as a version of a model"
        in type_everstep("checkpoint", "list", ".", "--json", folder=tmp_path).stdout
    )

    people.delete_version(model, 1)
    with closing(open_storage(tmp_path)) as storage:
        catalog.prune(storage, RetentionPolicy(keep_latest=1, keep_best=0))
    assert _steps(tmp_path) == [4]


def _of(place: Path) -> int:
    with closing(open_storage(place)) as storage:
        return catalog.find(storage)[-1].key.generation


def _steps(place: Path) -> list[int]:
    with closing(open_storage(place)) as storage:
        return [each.step for each in catalog.find(storage) if each.is_whole]


@pytest.mark.parametrize("uri", ["/none/elsewhere", "reference://none"])
def test_out_of_reach_it_is_registered_once_nothing_can_delete_it(people, toy_of, model, uri):
    toy = toy_of(people.create_experiment(spec("random", max_trials=1, kept=NOTHING)).experiment)
    report = wire.CheckpointReport(uuid=uuid.uuid4().hex, uri=uri, step=63, generation=1)
    with toy.open(1) as job:
        job.report_checkpoint(report)
        with pytest.raises(Refused, match=uri) as refused:
            register(people, model, report.uuid)
        assert refused.value.code == "checkpoint-of-open-job"
        job.report_result(wire.TrialResult(length=64, metric=0.1))
    until(lambda: "not deleted" in toy.view().reason, lambda: toy.view().reason)
    assert register(people, model, report.uuid) == 1
    validated = wire.CheckpointsKept(trial_best=1, trial_latest=0)  # it is not
    people.change(toy.experiment, wire.ExperimentChange(kept=validated))
    until(lambda: "not deleted" not in toy.view().reason, lambda: toy.view().reason)


def test_one_that_was_collected_is_not_registered(people, toy_of, tmp_path, model):
    toy = toy_of(people.create_experiment(spec("random", max_trials=1, kept=NOTHING)).experiment)
    uuids = trained(people, toy, tmp_path)
    until(lambda: all(is_deleted(people, each) for each in uuids.values()))
    with pytest.raises(Refused) as refused:
        register(people, model, uuids[8])
    assert refused.value.code == "checkpoint-deleted"


def test_a_coordinator_that_was_killed_keeps_it_too(server_class, tmp_path):
    (tmp_path / "saved").mkdir()
    server = server_class(tmp_path, str(tmp_path / "store.db"))
    try:
        with Coordinator(server.url, server.token, "none") as people:
            toy = ToyTrials(server.url, server.token, people.create_experiment(spec("random", max_trials=1)).experiment)
            with closing(toy):
                uuids = trained(people, toy, tmp_path / "saved")
                people.create_model(wire.NewModel(request="r", name="m"))
                assert register(people, "m", uuids[16]) == 1
                server.kill()
                server.start()
                people.change(toy.experiment, wire.ExperimentChange(kept=NOTHING))
                until(lambda: is_deleted(people, uuids[64]))
                people.act(toy.experiment, DELETE)
                server.kill()
                server.start()
                until(lambda: not folder_of(tmp_path / "saved", 8).exists())
                assert folder_of(tmp_path / "saved", 16).is_dir()
                assert people.model_version("m", 1).checkpoint.state == "COMPLETED"
                assert register(people, "m", uuids[16]) == 1
    finally:
        server.end()
