"""The verbs of `everstep e` and the Python client, at a real coordinator; trials are nothing but their calls."""

from __future__ import annotations

import csv
import io
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep import wire
from everstep.client.calls import Coordinator
from everstep.errors import NoCheckpoint, Refused, UsageError
from everstep.experimental import client
from lab.command import Shell
from lab.experiments import ToyTrials
from lab.saved_reports import save

FILE = """
name: digits
description: from a file
labels: [small]
entrypoint: python3 train.py --fast
hyperparameters:
  lr: {type: log, base: 10, minval: -3, maxval: -1}
searcher: {name: random, metric: loss, max_trials: 3, max_length: {batches: 64}}
resources: {slots_per_trial: 2}
reproducibility: {experiment_seed: 7}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print('training')\n")
    (tmp_path / "det.yaml").write_text(FILE)
    (tmp_path / "extra.txt").write_text("more\n")
    return tmp_path


@pytest.fixture
def shell(folder: Path, server: Any) -> Shell:
    return Shell(folder, EVERSTEP_COORDINATOR=server.url, EVERSTEP_TOKEN_FILE=str(server.token_file))


@pytest.fixture
def toys(server: Any) -> Iterator[Callable[[int], ToyTrials]]:
    made: list[ToyTrials] = []

    def of(experiment: int) -> ToyTrials:
        made.append(ToyTrials(server.url, server.token, experiment))
        return made[-1]

    yield of
    for each in made:
        each.close()


@pytest.fixture
def logged_in(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "home"))
    client.login(server.url, user="someone", token_file=server.token_file)
    yield
    client.logout()


def created(said: str) -> int:
    return int(said.split("Created experiment ")[1].split()[0])


def ids(said: str) -> list[str]:
    return [each["id"] for each in csv.DictReader(io.StringIO(said))]


def test_an_experiment_from_its_file_to_its_end(shell: Shell, folder: Path, toys: Any) -> None:
    said = shell.type("e", "create", "det.yaml", "code", "-i", "extra.txt", "--config", "searcher.max_trials=2")
    number = created(said)
    assert "local:" not in said
    toy = toys(number)
    assert toy.view().num_trials == {"QUEUED": 2}
    assert toy.train_all().state == "COMPLETED"

    (row,) = [
        each for each in csv.DictReader(io.StringIO(shell.type("e", "list", "--csv"))) if each["id"] == str(number)
    ]
    assert (row["name"], row["state"], row["trials"], row["labels"]) == ("digits", "COMPLETED", "2", "small")
    told = json.loads(shell.type("e", "describe", str(number), "--json"))
    assert told["description"] == "from a file" and len(told["trials"]) == 2
    trials = json.loads(shell.type("e", "lt", str(number), "--json"))
    assert [each["trial"] for each in trials] == [1, 2]
    config = json.loads(shell.type("e", "config", str(number), "--json"))
    assert config["searcher"]["max_trials"] == 2 and config["resources"]["slots_per_trial"] == 2
    assert "max_trials: 2" in shell.type("e", "config", str(number))
    shell.type("e", "download-model-def", str(number), "-o", "got")
    assert sorted(path.name for path in (folder / "got").iterdir()) == ["extra.txt", "train.py"]
    waited = shell.type("e", "wait", str(number))
    assert f"best: trial {told['best']['trial']}" in waited


def test_the_states_that_a_person_can_ask_for(shell: Shell, toys: Any) -> None:
    number = str(created(shell.type("e", "create", "det.yaml", "code", "--paused")))
    assert f"`everstep e activate {number}` starts it" in shell.last.stderr

    def state(*words: str) -> str:
        return str(json.loads(shell.type("e", *words, "--json"))["state"])

    assert state("describe", number) == "PAUSED"
    assert state("activate", number) == "ACTIVE"
    assert state("pause", number) == "PAUSED"
    assert state("unpause", number) == "ACTIVE"
    shell.type("e", "archive", number, is_good=False)
    assert state("kill", number) in ("STOPPING_KILLED", "CANCELED")
    shell.type("e", "wait", number, "--polling-interval", "0.1", is_good=False)  # it did not complete
    assert shell.last.returncode == 1
    assert json.loads(shell.type("e", "archive", number, "--json"))["is_archived"]
    assert number not in ids(shell.type("e", "list", "--csv"))
    assert number in ids(shell.type("e", "list", "--all", "--csv"))
    assert not json.loads(shell.type("e", "unarchive", number, "--json"))["is_archived"]
    shell.type("e", "delete", number, is_good=False)  # nobody answers the question
    assert state("describe", number) == "CANCELED"
    shell.type("e", "delete", number, "--yes")
    shell.type("e", "describe", number, is_good=False)

    canceled = str(created(shell.type("e", "create", "det.yaml", "code")))
    assert state("cancel", canceled) in ("STOPPING_CANCELED", "CANCELED")


def test_what_people_write_on_it(shell: Shell, toys: Any) -> None:
    number = created(shell.type("e", "create", "det.yaml", "code", "--paused"))
    shell.type("e", "label", "add", str(number), "night")
    shell.type("e", "label", "remove", str(number), "small")
    shell.type("e", "set", "name", str(number), "other")
    shell.type("e", "set", "description", str(number), "why")
    shell.type("e", "set", "notes", str(number), "what came out")
    shell.type("e", "set", "gc-policy", str(number), "--save-trial-latest", "0", "--yes")
    view = toys(number).view()
    assert (view.labels, view.name, view.description, view.notes) == (["night"], "other", "why", "what came out")
    assert view.kept == wire.CheckpointsKept(experiment_best=0, trial_best=1, trial_latest=0)


def test_a_fork_has_the_code_and_the_file_but_for_the_changes(shell: Shell, toys: Any) -> None:
    first = created(shell.type("e", "create", "det.yaml", "code", "--config", "searcher.max_trials=2"))
    changes = ("--config", "searcher.metric=accuracy", "--config", "image=other")
    fork = created(shell.type("e", "fork", str(first), *changes, "--paused"))
    assert "image is not used" in shell.last.stderr
    assert f"`everstep e activate {fork}` starts it" in shell.last.stderr
    old, new = toys(first).view(), toys(fork).view()
    assert (new.forked_from, new.code, new.metric, new.state) == (first, old.code, "accuracy", "PAUSED")
    assert new.num_trials == old.num_trials == {"QUEUED": 2}


def test_an_experiment_that_is_over_continues_with_its_best_weights(shell: Shell, folder: Path, toys: Any) -> None:
    first = created(shell.type("e", "create", "det.yaml", "code"))
    (folder / "changes.yaml").write_text("searcher: {max_trials: 1}\n")
    shell.type("e", "continue", str(first), is_good=False)  # it is not over
    toy = toys(first)
    best = toy.train_all().best.trial
    save(toy, best, folder / "best", 64, 0.1)
    again = created(shell.type("e", "continue", str(first), "--config-file", "changes.yaml", "--paused"))
    spec = toys(again).people.experiment_config(again).spec
    assert spec.searcher == {"name": "random", "metric": "loss", "max_trials": 1, "max_length": {"batches": 64}}
    assert (spec.forked_from, spec.source_trial_id) == (first, toy.people.trial(first, best).trial_id)


@pytest.mark.parametrize("option", ["-t", "--test", "--test-mode"])
def test_test_mode_is_one_trial_of_one_batch(option: str, shell: Shell, toys: Any) -> None:
    said = shell.type("e", "create", "det.yaml", "code", option, "--paused")
    spec = toys(created(said)).people.experiment_config(created(said)).spec
    assert spec.searcher == {"name": "single", "metric": "loss", "max_length": {"batches": 1}}
    assert spec.config["test_mode"] is True


def test_an_entrypoint_that_is_not_in_the_code_is_refused(shell: Shell) -> None:
    shell.type("e", "create", "det.yaml", is_good=False)
    assert "train.py" in shell.last.stderr and shell.last.returncode == 2


def test_the_best_checkpoints_come_from_where_they_were_written(shell: Shell, folder: Path, toys: Any) -> None:
    number = created(shell.type("e", "create", "det.yaml", "code"))
    toy = toys(number)
    toy.train(1)
    worse, better = save(toy, 1, folder / "a", 32, 0.9), save(toy, 1, folder / "a", 64, 0.1)
    listed = json.loads(shell.type("e", "lc", str(number), "--json"))
    assert {each["uuid"] for each in listed} == {worse, better}
    (best,) = json.loads(shell.type("e", "lc", str(number), "--best", "1", "--json"))
    assert best["uuid"] == better
    shell.type("e", "download", str(number), "--top-n", "2", "-o", "both")
    assert {path.name for path in (folder / "both").glob("*-*")} == {worse, better}
    shell.type("e", "download", str(number), "--sort-by", "loss", "--smaller-is-better", "-o", "got")
    assert [path.name for path in (folder / "got").glob("*-*")] == [better]
    assert everstep.Checkpointer(folder / "got" / better).load(64) == {"weight": 0.1}

    shell.type("e", "download", str(number), "--sort-by", "loss", "--larger-is-better", "-o", "larger")
    assert [path.name for path in (folder / "larger").glob("*-*")] == [worse]
    toy.train(2)
    other = save(toy, 2, folder / "b", 64, 0.5)
    shell.type("e", "download", str(number), "--trial", "2", "--top-n", "5", "-o", "second")
    assert [path.name for path in (folder / "second").glob("*-*")] == [other]


def test_a_download_into_a_file_is_refused(shell: Shell, folder: Path, toys: Any) -> None:
    number = created(shell.type("e", "create", "det.yaml", "code"))
    toy = toys(number)
    toy.train(1)
    save(toy, 1, folder / "a", 64, 0.1)
    (folder / "taken").write_text("not a folder")
    shell.type("e", "download", str(number), "-o", "taken", is_good=False)
    assert "cannot download to taken: Not a directory" in shell.last.stderr and "--output-dir" in shell.last.stderr


def test_a_download_by_what_is_not_there_is_refused(shell: Shell, folder: Path, toys: Any) -> None:
    number = created(shell.type("e", "create", "det.yaml", "code"))
    toy = toys(number)
    toy.train(1)
    save(toy, 1, folder / "a", 64, 0.1)

    def refused(*words: str) -> str:
        shell.type("e", "download", str(number), *words, is_good=False)
        assert shell.last.returncode == 2 and not (folder / "checkpoints").exists()
        return shell.last.stderr

    assert "no checkpoint has the metric acuracy: they have loss" in refused("--sort-by", "acuracy")
    assert "--larger-is-better is given without --sort-by" in refused("--larger-is-better")
    assert "--smaller-is-better is given without --sort-by" in refused("--smaller-is-better")
    assert "together" in refused("--sort-by", "loss", "--smaller-is-better", "--larger-is-better")


def test_a_name_cannot_turn_the_terminal_upside_down(shell: Shell, toys: Any) -> None:
    evil = "\x1b]0;owned\x07"
    number = str(created(shell.type("e", "create", "det.yaml", "code", "--paused")))
    people = toys(int(number)).people
    change = wire.ExperimentChange(name=evil, notes=f"first\n{evil}", labels=[evil])
    people.change(int(number), change)
    people.act(int(number), wire.ExperimentAction(action="activate"))
    people.act(int(number), wire.ExperimentAction(action="pause", reason=evil))
    said = [
        shell.type("e", "describe", number),
        shell.type("e", "pause", number),
        shell.type("e", "label", "add", number, "plain"),
        shell.type("e", "list"),
    ]
    people.act(int(number), wire.ExperimentAction(action="kill"))
    shell.type("e", "wait", number, "--polling-interval", "0.1", is_good=False)
    said += [shell.last.stdout, shell.type("e", "delete", number, is_good=False), shell.last.stderr]
    assert "\x1b" not in "".join(said)
    assert all("\\x1b]0;owned" in each for each in said[:4]), said
    assert "\n" in said[0].split("notes:")[1].split("\\x1b")[0], "lines stay lines"


def test_the_coordinator_is_an_option_or_a_variable_of_ours_or_of_determined(folder: Path, server: Any) -> None:
    token = {"EVERSTEP_TOKEN_FILE": str(server.token_file)}
    by_option = Shell(folder, **token, EVERSTEP_COORDINATOR="http://127.0.0.1:9")
    said = by_option.type("e", "create", "det.yaml", "code", "--paused", "--coordinator", server.url)
    number = str(created(said))
    for variable in ("EVERSTEP_COORDINATOR", "DET_MASTER"):
        shell = Shell(folder, **token, **{variable: server.url})
        assert number in ids(shell.type("e", "list", "--csv"))
    shell = Shell(folder, **token, DET_MASTER=server.url.removeprefix("http://"))
    assert number in ids(shell.type("e", "list", "--csv"))
    assert "local:" not in said and not (folder / "home" / "local").exists()


# --- the Python client ---


def test_the_client_creates_looks_and_changes(
    logged_in: None, folder: Path, toys: Any, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"name": "py", "entrypoint": "python3 train.py", "hyperparameters": {"lr": {"log": [0.01, 0.1]}}}
    searcher = {"name": "random", "metric": "loss", "max_trials": 2, "max_length": {"batches": 64}}
    unused = {"image": "other"}
    experiment = client.create_experiment(
        {**config, **unused, "searcher": searcher}, folder / "code", [folder / "extra.txt"]
    )
    assert "image is not used" in caplog.text
    assert experiment.state is client.ExperimentState.ACTIVE
    experiment.pause()
    assert client.get_experiment(experiment.id).state is client.ExperimentState.PAUSED
    experiment.activate()
    experiment.set_name("named")
    experiment.set_labels(["a"])
    experiment.add_label("b")
    experiment.remove_label("a")
    experiment.set_notes("n")
    experiment.set_description("d")
    experiment.reload()
    told = (experiment.name, experiment.labels, experiment.notes, experiment.description)
    assert told == ("named", ["b"], "n", "d")
    assert [each.id for each in client.list_experiments(labels=["b"], name="named")] == [experiment.id]

    first = experiment.await_first_trial()
    assert 0.01 <= first.hparams["lr"] < 0.1
    toys(experiment.id).train_all()
    assert experiment.wait(0.1) is client.ExperimentState.COMPLETED
    trials = experiment.list_trials()
    assert [each.state for each in trials] == [client.TrialState.COMPLETED] * 2
    assert client.get_trial(trials[1].id).number == 2
    assert sorted(path.name for path in Path(experiment.download_code(folder / "py")).iterdir()) == [
        "extra.txt",
        "train.py",
    ]
    assert experiment.config["searcher"]["max_trials"] == 2
    experiment.archive()
    assert experiment.archived
    experiment.unarchive()
    experiment.delete()
    with pytest.raises(Refused):
        client.get_experiment(experiment.id)


def test_the_metrics_and_the_end_of_a_trial(
    logged_in: None, folder: Path, shell: Shell, server: Any, play: Any
) -> None:
    experiment = client.create_experiment(folder / "det.yaml", folder / "code")
    trial = experiment.await_first_trial()
    with Coordinator(server.url, server.token, trial.view.job) as job:
        job.create_job(wire.JobSpec())
        name = job.reserve(wire.ReserveWorker(agent="a0", request=uuid.uuid4().hex)).worker
        points = [
            wire.MetricReport(kind="validation", step=step, time=1.0, values={"loss": 1 / step}) for step in (1, 2)
        ]
        job.report_metrics(name, wire.MetricReports(reports=points))
    (first, second) = trial.iter_metrics("validation")
    assert (first.steps_completed, first.metrics) == (1, {"loss": 1.0})
    assert (second.total_batches, second.metrics) == (2, {"loss": 0.5})
    assert list(trial.iter_metrics("training")) == []
    describe = ("e", "describe", str(experiment.id), "--metrics")
    told = json.loads(shell.type(*describe, "--json"))
    wanted = [{"group": "validation", "steps_completed": step, "metrics": {"loss": 1 / step}} for step in (1, 2)]
    assert [each["metrics"] for each in told["trials"]] == [wanted, [], []], "two have not begun"
    rows = "trial,group,batches,metric,value\n1,validation,1,loss,1.0\n1,validation,2,loss,0.5\n"
    assert shell.type(*describe, "--csv") == rows
    assert "validation" in shell.type(*describe)
    shell.type(*describe, "--outdir", "told")
    assert (folder / "told" / "metrics.csv").read_text() == rows
    assert ids((folder / "told" / "trials.csv").read_text())[0] == str(trial.id)
    assert (folder / "told" / "checkpoints.csv").read_text().startswith("trial,batches,uuid,")
    assert list(trial.iter_logs()) == []
    trial.kill()
    assert client.get_trial(trial.id).wait(0.1) is client.TrialState.CANCELED
    experiment.kill()


def test_a_checkpoint_that_another_machine_saved_is_found_by_its_uuid(logged_in: None, folder: Path, toys: Any) -> None:
    """This user's index has never seen it, as after a job on Kubernetes."""
    experiment = client.create_experiment(folder / "det.yaml", folder / "code")
    toy = toys(experiment.id)
    toy.train(1)
    found = save(toy, 1, "memory://client/t1", 64, 0.25)

    path = client.get_checkpoint(found)
    copy = path.download(folder / "copy")
    everstep.Checkpointer("memory://client/t1").delete()

    assert everstep.Checkpointer(copy).load(64) == {"weight": 0.25}
    assert (path.experiment_id, path.get_metrics()) == (experiment.id, {"loss": 0.25})
    assert path.state is client.CheckpointState.COMPLETED


def test_the_best_checkpoint_of_an_experiment_and_of_a_trial(logged_in: None, folder: Path, toys: Any) -> None:
    experiment = client.create_experiment(folder / "det.yaml", folder / "code")
    with pytest.raises(NoCheckpoint):
        experiment.top_checkpoint()
    toy = toys(experiment.id)
    toy.train(1)
    toy.train(2)
    worse, better = save(toy, 1, folder / "a", 64, 0.9), save(toy, 2, folder / "b", 64, 0.1)
    assert experiment.top_checkpoint("loss").uuid == better
    for each in (experiment, experiment.await_first_trial()):
        with pytest.raises(UsageError) as unknown:
            each.top_checkpoint("los")
        assert unknown.value.code == "metric-unknown"
    assert experiment.top_checkpoint("loss", smaller_is_better=False).uuid == worse
    first = experiment.await_first_trial()
    assert first.top_checkpoint().uuid == worse
    assert [each.uuid for each in first.list_checkpoints()] == [worse]
    assert {each.uuid for each in experiment.list_checkpoints()} == {worse, better}


def test_a_checkpoint_on_another_machines_disk_is_named_with_its_place(
    logged_in: None, folder: Path, toys: Any, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = client.create_experiment(folder / "det.yaml", folder / "code")
    toy = toys(experiment.id)
    toy.train(1)
    found = str(uuid.uuid4())
    with toy.job(1) as job:
        job.report_checkpoint(wire.CheckpointReport(uuid=found, uri="/only/there", step=64))
    with pytest.raises(NoCheckpoint) as refused:
        client.get_checkpoint(found)
    assert refused.value.code == "checkpoint-elsewhere"
    here = save(toy, 1, folder / "a", 32, 0.1)
    trial = experiment.await_first_trial()
    for listed in (experiment.list_checkpoints(), experiment.list_checkpoints(max_results=1), trial.list_checkpoints()):
        assert [each.uuid for each in listed] == [here]
    assert f"checkpoint {found} is in /only/there" in caplog.text
    with pytest.raises(NoCheckpoint) as unknown:
        client.get_checkpoint(str(uuid.uuid4()))
    assert unknown.value.code == "checkpoint-uuid-unknown"
    with pytest.raises(UsageError):
        client.get_checkpoint("not-a-uuid")
