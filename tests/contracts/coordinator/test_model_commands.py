"""The verbs of models, checkpoints by UUID, trials and templates, at a real coordinator."""

from __future__ import annotations

import csv
import io
import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everstep
from everstep import wire
from everstep.client.calls import Coordinator
from lab import guide
from lab.command import ROOT, Shell
from lab.experiments import ToyTrials, spec
from lab.saved_reports import save

FILE = """
name: digits
entrypoint: python3 train.py
hyperparameters: {lr: {type: log, base: 10, minval: -3, maxval: -1}}
searcher: {name: random, metric: loss, max_trials: 2, max_length: {batches: 64}}
"""
TEMPLATE = """\
# for all small ones
name: from the template
max_restarts: 2
resources: {slots_per_trial: 2, priority: 7}
searcher: {max_trials: 9}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print('training')\n")
    (tmp_path / "det.yaml").write_text(FILE)
    return tmp_path


@pytest.fixture
def shell(folder: Path, server: Any) -> Shell:
    return Shell(folder, EVERSTEP_COORDINATOR=server.url, EVERSTEP_TOKEN_FILE=str(server.token_file))


@pytest.fixture
def people(server: Any) -> Iterator[Coordinator]:
    with Coordinator(server.url, server.token, "none") as coordinator:
        yield coordinator


@pytest.fixture
def toy(server: Any, people: Coordinator) -> Iterator[ToyTrials]:
    """An experiment that is over, of one trial."""
    kept = wire.CheckpointsKept(trial_latest=5)
    made = ToyTrials(
        server.url, server.token, people.create_experiment(spec("random", max_trials=1, kept=kept)).experiment
    )
    yield made
    made.close()


def rows(said: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(said)))


def test_a_model_from_its_creation_to_its_end(shell: Shell, people: Coordinator, toy: ToyTrials, folder: Path) -> None:
    toy.train(1)
    uuids = [save(toy, 1, folder / "a", step, step / 100) for step in (32, 64)]
    name = f"digits {uuid.uuid4().hex}"
    made = json.loads(
        shell.type("model", "create", name, "--description", "d", "--label", "a", "--metadata", "k=[1]", "--json")
    )
    assert (made["name"], made["description"], made["labels"], made["metadata"]) == (name, "d", ["a"], {"k": [1]})
    said = shell.type("model", "register-version", name, uuids[0], "--name", "v", "--comment", "first")
    assert said == f"checkpoint {uuids[0]} is version 1 of model {name}\n"
    assert json.loads(shell.type("model", "register-version", name, uuids[1], "--json"))["version"] == 2
    (listed,) = [each for each in rows(shell.type("model", "list", "--csv")) if each["name"] == name]
    assert (listed["id"], listed["versions"], listed["labels"]) == (str(made["model"]), "2", "a")
    assert [each["version"] for each in rows(shell.type("model", "list-versions", name, "--csv"))] == ["2", "1"]
    told = json.loads(shell.type("model", "describe", str(made["model"]), "--json"))
    assert [each["checkpoint"]["uuid"] for each in told["versions"]] == [uuids[1], uuids[0]]
    shown = shell.type("model", "describe", name)
    assert uuids[0] in shown and "loss 0.32" in shown and "k: [1]" in shown
    assert "comment:      first" in shell.type("model", "describe-version", name, "1")
    assert json.loads(shell.type("model", "describe-version", name, "--json"))["version"] == 2
    shell.type("model", "delete-version", name, "2", is_good=False)  # nobody answers the question
    shell.type("model", "delete-version", name, "2", "--yes")
    assert people.model(name).num_versions == 1
    shell.type("model", "delete", name, is_good=False)
    shell.type("model", "delete", name, "--yes")
    assert name not in shell.type("model", "list", "--all")


def test_what_people_write_on_a_model(shell: Shell, people: Coordinator) -> None:
    name = f"m {uuid.uuid4().hex}"
    shell.type("model", "create", name)
    shell.type("model", "label", "add", name, "x")
    shell.type("model", "label", "add", name, "y")
    shell.type("model", "label", "remove", name, "x")
    shell.type("model", "metadata", "add", name, "a=0.5", "b=two words", 'c={"d": null}')
    shell.type("model", "metadata", "remove", name, "a")
    shell.type("model", "set", "description", name, "why")
    shell.type("model", "set", "notes", name, "what")
    assert json.loads(shell.type("model", "archive", name, "--json"))["is_archived"]
    assert name not in shell.type("model", "list") and name in shell.type("model", "list", "--all")
    shell.type("model", "unarchive", name)
    shell.type("model", "set", "name", name, f"new {name}")
    model = people.model(f"new {name}")
    assert (model.labels, model.description, model.notes) == (["y"], "why", "what")
    assert model.metadata == {"b": "two words", "c": {"d": None}} and not model.is_archived
    shell.type("model", "metadata", "add", name, "nothing", is_good=False)
    shell.type("model", "create", model.name, is_good=False)
    assert f"there is a model {model.name!r} already" in shell.last.stderr
    shell.type("model", "list", "--sort-by", "color", is_good=False)
    assert "num-versions" in shell.last.stderr
    listed = json.loads(shell.type("model", "list", "--sort-by", "last_updated_time", "--order-by", "desc", "--json"))
    assert listed[0]["name"] == model.name


def test_a_checkpoint_by_its_uuid(shell: Shell, people: Coordinator, toy: ToyTrials, folder: Path) -> None:
    toy.train(1)
    first, second = (save(toy, 1, folder / "a", step, step / 100) for step in (32, 64))
    shell.type("checkpoint", "metadata", "add", first, "score=0.5", "why=best one")
    shell.type("checkpoint", "metadata", "remove", first, "score")
    told = json.loads(shell.type("checkpoint", "describe", first, "--json"))
    assert (told["metadata"], told["metrics"], told["state"]) == ({"why": "best one"}, {"loss": 0.32}, "COMPLETED")
    assert "manifest.json" in told["files"] and sum(told["files"].values()) > 0
    assert "why: best one" in shell.type("checkpoint", "describe", first)
    path = shell.type("checkpoint", "download", first, "-o", "got/it").strip()
    assert path == "got/it" and everstep.Checkpointer(folder / path).load(32) == {"weight": 0.32}
    assert json.loads(shell.type("checkpoint", "download", second, "--json"))["path"] == f"checkpoints/{second}"

    people.create_model(wire.NewModel(request=uuid.uuid4().hex, name=f"m-{first}"))
    people.register_version(f"m-{first}", wire.NewVersion(checkpoint=first))
    shell.type("checkpoint", "delete", first, "--yes", is_good=False)
    assert f"registered as m-{first} 1" in shell.last.stderr
    assert f"m-{first} 1" in shell.type("checkpoint", "describe", first)
    shell.type("checkpoint", "rm", second, "--yes", is_good=False)
    assert "no pattern says which files to remove" in shell.last.stderr
    shell.type("checkpoint", "rm", second, "--glob", "**/*", is_good=False)  # nobody answers the question
    (some,) = json.loads(shell.type("checkpoint", "rm", second, "--glob", "manifest.json", "--yes", "--json"))
    assert some["state"] == "PARTIALLY_DELETED"
    assert "DELETED" in shell.type("checkpoint", "delete", f"{second},{second}", "--yes")
    assert people.checkpoint(second).state == "DELETED" and people.checkpoint(first).state == "COMPLETED"


def test_a_trial_by_its_id(shell: Shell, people: Coordinator, toy: ToyTrials, folder: Path) -> None:
    toy.train(1)
    worse, better = save(toy, 1, folder / "a", 32, 0.9), save(toy, 1, folder / "a", 16, 0.1)
    trial = people.trial(toy.experiment, 1)
    number = str(trial.trial_id)
    with toy.job(1) as job:
        name = job.reserve(wire.ReserveWorker(agent="a0", request=uuid.uuid4().hex)).worker
        points = [wire.MetricReport(kind="validation", step=s, time=1.0, values={"loss": 1 / s}) for s in (1, 2)]
        job.report_metrics(name, wire.MetricReports(reports=points))
    told = json.loads(shell.type("trial", "describe", number, "--metrics", "--metrics-summary", "--json"))
    assert told["trial_id"] == trial.trial_id and {each["uuid"] for each in told["checkpoints"]} == {worse, better}
    assert [each["metrics"] for each in told["metrics"]] == [{"loss": 1.0}, {"loss": 0.5}]
    assert told["metrics_summary"] == {"validation": {"loss": {"last": 0.5, "min": 0.5, "max": 1.0, "count": 2}}}
    assert rows(shell.type("trial", "describe", number, "--metrics", "--csv"))[0]["value"] == "1.0"
    assert rows(shell.type("trial", "describe", number, "--metrics-summary", "--csv"))[0]["count"] == "2"
    assert {each["uuid"] for each in rows(shell.type("trial", "describe", number, "--csv"))} == {worse, better}
    shown = shell.type("trial", "describe", number)
    assert f"number 1 of experiment {toy.experiment}" in shown and worse in shown

    def downloaded(*words: str) -> str:
        return str(
            json.loads(shell.type("trial", "download", number, "-o", f"got/{len(words)}", *words, "--json"))["uuid"]
        )

    assert downloaded() == downloaded("--best") == better
    assert downloaded("--latest") == better, "saved last, though at an earlier step"
    assert downloaded("--uuid", worse) == worse
    assert downloaded("--sort-by", "loss", "--larger-is-better") == worse
    shell.type("trial", "download", number, "--best", "--latest", is_good=False)
    shell.type("trial", "download", number, "--smaller-is-better", is_good=False)
    shell.type("trial", "download", number, "--uuid", str(uuid.uuid4()), is_good=False)
    assert "2 still exist" in shell.last.stderr
    other = people.create_experiment(spec("random", max_trials=1))
    killed = people.trial(other.experiment, 1).trial_id
    assert f"trial {killed}" in shell.type("trial", "kill", str(killed))
    assert json.loads(shell.type("trial", "kill", str(killed), "--json"))["state"] == "CANCELED"
    shell.type("trial", "describe", "999999", is_good=False)


def test_a_template_goes_below_the_file(shell: Shell, people: Coordinator, folder: Path) -> None:
    (folder / "template.yaml").write_text(TEMPLATE)
    name = f"small-{uuid.uuid4().hex}"
    shell.type("template", "create", name, "template.yaml")
    assert shell.type("template", "config", name) == TEMPLATE
    assert json.loads(shell.type("template", "config", name, "--json"))["max_restarts"] == 2
    assert name in shell.type("template", "list", "--csv")
    assert "# for all small ones" in shell.type("template", "describe", name)
    said = shell.type("e", "create", "det.yaml", "code", "--template", name, "--paused", "--config", "max_restarts=3")
    number = int(said.split("Created experiment ")[1].split()[0])
    made = people.experiment_config(number)
    assert (made.spec.name, made.spec.max_restarts, made.spec.num_micro_batches) == ("digits", 3, 2)
    assert made.spec.scheduling.priority == 7
    assert made.spec.searcher["max_trials"] == 2 and made.spec.searcher["metric"] == "loss"
    fork = shell.type("e", "fork", str(number), "--paused", "--config", "name=again")
    forked = people.experiment_config(int(fork.split("Created experiment ")[1].split()[0])).spec
    assert (forked.name, forked.scheduling.priority, forked.num_micro_batches) == ("again", 7, 2)
    for each in (number, number + 1):
        people.act(each, wire.ExperimentAction(action="kill"))

    (folder / "template.yaml").write_text("max_restarts: 1\n")
    shell.type("template", "create", name, "template.yaml", is_good=False)
    assert "everstep template set replaces it" in shell.last.stderr
    shell.type("template", "set", name, "template.yaml")
    assert people.template(name).config == {"max_restarts": 1}
    (folder / "template.yaml").write_text("secrets: {KEY: the-value}\n")
    shell.type("template", "set", name, "template.yaml", is_good=False)
    assert "the-value" not in shell.last.stderr and people.template(name).config == {"max_restarts": 1}
    shell.type("template", "remove", name)
    shell.type("template", "config", name, is_good=False)
    shell.type("e", "create", "det.yaml", "code", "--template", name, is_good=False)
    assert "there is no template" in shell.last.stderr


def test_the_commands_of_the_page(shell: Shell, people: Coordinator, toy: ToyTrials, folder: Path) -> None:
    toy.train(1)
    found = save(toy, 1, folder / "a", 64, 0.5)
    (page,) = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / "models.md").read_text(), re.DOTALL)
    said = guide.type_in(page, folder, {**shell.env, "UUID": found})
    assert f"checkpoint {found} is version 1 of model digits" in said and "first one in production" in said
    people.delete_model("digits")


def test_texts_of_others_cannot_turn_the_terminal_upside_down(shell: Shell, people: Coordinator) -> None:
    evil = "\x1b]0;owned\x07"
    name = f"m-{uuid.uuid4().hex}"
    new = wire.NewModel(
        request=uuid.uuid4().hex,
        name=name,
        description=evil,
        notes=f"first\n{evil}",
        labels=[evil],
        metadata={evil: evil},
    )
    people.create_model(new)
    people.set_template(name, wire.TemplateText(config={evil: 1}, written=f"{evil}: 1"))
    said = [
        shell.type("model", "describe", name),
        shell.type("model", "list"),
        shell.type("model", "label", "add", name, "plain"),
        shell.type("template", "list"),
        shell.type("template", "describe", name),
    ]
    assert "\x1b" not in "".join(said) and all("\\x1b]0;owned" in each for each in said), said
