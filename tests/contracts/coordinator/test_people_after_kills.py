"""Owners, tokens of trials and secrets outlive a coordinator that is killed, on each store."""

from __future__ import annotations

import pytest

from everstep import wire
from lab.people import ALICE, BOB, HELD, TakingAgent, as_, with_secrets, write_tokens
from lab.refused import refused


@pytest.fixture
def frail(store_url, tmp_path, server_class):
    write_tokens(tmp_path)
    server = server_class(tmp_path, store_url)
    yield server
    server.end()


def test_owners_tokens_and_secrets_outlive_a_kill(frail):
    with as_(frail, ALICE) as alice:
        number = alice.create_experiment(with_secrets()).experiment
    job = wire.trial_job(number, 1)
    (before,) = TakingAgent(frail, 1).take(job)
    frail.kill()
    frail.start()

    with as_(frail, before.token, job) as trial:
        assert trial.target(wire.TargetRequest(wait_s=0.0)).wish == wire.TRAIN
    with as_(frail, BOB) as bob, refused("experiment-of-another"):
        bob.act(number, wire.ExperimentAction(action="kill"))
    (after,) = TakingAgent(frail, 1).take(job)
    assert (after.token, after.secrets) == (before.token, HELD)
