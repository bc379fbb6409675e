"""Whose an experiment is, and who may change it: on each store, by real calls."""

from __future__ import annotations

import csv
import io
import json
import time

import pytest

from everstep import wire
from everstep.errors import Refused
from lab.browser import Browser
from lab.command import Shell
from lab.experiments import spec
from lab.people import ALICE, ANYONE, BOB, READER, ROOT, TakingAgent, as_, write_tokens
from lab.search_programs import create, custom, post

PAUSE = wire.ExperimentAction(action="pause")
CHANGES = {
    "act": lambda it, number: it.act(number, PAUSE),
    "delete": lambda it, number: it.act(number, wire.ExperimentAction(action="delete")),
    "change": lambda it, number: it.change(number, wire.ExperimentChange(name="mine")),
    "kill a trial": lambda it, number: it.kill_trial(number, 1),
    "verify": lambda it, number: it.verify_trial(number, 1, wire.VerifyRequest(request="again")),
    "search": lambda it, number: it.search_operations(number, post(1, create("a"))),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory, server_class, store_url):
    folder = tmp_path_factory.mktemp("people")
    write_tokens(folder)
    server = server_class(folder, store_url)
    yield server
    server.stop()
    log = server.log_file.read_text()
    assert "Traceback" not in log and "of-" not in log, log


def created(server, token, given=None):
    with as_(server, token) as people:
        return people.create_experiment(given or spec("random", max_trials=1))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_a_person_creates_is_changed_by_no_other_person(server, change):
    number = created(server, ALICE, custom()).experiment
    for token in (BOB, ANYONE):
        with as_(server, token) as other, pytest.raises(Refused) as refused:
            change(other, number)
        assert (refused.value.status, refused.value.code) == (403, "experiment-of-another")
        said = f"experiment {number} belongs to alice; ask alice or an administrator"
        assert refused.value.message.endswith(said) and refused.value.hint is None


def test_the_job_of_a_trial_is_stopped_and_made_by_no_other_person(server):
    """Its name can be guessed, also before there is an experiment with that number."""
    number = created(server, ALICE).experiment
    agent = TakingAgent(server, 100)
    agent.take(wire.trial_job(number, 1))
    for experiment, code in ((number, "experiment-of-another"), (number + 1, "experiment-unknown")):
        for call in (lambda it: it.stop(wire.Stop(reason="mine")), lambda it: it.create_job(wire.JobSpec())):
            with as_(server, BOB, wire.trial_job(experiment, 1)) as bob, pytest.raises(Refused) as refused:
                call(bob)
            assert refused.value.code in (code, "job-unknown")
    with as_(server, ALICE, wire.trial_job(number, 1)) as alice:
        assert not alice.view().is_stopped
        alice.stop(wire.Stop(reason="mine"))
        assert alice.view().is_stopped
    agent.leave()


@pytest.mark.parametrize("token", [ALICE, ROOT])
def test_the_owner_and_administrators_act_and_others_look(server, token):
    view = created(server, ALICE)
    assert view.owner == "alice"
    with as_(server, token) as person:
        assert person.act(view.experiment, PAUSE).state == "PAUSED"
        assert person.change(view.experiment, wire.ExperimentChange(notes="seen")).notes == "seen"
        person.kill_trial(view.experiment, 1)
        assert person.act(view.experiment, wire.ExperimentAction(action="kill")).state == "CANCELED"
        assert person.act(view.experiment, wire.ExperimentAction(action="delete")).state == "DELETED"
    with as_(server, READER) as reader, as_(server, BOB) as bob:
        other = created(server, ALICE).experiment
        assert reader.experiment(other).owner == bob.experiment(other).owner == "alice"


def test_what_a_token_without_a_name_creates_is_everybodys(server):
    view = created(server, ANYONE)
    assert view.owner == ""
    with as_(server, BOB) as bob, as_(server, ALICE) as alice:
        assert bob.act(view.experiment, PAUSE).state == "PAUSED"
        assert alice.change(view.experiment, wire.ExperimentChange(name="ours")).name == "ours"


def test_a_client_creates_with_the_token_that_has_a_name(server):
    both = f"worker:of-a-worker {ALICE}"
    assert created(server, both).owner == "alice"


def test_a_fork_is_the_callers(server, tmp_path):
    number = created(server, ALICE).experiment
    shell = Shell(tmp_path, EVERSTEP_COORDINATOR=server.url, EVERSTEP_TOKEN=BOB)
    shell.type("e", "fork", str(number))
    with as_(server, BOB) as bob:
        (fork,) = [each for each in bob.experiments().experiments if each.forked_from == number]
        assert fork.owner == "bob" and bob.act(fork.experiment, PAUSE).state == "PAUSED"


def test_a_session_of_the_page_is_its_persons(server):
    hers, his = created(server, ALICE).experiment, created(server, BOB).experiment
    with Browser(server.url) as browser:
        browser.open(token="of-alice")
        answers = [
            browser.http.post(f"/v1/experiments/{each}/action", json={"action": "pause"}) for each in (hers, his)
        ]
    assert [answer.status_code for answer in answers] == [200, 403]
    assert answers[1].json()["code"] == "experiment-of-another"


def test_use_counts_by_person_and_day_also_what_was_deleted(server, tmp_path):
    agent = TakingAgent(server, 100)
    numbers = [created(server, token).experiment for token in (ALICE, BOB)]
    agent.take(*(wire.trial_job(each, 1) for each in numbers))
    with as_(server, ROOT) as root:
        root.act(numbers[1], wire.ExperimentAction(action="kill"))
        agent.until(lambda: root.experiment(numbers[1]).state == "CANCELED")
        root.act(numbers[1], wire.ExperimentAction(action="delete"))
        found = root.pool_use("default", days=2)
        again = root.pool_use("default", days=2)
    agent.leave()

    seconds = [{(each.day, each.person): each.slot_seconds for each in use.use} for use in (found, again)]
    days = {time.strftime("%Y-%m-%d", time.gmtime(time.time() - ago)) for ago in (0, 60)}
    assert {day for day, _ in seconds[0]} <= days and {person for _, person in seconds[0]} >= {"alice", "bob"}
    assert all(number > 0 for number in seconds[0].values())
    told = [sum(number for (_, person), number in each.items() if person == "alice") for each in seconds]
    assert told[1] > told[0], "a slot that is held counts up to now"

    shell = Shell(tmp_path, EVERSTEP_COORDINATOR=server.url, EVERSTEP_TOKEN=READER)
    use = ("pool", "use", "--days", "2")
    rows = list(csv.DictReader(io.StringIO(shell.type(*use, "--csv"))))
    assert {each["person"] for each in rows} >= {"alice", "bob"} and float(rows[0]["slot_seconds"]) > 0
    assert {each["person"] for each in json.loads(shell.type(*use, "--json"))["use"]} >= {"alice", "bob"}
    table = shell.type(*use)
    assert "slot-hours" in table and "alice" in table
    assert "no slot was used" in shell.type("pool", "use", "--pool", "another")
