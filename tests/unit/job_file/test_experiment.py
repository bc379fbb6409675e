"""An experiment's file becomes what the coordinator needs: Determined's files as they are, and ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everstep import wire
from everstep.errors import UsageError
from everstep.job_file.experiment import LoadedExperiment, load_experiment, read_experiment
from everstep.job_file.order import NodeOrder, policy_of
from everstep.job_file.search_sections import read_search
from everstep.search.config import read_searcher
from everstep.search.read_space import read_space
from everstep.wire import encoding
from lab.seeds import snippet

NATIVE = """
entrypoint: train.py
args: [--lr, "{lr}", --momentum, "{optimizer.momentum}"]
env: {OMP_NUM_THREADS: 1}
seed: 7
description: which rate
notes: look at the small ones
labels: [vision, quick]
checkpoint: {uri: /mnt/checkpoints, keep_best: 2, keep_experiment_best: 3}
hyperparameters:
  lr: {log: [1e-4, 1e-1]}
  optimizer: {momentum: 0.9}
searcher: {name: adaptive_asha, metric: loss, max_trials: 16, max_length: {batches: 64}, divisor: 2}
resources: {slots_per_trial: 4}
metric_line: 'loss=(?P<metric>\\S+)'
"""


def written(folder: Path, text: str, *changes: str) -> LoadedExperiment:
    path = folder / "exp.yaml"
    path.write_text(text)
    return load_experiment(path, changes)


def refused(folder: Path, text: str, *changes: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        written(folder, text, *changes)
    return caught.value


def node_order(spec: wire.ExperimentSpec) -> NodeOrder:
    return NodeOrder.from_json(encoding.to_json({"job": "e1-t1", **spec.order}).decode())


def test_the_experiment_of_determineds_guide_needs_no_change(tmp_path: Path) -> None:
    found = written(tmp_path, snippet(4, "slots_per_trial"))
    spec = found.spec
    assert (spec.name, spec.num_micro_batches, spec.max_slots, spec.max_restarts) == (
        *("my_pytorch_trainer_trial", 8, 8, 5),
    )
    assert spec.searcher == {"name": "single", "metric": "validation_loss", "max_length": {"batches": 937}}
    order = node_order(spec)
    assert (order.script, order.args, order.workers, order.gpus) == ("train.py", (), 1, 0)  # also without GPUs
    assert spec.config["resources"] == {"slots_per_trial": 8}
    assert spec.config["hyperparameters"] == {"global_batch_size": 32}
    assert (found.system, found.notes) == ("Determined", ())
    assert spec.kept == wire.CheckpointsKept(experiment_best=0, trial_best=1, trial_latest=1)


def test_a_file_of_ours(tmp_path: Path) -> None:
    found = written(tmp_path, NATIVE)
    spec = found.spec
    assert (spec.name, spec.seed, spec.description, spec.notes) == ("train", 7, "which rate", "look at the small ones")
    assert (spec.labels, spec.num_micro_batches, spec.max_restarts) == (["vision", "quick"], 4, 5)
    assert spec.kept == wire.CheckpointsKept(experiment_best=3, trial_best=2, trial_latest=1)
    order = node_order(spec)
    assert order.args == ("--lr", "{lr}", "--momentum", "{optimizer.momentum}")
    assert order.env == {"OMP_NUM_THREADS": "1"}
    policy = policy_of(order)
    assert (policy.min_workers, policy.max_workers, policy.start_workers, policy.max_restarts) == (1, 4, 1, 0)
    assert spec.config["metric_line"] == r"loss=(?P<metric>\S+)"
    assert spec.config["checkpoint_storage"] == {
        "host_path": "/mnt/checkpoints",
        "save_experiment_best": 3,
        "save_trial_best": 2,
    }
    assert spec.config["reproducibility"] == {"experiment_seed": 7}
    assert (found.system, found.notes, spec.written) == ("Everstep", (), NATIVE)


def test_the_search_is_that_of_the_preview(tmp_path: Path) -> None:
    spec = written(tmp_path, NATIVE).spec
    config, space = read_search(tmp_path / "exp.yaml")
    assert read_searcher(spec.searcher) == config
    assert read_space(spec.hyperparameters, num_micro_batches=spec.num_micro_batches) == space


def test_all_of_determined_that_an_experiment_has(tmp_path: Path) -> None:
    spec = written(
        tmp_path,
        """
name: full
description: a long one
labels: [vision]
entrypoint: python3 -m determined.launch.torch_distributed python3 train.py --lr 0.10
searcher: {name: grid, metric: accuracy, smaller_is_better: false, max_length: {epochs: 3}, source_trial_id: 4}
hyperparameters: {width: {type: int, minval: 1, maxval: 4, count: 2}, global_batch_size: 8}
max_restarts: 0
records_per_epoch: 500
min_validation_period: {batches: 10}
min_checkpoint_period: {batches: 0}
reproducibility: {experiment_seed: 7}
environment: {environment_variables: [A=1]}
checkpoint_storage: {type: s3, bucket: b, prefix: p, save_experiment_best: 2, save_trial_best: 0, save_trial_latest: 3}
""",
    ).spec
    assert (spec.max_restarts, spec.seed, spec.source_trial_id, spec.labels) == (0, 7, 4, ["vision"])
    assert spec.kept == wire.CheckpointsKept(experiment_best=2, trial_best=0, trial_latest=3)
    assert (spec.config["records_per_epoch"], spec.config["min_validation_period"]) == (500, {"batches": 10})
    assert spec.config["checkpoint_storage"]["bucket"] == "b"
    assert node_order(spec).args == ("--lr", "0.10")
    assert node_order(spec).env == {"A": "1"}


@pytest.mark.parametrize("more", ["", "max_restarts: 1"])
def test_a_class_is_trained_by_the_harness(tmp_path: Path, more: str) -> None:
    text = f"entrypoint: model_def:MyTrial\nsearcher: {{name: single, metric: loss}}\n{more}"
    order = node_order(written(tmp_path, text).spec)
    assert (order.script, order.is_module, order.args) == ("everstep.pytorch.harness", True, ("model_def:MyTrial",))


@pytest.mark.parametrize("entrypoint", ["python3 train.py --x 1", "[python3, train.py, --x, 1]", "train.py --x 1"])
def test_an_entrypoint_may_be_a_line_or_a_list(tmp_path: Path, entrypoint: str) -> None:
    for more in ("", "max_restarts: 1"):
        text = f"entrypoint: {entrypoint}\nsearcher: {{name: single, metric: loss}}\n{more}"
        order = node_order(written(tmp_path, text).spec)
        assert (order.script, order.args) == ("train.py", ("--x", "1"))


def test_changes_are_made_to_the_file_as_it_is(tmp_path: Path) -> None:
    spec = written(tmp_path, snippet(4, "slots_per_trial"), "resources.slots_per_trial=2", "max_restarts=1").spec
    assert (spec.num_micro_batches, spec.max_restarts) == (2, 1)
    assert spec.config["resources"] == {"slots_per_trial": 2}

    again = written(tmp_path, spec.written).spec
    assert (again.num_micro_batches, again.max_restarts, again.order) == (2, 1, spec.order)


def test_a_changed_file_keeps_texts_as_they_were_written(tmp_path: Path) -> None:
    spec = written(tmp_path, NATIVE.replace("--momentum", "0.10, --momentum"), "searcher.max_trials=4").spec
    again = written(tmp_path, spec.written).spec
    assert again.order["args"] == spec.order["args"] == ["--lr", "{lr}", "0.10", "--momentum", "{optimizer.momentum}"]


def test_an_experiment_may_come_as_plain_data() -> None:
    content: dict[str, Any] = {
        "entrypoint": "model_def:MyTrial",
        "searcher": {"name": "random", "metric": "loss", "max_trials": 3},
        "hyperparameters": {"lr": {"type": "log", "base": 10, "minval": -4, "maxval": -1}},
        "resources": {"slots_per_trial": 2},
    }
    spec = read_experiment(None, content=content)
    assert (spec.searcher, spec.hyperparameters) == (content["searcher"], content["hyperparameters"])
    assert read_experiment(None, ["searcher.max_trials=9"], content=content).searcher["max_trials"] == 9
    with pytest.raises(UsageError, match="neither a file nor"):
        read_experiment(None)


def test_what_belongs_to_the_pool_is_said_and_not_refused(tmp_path: Path) -> None:
    """A file made for a cluster of GPUs runs on a laptop."""
    found = written(
        tmp_path,
        NATIVE.replace("slots_per_trial: 4", "slots_per_trial: 4, gpu: 8, memory: 1Gi") + "image: i\nnodes: 2\n",
    )
    for key in ("resources.gpu", "resources.memory", "image", "nodes"):
        assert any(note.startswith(f"{key} is not used") for note in found.notes)
    assert len(found.notes) == 4


def test_what_of_determined_has_no_place_is_said(tmp_path: Path) -> None:
    text = snippet(4, "slots_per_trial") + "workspace: team\nresources2: 1\nprofiling: {enabled: true}\n"
    told = "\n".join(written(tmp_path, text).notes)
    for part in ("workspace (line 13)", "resources2 (line 14)", "profiling (line 15)"):
        assert f"{part} was not carried over" in told


@pytest.mark.parametrize(
    ("text", "line", "code"),
    [
        (NATIVE.replace("seed: 7", "sead: 7"), 5, "job-file-key-unknown"),
        (NATIVE.replace("divisor: 2", "diviser: 2"), 13, "searcher-key-unknown"),
        (NATIVE.replace("max_trials: 16", "max_trials: many"), 13, "searcher-number"),
        (NATIVE.replace("[1e-4, 1e-1]", "[1e-1, 1e-4]"), 11, "search-ends-swapped"),
        (NATIVE.replace("slots_per_trial: 4", "slots_per_trial: -4"), 14, "slots-per-trial"),
        (NATIVE.replace(r"(?P<metric>\S+)", r"\S+"), 15, "metric-line-without-group"),
        (NATIVE.replace(r"(?P<metric>\S+)", "("), 15, "metric-line-invalid"),
        (NATIVE + "reuse: true\n", None, "reuse-without-data-version"),
        (NATIVE.replace("adaptive_asha", "grid").replace(", max_trials: 16", "").replace(", divisor: 2", ""), 11, None),
        ("entrypoint: train.py\n", None, "searcher-missing"),
        ("kind: distributed\nsearcher: {name: single, metric: loss}\n", None, None),
        (NATIVE.replace("slots_per_trial: 4", "min_slots: 2"), None, "min-slots-unsupported"),
    ],
)
def test_an_error_names_its_line(tmp_path: Path, text: str, line: int | None, code: str | None) -> None:
    error = refused(tmp_path, text)
    assert code is None or error.code == code
    assert line is None or f"exp.yaml:{line}: " in error.message


def test_a_later_file_may_reuse_what_was_trained(tmp_path: Path) -> None:
    spec = written(tmp_path, NATIVE + "reuse: true\ndata: {version: v1}\n").spec
    assert (spec.config["reuse"], spec.config["data"]) == (True, {"version": "v1"})


def test_secrets_stay_here(tmp_path: Path) -> None:
    theirs = snippet(4, "slots_per_trial") + "checkpoint_storage: {type: s3, bucket: b, secret_key: hunter2}\n"
    for text in (theirs, NATIVE + "secrets: {KEY: hunter2, OTHER: 'env:OTHER'}\n"):
        found = written(tmp_path, text)
        assert "hunter2" not in repr(found.spec)
        assert "hunter2" not in "".join(found.notes)
        assert any("secrets" in note for note in found.notes)


def test_a_folder_for_checkpoints_beside_the_code_is_meant_wherever_a_trial_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = written(tmp_path, NATIVE.replace("/mnt/checkpoints", "kept")).spec
    assert spec.config["checkpoint_storage"]["host_path"] == str(tmp_path.resolve() / "kept")


def test_what_was_read_can_be_sent(tmp_path: Path) -> None:
    spec = written(tmp_path, NATIVE).spec
    assert encoding.from_json(wire.ExperimentSpec, encoding.to_json(spec)) == spec


@pytest.mark.parametrize(
    "searcher",
    [
        {"name": "single", "metric": "loss"},
        {"name": "random", "metric": "loss", "max_trials": 2},
        {"name": "grid", "metric": "loss"},
        {"name": "async_halving", "metric": "loss", "max_trials": 4, "max_time": 8, "time_metric": "batches"},
        {"name": "adaptive_asha", "metric": "loss", "max_trials": 4, "max_length": {"records": 64}, "mode": "standard"},
        {"name": "tpe", "metric": "loss", "max_trials": 2, "cohort": 2},
        {"name": "cmaes", "metric": "loss", "max_trials": 2},
        {"name": "gp", "metric": "loss", "max_trials": 2},
        {"name": "qmc", "metric": "loss", "max_trials": 2},
        {"name": "custom", "metric": "loss", "unit": "batches"},
    ],
    ids=lambda given: given["name"],
)
def test_every_searcher_has_its_file(searcher: dict[str, Any]) -> None:
    """In Determined's words, and in ours."""
    hyperparameters = {"width": {"type": "int", "minval": 1, "maxval": 4, "count": 2}}
    for more in ({"max_restarts": 1}, {"restarts": 1}):
        content = {"entrypoint": "model_def:T", "searcher": searcher, "hyperparameters": hyperparameters, **more}
        spec = read_experiment(None, content=content)
        assert (spec.searcher, spec.max_restarts) == (searcher, 1)
