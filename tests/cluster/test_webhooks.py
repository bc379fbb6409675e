"""Real trials on real nodes: what they say reaches a receiver, and what they print decides where they run again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.env import read_token
from everstep.wire.pool import agent_of
from lab.pool_stage import PoolStage
from lab.webhook_receiver import WebhookReceiver

PLAIN = {"EVERSTEP_NURSERY": "off"}  # no process with torch: these scripts need none
ALERTS = """
import everstep

everstep.alert("half way", "the loss is 1", level="warning")
print("GPU 0: Xid 79", flush=True)
everstep.report({"loss": 1.0}, step=8)
"""
FAILS_ONCE = """
import os, sys
import everstep

folder = sys.argv[sys.argv.index("--folder") + 1]
if not os.path.exists(folder + "/was-here"):
    open(folder + "/was-here", "w").close()
    print("GPU 0: Xid 79", flush=True)
    sys.exit(1)
everstep.report({"loss": 1.0}, step=8)
"""
FAILS = """
import sys

print("x.npz: No such file", flush=True)
sys.exit(1)
"""


def test_a_trial_that_alerts_and_prints_a_pattern_calls_its_webhook_for_each_once(tmp_path: Path) -> None:
    with WebhookReceiver() as receiver, PoolStage(tmp_path, EVERSTEP_WEBHOOK_HOSTS=receiver.host, **PLAIN) as stage:
        with stage.connect() as people:
            triggers = ("alert", "trial-completed", "experiment-completed", "experiment-failed")
            made = people.create_webhook(receiver.new("all", *triggers, log_patterns=[r"Xid \d+"]))
        stage.join()
        experiment = stage.trials.create(1, script=ALERTS)
        assert stage.trials.wait_state(experiment, "COMPLETED", "ERROR").state == "COMPLETED"
        receiver.wait(4)
        told = {each.id: each for each in receiver.received}
        assert Counter(each.event["event_type"] for each in told.values()) == Counter(
            ["CUSTOM", "TASK_LOG", "TRIAL_STATE_CHANGE", "EXPERIMENT_STATE_CHANGE"]
        )
        assert all(each.is_signed_by(made.secret) for each in receiver.received)
        data = {each.event["event_type"]: each.event["event_data"] for each in told.values()}
        assert data["CUSTOM"]["data"] == {"title": "half way", "description": "the loss is 1", "level": "warning"}
        assert data["TASK_LOG"]["task_log"]["line"] == "GPU 0: Xid 79"
        assert data["TASK_LOG"]["task_log"]["node"] == "a"
        assert data["TRIAL_STATE_CHANGE"]["trial"]["job"] == f"e{experiment}-t1"
        assert data["EXPERIMENT_STATE_CHANGE"]["experiment"]["state"] == "COMPLETED"


def test_a_trial_continues_on_the_other_node_after_its_log_has_excluded_one(tmp_path: Path) -> None:
    policy = wire.LogPolicy(name="bad GPU", pattern=r"Xid \d+", action="exclude_node")
    with PoolStage(tmp_path, **PLAIN) as stage:
        for name in ("a", "b"):
            stage.join(name)
        experiment = stage.trials.create(1, script=FAILS_ONCE, log_policies=[policy])
        assert stage.trials.wait_state(experiment, "COMPLETED", "ERROR").state == "COMPLETED"
        (trial,) = stage.trials.trials(experiment)
        (match,) = trial.log_matches
        assert (trial.num_restarts, match.line, match.action) == (1, "GPU 0: Xid 79", "exclude_node")
        assert f"log policy bad GPU: not on {match.node} again" in trial.reason
        with Coordinator(stage.url, read_token(stage.token_file), trial.job) as job:
            (line,) = job.logs(wire.LogsRequest(text="Xid")).lines
            agents = [agent_of(each.agent) for each in job.view().workers]
        assert agent_of(line.node) == match.node
        assert sorted(agents) == ["a", "b"] and agents[0] == match.node


def test_the_next_failure_ends_a_trial_whose_log_cancels_its_retries(tmp_path: Path) -> None:
    policy = wire.LogPolicy(pattern="No such file", action="cancel_retries")
    with PoolStage(tmp_path, **PLAIN) as stage:
        stage.join()
        experiment = stage.trials.create(1, script=FAILS, log_policies=[policy], max_restarts=5)
        stage.trials.wait_state(experiment, "COMPLETED", "ERROR")
        (trial,) = stage.trials.trials(experiment)
        assert (trial.state, trial.num_restarts) == ("ERROR", 0)
        assert "log policy No such file allows no more restarts (x.npz: No such file)" in trial.reason
