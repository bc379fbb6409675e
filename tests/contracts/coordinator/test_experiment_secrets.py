"""Secrets of experiments: sent with the creation, and from there only to the nodes that run its trials."""

from __future__ import annotations

import gzip
from pathlib import Path

import httpx
import pytest

from everstep import wire
from everstep.errors import Refused
from lab.command import Shell
from lab.experiments import spec
from lab.people import ALICE, BOB, HELD, READER, ROOT, VALUE, TakingAgent, as_, with_secrets, write_tokens


@pytest.fixture(scope="module")
def server(tmp_path_factory, server_class, store_url):
    folder = tmp_path_factory.mktemp("secrets")
    write_tokens(folder)
    server = server_class(folder, store_url)
    yield server
    server.stop()
    log = server.log_file.read_text()
    assert "Traceback" not in log and "hunter2" not in log, log


@pytest.fixture
def agent(server):
    agent = TakingAgent(server, 100)
    yield agent
    agent.leave()


def order_of(agent, view):
    (order,) = agent.take(wire.trial_job(view.experiment, 1))
    return order


def test_only_orders_of_its_own_trials_hold_a_secret(server, agent):
    with as_(server, ALICE) as alice:
        view, other = alice.create_experiment(with_secrets()), alice.create_experiment(spec("random", max_trials=1))
    assert order_of(agent, view).secrets == HELD
    assert order_of(agent, other).secrets == {}
    agent.report()
    again = [each for each in agent.last.run if each.experiment == view.experiment]
    assert [each.secrets for each in again] == [{}], "not sent again to a node that runs the trial"
    assert VALUE not in repr(order_of(agent, view))


def test_nothing_that_people_see_shows_a_secret(server, agent):
    with as_(server, ALICE) as alice:
        number = alice.create_experiment(with_secrets()).experiment
    order = agent.take(wire.trial_job(number, 1))[0]
    with as_(server, ROOT, order.job) as root, as_(server, READER) as reader:
        shown = [
            *(root.view(), root.about(), root.band(), root.compare(jobs=order.job)),
            *(reader.experiment(number), reader.experiments(), reader.experiment_config(number)),
            *(reader.trials(number), reader.search_events(number), reader.pool("default"), reader.jobs()),
        ]
        assert not any(VALUE in str(each) for each in shown)
        assert "KEY" in str(reader.experiment_config(number)), "its name is no secret"


def test_no_refusal_quotes_a_secret(server):
    good = with_secrets()
    wrong = [
        with_secrets(held={"KEY": VALUE, "NOT-A-NAME": VALUE}),
        with_secrets(held={"KEY": VALUE, "UNLISTED": VALUE}),
        with_secrets(held={"KEY": VALUE + "\0"}),
        with_secrets(spec("nonsense", order={"secrets": ["KEY"]})),
    ]
    with as_(server, ALICE) as alice:
        for each in wrong:
            with pytest.raises(Refused) as no:
                alice.create_experiment(each)
            assert no.value.status == 422 and "hunter2" not in str(no.value)
    body = wire.to_json(good).replace(f'"{VALUE}"'.encode(), f'["{VALUE}"]'.encode())
    headers = {"authorization": "Bearer of-alice"}
    answer = httpx.post(f"{server.url}/v1/experiments", content=body, headers=headers, trust_env=False)
    assert answer.status_code == 422 and "hunter2" not in answer.text
    assert "hunter2" not in repr(good)


def test_a_secret_is_gone_with_its_experiment(server, agent):
    with as_(server, ALICE) as alice:
        view = alice.create_experiment(with_secrets())
    assert order_of(agent, view).secrets == HELD
    with as_(server, ALICE) as alice:
        alice.act(view.experiment, wire.ExperimentAction(action="kill"))
        agent.until(lambda: alice.experiment(view.experiment).state == "CANCELED")
        alice.act(view.experiment, wire.ExperimentAction(action="delete"))
        fork = alice.create_experiment(spec(order={"secrets": ["KEY"]}, forked_from=view.experiment, max_trials=1))
    assert order_of(agent, fork).secrets == {}


def test_a_fork_has_the_secrets_of_those_who_may_change_the_first(server, agent):
    with as_(server, ALICE) as alice, as_(server, BOB) as bob:
        first = alice.create_experiment(with_secrets()).experiment
        again = [
            each.create_experiment(spec("random", max_trials=1, order={"secrets": ["KEY"]}, forked_from=first))
            for each in (alice, bob)
        ]
        own = alice.create_experiment(with_secrets(held={"KEY": "another"}, forked_from=first))
    assert [order_of(agent, each).secrets for each in (*again, own)] == [HELD, {}, {"KEY": "another"}]


def test_a_trial_gets_no_secrets_of_its_owners_other_experiments(server, agent):
    with as_(server, ALICE) as alice:
        first, other = alice.create_experiment(with_secrets()), alice.create_experiment(spec("random", max_trials=1))
    order = order_of(agent, other)
    with as_(server, order.token, order.job) as program:
        fork = spec("random", max_trials=1, order={"secrets": ["KEY"]}, forked_from=first.experiment)
        view = program.create_experiment(fork)
    assert order_of(agent, view).secrets == {}


# --- as commands send them ------------------------------------------------------------------------

FILE = """
entrypoint: train.py
searcher: {name: single, metric: loss}
secrets: {KEY: 'env:MY_KEY', TYPED: typed-hunter2, OTHERS: 'kubernetes:set/key'}
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("")
    (tmp_path / "code/exp.yaml").write_text(FILE)
    return tmp_path


@pytest.fixture(scope="module")
def coder(tmp_path_factory, server_class):
    """On SQLite, with a folder for code."""
    folder = tmp_path_factory.mktemp("coder")
    write_tokens(folder)
    server = server_class(folder, str(folder / "store.db"))
    yield server
    server.stop()
    assert "hunter2" not in server.log_file.read_text()


def test_what_a_file_calls_a_secret_is_read_here_and_sent(coder, code):
    shell = Shell(code, EVERSTEP_COORDINATOR=coder.url, EVERSTEP_TOKEN=ALICE, MY_KEY=VALUE)
    said = shell.type("e", "create", "code/exp.yaml", "code") + shell.last.stderr
    assert "secrets.OTHERS: kubernetes:set/key is not read here" in said
    agent = TakingAgent(coder, 100)
    (order,) = agent.take("e1-t1")
    assert order.secrets == {"KEY": VALUE, "TYPED": "typed-hunter2"}
    shown = [shell.type("e", *words) for words in (("config", "1"), ("describe", "1"), ("list",))]
    assert "KEY" in shown[0] and not any("hunter2" in each for each in (said, *shown))
    with as_(coder, ROOT) as root:
        tarball = root.code(root.experiment(1).code)
    assert b"exp.yaml" not in gzip.decompress(tarball), "the file has a secret in it"

    others = Shell(code, EVERSTEP_COORDINATOR=coder.url, EVERSTEP_TOKEN=BOB)
    others.type("e", "fork", "1")
    assert "secrets.KEY: not set here" in others.last.stderr
    own = Shell(code, EVERSTEP_COORDINATOR=coder.url, EVERSTEP_TOKEN=BOB, MY_KEY="bobs-own-key")
    own.type("e", "fork", "1")
    assert [each.secrets for each in agent.take("e2-t1", "e3-t1")] == [{}, {"KEY": "bobs-own-key"}]
    agent.leave()
    others.type("e", "create", "code/exp.yaml", "code", is_good=False)
    assert "MY_KEY is not set" in others.last.stderr
