"""Models and their versions, on each kind of store."""

from __future__ import annotations

import uuid

import pytest

from everstep import wire
from everstep.errors import Refused
from everstep.wire.models import MAX_METADATA_BYTES
from lab.people import ALICE, ANYONE, BOB, READER, ROOT, as_, write_tokens
from lab.saved_reports import saved


@pytest.fixture(scope="module")
def server(tmp_path_factory, server_class, store_url):
    folder = tmp_path_factory.mktemp("models")
    write_tokens(folder)
    server = server_class(folder, store_url)
    yield server
    server.stop()
    assert "Traceback" not in server.log_file.read_text()


@pytest.fixture
def alice(server):
    with as_(server, ALICE) as people:
        yield people


@pytest.fixture
def bob(server):
    with as_(server, BOB) as people:
        yield people


@pytest.fixture
def job(server):
    """A job that is over, to save checkpoints."""
    with as_(server, ROOT, f"job-{uuid.uuid4().hex}") as owner:
        owner.create_job(wire.JobSpec())
        owner.stop(wire.Stop(reason="done"))
        yield owner


def new(name="", **more):
    return wire.NewModel(request=uuid.uuid4().hex, name=name or f"m-{uuid.uuid4().hex}", **more)


def checkpoint_of(job, folder, step=1, **more):
    report = saved(folder, step, **more)
    job.report_checkpoint(report)
    return report.uuid


def code_of(call):
    with pytest.raises(Refused) as refused:
        call()
    return refused.value.code


def test_a_model_is_created_once_and_found_by_its_name_and_its_id(alice):
    wanted = new(description="d", notes="n", labels=["a", "b", "a"], metadata={"k": [1, {"x": None}]})
    made = alice.create_model(wanted)
    assert alice.create_model(wanted) == made == alice.model(wanted.name) == alice.model(str(made.model))
    assert (made.description, made.notes, made.labels, made.metadata) == ("d", "n", ["a", "b"], {"k": [1, {"x": None}]})
    assert (made.owner, made.num_versions, made.last_version, made.is_archived) == ("alice", 0, 0, False)
    assert code_of(lambda: alice.create_model(new(wanted.name))) == "model-exists"
    assert code_of(lambda: alice.model("no such model")) == "model-unknown"
    assert code_of(lambda: alice.model("9" * 40)) == "model-unknown"


@pytest.mark.parametrize("name", ["", " a", "17", "a/b", "..", "a\nb", "a\u202eb"])
def test_a_name_that_would_be_mistaken_for_something_else_is_refused(alice, name):
    message = wire.NewModel(request=uuid.uuid4().hex, name=name)
    assert code_of(lambda: alice.create_model(message)) == "body-inconsistent"


@pytest.mark.parametrize("name", ["größe 2", "a?b#c%20d", "<b>&amp;'\"", "model-labels", "a+b"])
def test_any_other_name_finds_its_model(alice, name):
    name = f"{name} {uuid.uuid4().hex}"
    made = alice.create_model(new(name))
    assert alice.model(name) == made
    assert made in alice.models(search=name.upper()).models


def test_what_people_write_on_a_model(alice):
    made = alice.create_model(new(metadata={"a": 1, "b": 2}, labels=["old"]))
    name = f"renamed {made.name}"
    changed = alice.change_model(
        made.name,
        wire.ModelChange(name=name, description="d", notes="n", labels=["new"], set_metadata={"b": 3, "c": 4},
                         remove_metadata=["a", "none"]),
    )  # fmt: skip
    assert (changed.name, changed.description, changed.notes, changed.labels) == (name, "d", "n", ["new"])
    assert changed.metadata == {"b": 3, "c": 4} and changed.changed_at > made.changed_at
    assert alice.change_model(name, wire.ModelChange()).metadata == changed.metadata
    assert code_of(lambda: alice.model(made.name)) == "model-unknown"
    other = alice.create_model(new())
    assert code_of(lambda: alice.change_model(other.name, wire.ModelChange(name=name))) == "model-exists"
    much = {"x": "y" * (MAX_METADATA_BYTES // 2)}
    alice.change_model(name, wire.ModelChange(set_metadata=much))
    more = wire.ModelChange(set_metadata={"z": much["x"]})
    assert code_of(lambda: alice.change_model(name, more)) == "metadata-too-large"
    assert set(alice.model(name).metadata) == {"b", "c", "x"}


def test_models_are_listed_searched_and_sorted(alice, job, tmp_path):
    mark = uuid.uuid4().hex
    names = [f"{mark} {each}" for each in ("b", "C", "a")]
    made = [alice.create_model(new(name, description=f"d{i}", labels=[mark])) for i, name in enumerate(names)]
    for step in (1, 2):
        alice.register_version(names[0], wire.NewVersion(checkpoint=checkpoint_of(job, tmp_path, step)))

    def listed(**more):
        return [each.name.removeprefix(f"{mark} ") for each in alice.models(search=mark, **more).models]

    assert listed() == ["b", "C", "a"] and listed(is_descending=True) == ["a", "C", "b"]
    assert listed(sort="name") == ["C", "a", "b"]
    assert listed(sort="num_versions", is_descending=True)[0] == "b"
    assert listed(sort="changed_at", is_descending=True)[0] == "b"
    assert listed(start=1, limit=1) == ["C"] and alice.models(search=mark, limit=1).num_found == 3
    assert len(alice.models(label=mark).models) == 3 and not alice.models(label=mark[:-1]).models
    assert mark in alice.model_labels().labels
    alice.change_model(names[2], wire.ModelChange(is_archived=True))
    assert listed() == ["b", "C"] and listed(is_archived=True) == ["b", "C", "a"]
    assert alice.model(str(made[2].model)).is_archived
    alice.change_model(names[2], wire.ModelChange(is_archived=False))
    assert listed() == ["b", "C", "a"]
    assert code_of(lambda: alice.models(sort="color")) == "parameter-invalid"


def test_versions_are_numbered_from_1_and_no_number_is_used_again(alice, job, tmp_path):
    model = alice.create_model(new()).name
    uuids = [checkpoint_of(job, tmp_path, step, metrics={"loss": 1.0 / step}) for step in (1, 2, 3)]
    first = alice.register_version(
        model,
        wire.NewVersion(checkpoint=uuids[0], name="first", comment="c", notes="n", labels=["l"], metadata={"m": 1}),
    )
    assert (first.version, first.model_name, first.name, first.comment) == (1, model, "first", "c")
    assert (first.notes, first.labels, first.metadata, first.owner) == ("n", ["l"], {"m": 1}, "alice")
    assert (first.checkpoint.uuid, first.checkpoint.metrics) == (uuids[0], {"loss": 1.0})
    assert [(each.name, each.version) for each in first.checkpoint.registered] == [(model, 1)]
    assert alice.register_version(model, wire.NewVersion(checkpoint=uuids[0], name="again")) == first
    assert alice.register_version(model, wire.NewVersion(checkpoint=uuids[1])).version == 2
    alice.delete_version(model, 2)
    third = alice.register_version(model, wire.NewVersion(checkpoint=uuids[2]))
    assert third.version == 3 and alice.model(model).num_versions == 2 and alice.model(model).last_version == 3
    assert [each.version for each in alice.model_versions(model).versions] == [1, 3]
    assert alice.model_versions(model, is_descending=True, limit=1).versions == [third]
    assert alice.model_versions(model, limit=1).num_found == 2
    assert alice.model_version(model, 3) == third
    assert code_of(lambda: alice.model_version(model, 2)) == "model-version-unknown"
    assert code_of(lambda: alice.delete_version(model, 2)) == "model-version-unknown"
    changed = alice.change_version(
        model,
        1,
        wire.VersionChange(name="x", comment="y", notes="z", labels=[], set_metadata={"k": 2}, remove_metadata=["m"]),
    )
    assert (changed.name, changed.comment, changed.notes, changed.labels) == ("x", "y", "z", [])
    assert changed.metadata == {"k": 2} and alice.model_version(model, 1) == changed
    assert code_of(lambda: alice.change_version(model, 9, wire.VersionChange())) == "model-version-unknown"


def test_a_checkpoint_may_be_a_version_of_several_models(alice, job, tmp_path):
    uuid_ = checkpoint_of(job, tmp_path)
    models = [alice.create_model(new()).name for _ in range(2)]
    for each in models:
        alice.register_version(each, wire.NewVersion(checkpoint=uuid_))
    assert [each.name for each in alice.checkpoint(uuid_).registered] == models
    alice.delete_model(models[0])
    assert [each.name for each in alice.checkpoint(uuid_).registered] == models[1:]


def test_a_deleted_model_leaves_its_name_and_not_its_number(alice):
    wanted = new()
    first = alice.create_model(wanted)
    alice.delete_model(wanted.name)
    assert (
        code_of(lambda: alice.model(wanted.name)) == code_of(lambda: alice.model(str(first.model))) == "model-unknown"
    )
    assert code_of(lambda: alice.create_model(wanted)) == "model-unknown", "the same request again"
    assert code_of(lambda: alice.delete_model(wanted.name)) == "model-unknown"
    second = alice.create_model(new(wanted.name))
    assert second.model > first.model


def test_only_a_checkpoint_that_is_there_is_registered(alice, job, tmp_path):
    model = alice.create_model(new()).name
    assert code_of(lambda: alice.register_version(model, wire.NewVersion(checkpoint="none"))) == "checkpoint-unknown"
    report = saved(tmp_path, 1)
    job.report_checkpoint(report)
    (tmp_path / "000001-000000000001" / "manifest.json").unlink()
    assert (
        code_of(lambda: alice.register_version(model, wire.NewVersion(checkpoint=report.uuid))) == "checkpoint-deleted"
    )
    assert sorted(each.name for each in tmp_path.iterdir() if each.name.endswith(".keep")) == []
    assert alice.model(model).last_version == 0


CHANGES = {
    "change": lambda it, model, _: it.change_model(model, wire.ModelChange(name="mine")),
    "delete": lambda it, model, _: it.delete_model(model),
    "register": lambda it, model, uuid_: it.register_version(model, wire.NewVersion(checkpoint=uuid_)),
    "change a version": lambda it, model, _: it.change_version(model, 1, wire.VersionChange(name="mine")),
    "delete a version": lambda it, model, _: it.delete_version(model, 1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_model_is_changed_by_its_owner_and_administrators_and_looked_at_by_all(server, alice, job, tmp_path, change):
    model = alice.create_model(new()).name
    uuids = [checkpoint_of(job, tmp_path, step) for step in (1, 2)]
    alice.register_version(model, wire.NewVersion(checkpoint=uuids[0]))
    before = alice.model(model), alice.model_versions(model)
    for token, code in ((BOB, "model-of-another"), (ANYONE, "model-of-another"), (READER, "role-insufficient")):
        with as_(server, token) as other:
            with pytest.raises(Refused) as refused:
                change(other, model, uuids[1])
            assert (refused.value.status, refused.value.code) == (403, code)
            assert (other.model(model), other.model_versions(model)) == before
    with as_(server, ROOT) as root:
        change(root, model, uuids[1])


def test_a_model_of_nobody_is_everyones(server, alice):
    with as_(server, ANYONE) as anyone:
        model = anyone.create_model(new())
    assert model.owner == ""
    assert alice.change_model(model.name, wire.ModelChange(notes="hers too")).notes == "hers too"


# --- checkpoints ----------------------------------------------------------------------------------


def test_what_people_write_on_a_checkpoint_outlives_its_next_report(alice, job, tmp_path):
    report = saved(tmp_path, 1)
    job.report_checkpoint(report)
    changed = alice.change_checkpoint(report.uuid, wire.CheckpointChange(set_metadata={"a": 1, "b": {"c": 2}}))
    assert changed.metadata == {"a": 1, "b": {"c": 2}}
    job.report_checkpoint(report)
    after = alice.change_checkpoint(report.uuid, wire.CheckpointChange(remove_metadata=["a"]))
    assert after.metadata == alice.checkpoint(report.uuid).metadata == {"b": {"c": 2}}
    assert code_of(lambda: alice.change_checkpoint("none", wire.CheckpointChange())) == "checkpoint-unknown"


def test_files_of_a_checkpoint_are_removed_by_pattern_and_with_the_last_one_all_of_it(alice, job, tmp_path):
    report = saved(tmp_path, 1, num_bytes=7)
    place = tmp_path / "000001-000000000001"
    (place / "rank0").mkdir()
    for name in ("model.bin", "rank0/optimizer.bin", "rank0/data.json"):
        (place / name).write_bytes(b"123")
    job.report_checkpoint(report)
    assert alice.checkpoint_files(report.uuid).files == {
        "manifest.json": 2, "model.bin": 3, "rank0/data.json": 3, "rank0/optimizer.bin": 3
    }  # fmt: skip
    same = alice.remove_files(report.uuid, wire.CheckpointRemoval(globs=["*.none", "*.json.d", "optimizer.bin"]))
    assert same.state == "COMPLETED" and len(alice.checkpoint_files(report.uuid).files) == 4
    some = alice.remove_files(report.uuid, wire.CheckpointRemoval(globs=["**/opt*"]))
    assert (some.state, some.num_bytes) == ("PARTIALLY_DELETED", 8)
    assert not (place / "rank0" / "optimizer.bin").exists() and (place / "model.bin").exists()
    none = alice.remove_files(report.uuid, wire.CheckpointRemoval(globs=["**/*.bin", "rank0/**"]))
    assert (none.state, none.num_bytes) == ("DELETED", 0) and not place.exists()
    assert alice.checkpoint_files(report.uuid).files == {}
    assert alice.remove_files(report.uuid, wire.CheckpointRemoval(globs=["**"])).state == "DELETED"


def test_a_checkpoint_that_is_registered_or_whose_job_still_trains_is_not_removed(server, alice, job, tmp_path):
    everything = wire.CheckpointRemoval(globs=["**"])
    model = alice.create_model(new()).name
    uuid_ = checkpoint_of(job, tmp_path)
    alice.register_version(model, wire.NewVersion(checkpoint=uuid_))
    with pytest.raises(Refused, match=f"{model} 1") as refused:
        alice.remove_files(uuid_, everything)
    assert refused.value.code == "checkpoint-registered"
    with as_(server, ROOT, f"open-{uuid.uuid4().hex}") as open_job:
        open_job.create_job(wire.JobSpec())
        other = checkpoint_of(open_job, tmp_path, 2)
        assert code_of(lambda: alice.remove_files(other, everything)) == "checkpoint-of-open-job"
    assert len([each for each in tmp_path.iterdir() if each.is_dir()]) == 2
    with as_(server, READER) as reader:
        assert code_of(lambda: reader.remove_files(uuid_, everything)) == "role-insufficient"


def test_a_checkpoint_out_of_reach_is_not_called_deleted(alice, job):
    report = wire.CheckpointReport(uuid=uuid.uuid4().hex, uri="/none/elsewhere", step=1)
    job.report_checkpoint(report)
    for call in (
        lambda: alice.remove_files(report.uuid, wire.CheckpointRemoval(globs=["**"])),
        lambda: alice.checkpoint_files(report.uuid),
    ):
        assert code_of(call) == "checkpoint-out-of-reach"
    assert alice.checkpoint(report.uuid).state == "COMPLETED"


# --- templates ------------------------------------------------------------------------------------


def test_a_template_is_kept_as_it_was_written(server, alice, bob):
    name = f"small {uuid.uuid4().hex}"
    text = wire.TemplateText(config={"resources": {"slots_per_trial": 2}}, written="resources: # two\n", is_new=True)
    made = alice.set_template(name, text)
    assert alice.set_template(name, text).created_at == made.created_at, "a call that is made again"
    assert (made.config, made.written, made.owner) == (text.config, text.written, "alice")
    other = wire.TemplateText(config={"name": "x"}, written="name: x", is_new=True)
    assert code_of(lambda: alice.set_template(name, other)) == "template-exists"
    assert code_of(lambda: bob.set_template(name, text)) == "template-of-another"
    assert code_of(lambda: bob.delete_template(name)) == "template-of-another"
    replaced = alice.set_template(name, wire.TemplateText(config={"name": "x"}, written="name: x"))
    assert bob.template(name) == replaced and replaced.created_at == made.created_at
    assert replaced in bob.templates(limit=1000).templates
    alice.delete_template(name)
    assert code_of(lambda: alice.template(name)) == "template-unknown"
    assert code_of(lambda: alice.delete_template(name)) == "template-unknown"
