"""What the token of a trial opens, on each store: this trial alone, until it is over."""

from __future__ import annotations

import httpx
import pytest

from everstep import wire
from everstep.errors import Refused
from everstep.wire.operations import OPERATIONS
from everstep.wire.tokens import WORKER, parse_tokens
from lab.experiments import spec
from lab.people import ALICE, BOB, READER, ROOT, TakingAgent, as_, write_tokens
from lab.refused import refused
from lab.search_programs import create, custom, post, validate

ALWAYS = {"check", "openapi", "code", "upload_code", "checkpoint", "create_experiment"}
SEEN = wire.TargetRequest(wait_s=0.0)


@pytest.fixture(scope="module")
def server(tmp_path_factory, server_class, store_url):
    folder = tmp_path_factory.mktemp("trials")
    write_tokens(folder)
    server = server_class(folder, store_url)
    yield server
    server.stop()
    log = server.log_file.read_text()
    assert "Traceback" not in log and "trial.e" not in log, log


@pytest.fixture
def agent(server):
    agent = TakingAgent(server, 100)
    yield agent
    agent.leave()


@pytest.fixture
def trials(server, agent):
    """The orders of two trials of alice's."""
    with as_(server, ALICE) as alice:
        number = alice.create_experiment(spec("random", max_trials=2)).experiment
    return agent.take(*(wire.trial_job(number, each) for each in (1, 2)))


def test_a_trials_token_opens_its_own_job(server, trials):
    first, second = trials
    assert first.token != second.token
    (token,) = parse_tokens(first.token)
    assert token.role == WORKER
    with as_(server, first.token, first.job) as own:
        assert own.view().job == first.job
        assert own.target(SEEN).wish == wire.TRAIN
        assert own.report_result(wire.TrialResult(length=1, metric=0.5)).wish == wire.TRAIN
        own.reserve(wire.ReserveWorker(agent="a", request="r"))
        assert own.trial(first.experiment, 1).latest == 0.5


def test_a_trials_token_opens_no_other_job_trial_experiment_or_pool(server, trials):
    first, second = trials
    with as_(server, first.token, second.job) as other:
        for call in (
            other.view,
            lambda: other.target(SEEN),
            lambda: other.report_result(wire.TrialResult(length=1, metric=0.0)),
            lambda: other.reserve(wire.ReserveWorker(agent="a", request="r")),
            lambda: other.trial(second.experiment, 2),
            lambda: other.experiment(second.experiment),
            lambda: other.experiments(),
            lambda: other.pool("default"),
            lambda: other.pool_use("default"),
        ):
            with pytest.raises(Refused) as no:
                call()
            assert (no.value.status, no.value.code) == (403, "token-of-trial")
            assert f"the token is for trial {first.job} alone" in no.value.message
    with as_(server, ALICE) as alice:
        assert alice.trial(second.experiment, 2).latest is None


def test_all_operations_but_a_few_are_refused_elsewhere(server, trials):
    """Also those that will be declared later."""
    first, second = trials
    places = {"job": second.job, "experiment": second.experiment, "trial": 2, "trial_id": second.trial_id}
    headers = {"authorization": f"Bearer {parse_tokens(first.token)[0].word}"}
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=60) as client:
        for each in OPERATIONS:
            path = each.path.format(**{name: places.get(name, "1") for name in each.in_path})
            answer = client.request(each.method, path)
            assert (answer.status_code == 403) == (each.name not in ALWAYS), f"{each.name}: {answer.text}"
        assert client.get("/v1/stream").status_code == 403


def test_a_trials_token_is_void_when_the_trial_is_over(server, agent, trials):
    first, second = trials
    with as_(server, first.token, first.job) as own, as_(server, ALICE) as alice:
        own.end_trial(wire.TrialEnd())
        assert own.view().job == first.job, "its process must still be able to leave"
        agent.end(first.job)
        agent.until(lambda: alice.trial(first.experiment, 1).state == "COMPLETED")
        with refused("trial-over") as no:
            own.view()
        assert no.value.status == 403
        with refused("trial-over"):
            own.check()
        alice.act(first.experiment, wire.ExperimentAction(action="kill"))
        agent.until(lambda: alice.experiment(first.experiment).state == "CANCELED")
    with as_(server, second.token, second.job) as own, refused("trial-over"):
        own.target(SEEN)


def test_a_made_up_token_of_a_trial_is_none(server, trials):
    word = parse_tokens(trials[0].token)[0].word
    begin, _, proof = word.rpartition(".")
    others = [f"{begin}.", begin, f"{begin}.{proof[:-2]}", f"{trials[1].job}.{proof}", f"trial.{trials[1].job}.{proof}"]
    for each in [*others, "trial.", "trial..", word + "=", word.replace("-t1", "-t01")]:
        with as_(server, f"worker:{each}", trials[0].job) as own, pytest.raises(Refused) as no:
            own.view()
        assert no.value.status == 401, each


def test_a_search_in_a_trial_creates_an_experiment_for_its_owner_and_drives_it(server, trials):
    first, second = trials
    wanted = custom()
    with as_(server, first.token, first.job) as program:
        made = program.create_experiment(wanted)
        assert (made.owner, made.created_by) == ("alice", first.job)
        assert program.create_experiment(wanted).experiment == made.experiment, "as after a restart of the trial"
        number = made.experiment
        program.search_operations(number, post(1, create("a"), validate("a", 4), state="s"))
        assert program.search_state(number).state == "s"
        assert program.trials(number).num_found == 1 and program.search_events(number).events
        with refused("role-insufficient"):
            program.act(number, wire.ExperimentAction(action="kill"))
    with as_(server, second.token, second.job) as other:
        for call in (lambda: other.search_state(number), lambda: other.search_operations(number, post(9))):
            with refused("token-of-trial"):
                call()
        with refused("experiment-of-another"):
            other.create_experiment(wanted)
    with as_(server, BOB) as bob, refused("experiment-of-another"):
        bob.search_operations(number, post(2))
    with as_(server, ALICE) as alice:
        assert alice.act(number, wire.ExperimentAction(action="pause")).state == "PAUSED"


def test_a_search_in_a_trial_begins_with_no_others_weights(server, trials):
    first, second = trials
    with as_(server, first.token, first.job) as program, refused("experiment-of-another"):
        program.create_experiment(spec("random", source_trial_id=second.trial_id))


def test_a_trial_opens_no_page(server, trials):
    with as_(server, trials[0].token) as own, refused("token-of-trial"):
        own.page_code(wire.PageCodeRequest())
    word = parse_tokens(trials[0].token)[0].word
    answer = httpx.post(f"{server.url}/v1/session", json={"token": word}, headers={"x-everstep": "page"})
    assert answer.status_code in (401, 403)


def test_no_view_shows_a_trials_token(server, trials):
    word = parse_tokens(trials[0].token)[0].word
    with as_(server, ROOT, trials[0].job) as root, as_(server, READER) as reader:
        number = trials[0].experiment
        shown = [root.view(), root.about(), reader.experiment(number), reader.experiment_config(number)]
        shown += [reader.trials(number), reader.pool("default"), reader.jobs()]
    assert not any(word in str(each) for each in shown)
