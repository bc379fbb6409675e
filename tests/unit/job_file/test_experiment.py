"""An experiment's file becomes what the coordinator needs: Determined's files as they are, and ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everstep import wire
from everstep.errors import UsageError
from everstep.job_file.experiment import LoadedExperiment, load_experiment, read_experiment
from everstep.job_file.order import NodeOrder
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


def test_an_argument_for_a_hyperparameter_that_is_not_there_is_refused(tmp_path: Path) -> None:
    text = "name: x\nentrypoint: train.py\nargs: ['{rate}']\nhyperparameters: {lr: 0.1}\n"
    error = refused(tmp_path, text + "searcher: {name: single, metric: loss, max_length: {batches: 1}}\n")
    assert error.code == "argument-hyperparameter-unknown" and "there are lr" in str(error)
    custom = written(tmp_path, text + "searcher: {name: custom, metric: loss, unit: batches}\n")
    assert custom.spec.order["args"] == ["{rate}"], "the program of a custom search chooses the hyperparameters"


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        (r"step (?P<step>\d+): loss=\S+", "has no group for the metric"),
        (r"loss=\S+", "has no group for the metric"),
        ("loss=(", "is not a regular expression"),
    ],
)
def test_a_pattern_without_a_metric_is_refused(tmp_path: Path, pattern: str, problem: str) -> None:
    text = "name: x\nentrypoint: train.py\nsearcher: {name: single, metric: loss, max_length: {batches: 1}}\n"
    assert problem in str(refused(tmp_path, f"{text}metric_line: '{pattern}'\n"))


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
    assert (spec.min_slots, spec.max_slots, spec.policy) == (1, 4, wire.Policy())
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
    with pytest.raises(UsageError, match="neither an experiment file nor"):
        read_experiment(None)


def test_what_belongs_to_the_pool_is_said_and_not_refused(tmp_path: Path) -> None:
    """A file made for a cluster of GPUs runs on a laptop."""
    found = written(
        tmp_path,
        NATIVE.replace("slots_per_trial: 4", "slots_per_trial: 4, gpu: 8, memory: 1Gi")
        + "image: i\nnodes: 2\nelastic: {fence_s: 10}\nhealth: {check: true}\n",
    )
    for key in ("resources.gpu", "resources.memory", "image", "nodes", "elastic", "health.check"):
        assert any(note.startswith(f"{key} is not used") for note in found.notes)
    assert len(found.notes) == 6


def test_when_a_worker_is_lost_and_what_is_kept_are_settings_of_every_trial(tmp_path: Path) -> None:
    found = written(tmp_path, NATIVE + "health: {lease_s: 30, hang_s: 60}\nmetrics: {system_metrics_s: 0}\n")
    policy = found.spec.policy
    assert (policy.lease_s, policy.hang_s, policy.system_metrics_s) == (30, 60, 0)
    assert not found.notes
    error = refused(tmp_path, NATIVE + "health: {lease_s: 1, heartbeat_s: 2}\n")
    assert "lease_s=1.0 is not longer than heartbeat_s=2.0" in str(error)


def test_what_of_determined_has_no_place_is_said(tmp_path: Path) -> None:
    text = snippet(4, "slots_per_trial") + "workspace: team\nresources2: 1\nprofiling: {enabled: true}\n"
    told = "\n".join(written(tmp_path, text).notes)
    for part in ("workspace (line 13)", "resources2 (line 14)", "profiling (line 15)"):
        assert f"{part} was not carried over" in told


def test_a_misspelled_key_of_determined_is_recognized(tmp_path: Path) -> None:
    text = snippet(4, "slots_per_trial")
    told = "\n".join(written(tmp_path, text.replace("slots_per_trial", "slots_per_trail")).notes)
    assert "was not carried over; did you mean slots_per_trial?" in told
    error = refused(tmp_path, text.replace("searcher:", "seacher:"))
    assert (error.code, error.hint) == ("searcher-missing", "write searcher instead of seacher")


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
        (NATIVE.replace("slots_per_trial: 4", "min_slots: 2"), None, "min-slots-above-most"),
    ],
)
def test_an_error_names_its_line(tmp_path: Path, text: str, line: int | None, code: str | None) -> None:
    error = refused(tmp_path, text)
    assert code is None or error.code == code
    assert line is None or f"exp.yaml:{line}: " in error.message


def test_a_trial_may_need_several_slots(tmp_path: Path) -> None:
    text = NATIVE.replace("slots_per_trial: 4", "slots_per_trial: 4, min_slots: 2")
    spec = written(tmp_path, text).spec
    assert (spec.min_slots, spec.max_slots, spec.num_micro_batches) == (2, 4, 4)


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


def test_secrets_that_a_cluster_holds_are_left_to_the_agents(tmp_path: Path) -> None:
    notes = written(tmp_path, NATIVE + "secrets: {KEY: 'kubernetes:set/key'}\n").notes
    assert any("set it in the environment of the pool's agents" in note for note in notes)


def test_a_folder_for_checkpoints_beside_the_code_is_meant_wherever_a_trial_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = written(tmp_path, NATIVE.replace("/mnt/checkpoints", "kept")).spec
    assert spec.config["checkpoint_storage"]["host_path"] == str(tmp_path.resolve() / "kept")


@pytest.mark.parametrize("given", ["checkpoint: {uri: kept}", "checkpoint: kept", "checkpoint_storage: {HOST}"])
def test_the_stored_text_names_the_same_folder_for_checkpoints_wherever_it_is_read_again(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = NATIVE.replace("checkpoint: {uri: /mnt/checkpoints, keep_best: 2, keep_experiment_best: 3}", given)
    host = "checkpoint_storage: {type: shared_fs, host_path: kept, storage_path: below}\n"
    text = snippet(4, "slots_per_trial") + host if "HOST" in given else ours
    monkeypatch.chdir(tmp_path)
    first = written(tmp_path, text).spec
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = written(tmp_path, first.written, "name=other").spec
    assert again.config["checkpoint_storage"] == first.config["checkpoint_storage"]
    assert first.config["checkpoint_storage"]["host_path"].startswith(str(tmp_path.resolve() / "kept"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("foo", "--config foo: not KEY=VALUE\n  HINT: --config key=value, such as --config searcher.max_trials=4"),
        ("args.7=x", "--config args.7: item 7 does not exist"),
        ("secrets.TOKEN=hunter2", "--config secrets.TOKEN: other users"),
    ],
)
def test_a_change_that_cannot_be_read_is_told_with_its_option(change: str, told: str, tmp_path: Path) -> None:
    assert told in str(refused(tmp_path, NATIVE, change))
    with pytest.raises(UsageError) as preview:
        read_search(tmp_path / "exp.yaml", [change])
    assert told in str(preview.value)


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


DETERMINEDS = """
entrypoint: python3 train.py
searcher: {name: single, metric: loss, max_length: {batches: 4}}
resources: {slots_per_trial: 2, resource_pool: gpus, priority: 7, weight: 1.5, max_slots: 6}
preemption_timeout: 90
time_limit: 1h30m
max_restarts: 1
"""
OURS = """
entrypoint: train.py
searcher: {name: single, metric: loss, max_length: {batches: 4}}
resources: {slots_per_trial: 2, pool: gpus, priority: 7, weight: 1.5, max_slots: 6, preemption_timeout: 1m30s}
time_limit: 1:30:00
restarts: 1
"""


@pytest.mark.parametrize("text", [DETERMINEDS, OURS], ids=["determined", "ours"])
def test_how_an_experiment_shares_its_pool(text: str, tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_text(text)
    loaded = load_experiment(tmp_path / "exp.yaml")
    told = {"pool": "gpus", "priority": 7, "weight": 1.5, "max_slots": 6, "time_limit_s": 5400.0}
    assert loaded.spec.scheduling == wire.Scheduling(**told, preemption_timeout_s=90.0)
    assert loaded.notes == ()
    changed = load_experiment(tmp_path / "exp.yaml", ["time_limit=2h"]).spec
    assert changed.scheduling.time_limit_s == 7200.0
    assert "time_limit_s" not in changed.order, "it is that of the experiment, not of a trial"


@pytest.mark.parametrize(("timeout", "grace_s"), [("", 60.0), (", preemption_timeout: 5m", 300.0)])
def test_a_trial_has_as_long_to_leave_as_the_file_says(timeout: str, grace_s: float, tmp_path: Path) -> None:
    found = written(tmp_path, NATIVE.replace("slots_per_trial: 4", "slots_per_trial: 4" + timeout))
    assert NodeOrder.from_json(json.dumps({**found.spec.order, "job": "j"})).grace_s == grace_s


def test_what_the_file_leaves_out_of_it_is_as_usual(tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_text("entrypoint: train.py\nsearcher: {name: single, metric: loss}\n")
    assert load_experiment(tmp_path / "exp.yaml").spec.scheduling == wire.Scheduling()


@pytest.mark.parametrize("wrong", ["priority=0", "priority=100", "weight=0", "weight=.inf", "max_slots=0"])
def test_a_share_out_of_range_is_refused(wrong: str, tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_text(OURS)
    with pytest.raises(UsageError, match=f"resources.{wrong.partition('=')[0]}"):
        load_experiment(tmp_path / "exp.yaml", [f"resources.{wrong}"])
