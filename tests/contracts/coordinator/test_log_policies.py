"""Log policies, by real calls, on each store: a line that matches decides where and whether a trial runs again."""

from __future__ import annotations

import pytest

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.errors import Refused
from lab.command import until
from lab.experiments import spec
from lab.log_writer import Writer
from lab.people import ROOT, TakingAgent, as_, write_tokens


@pytest.fixture(scope="module")
def server(tmp_path_factory, server_class, store_url):
    folder = tmp_path_factory.mktemp("policies")
    write_tokens(folder)
    made = server_class(folder, store_url)
    yield made
    made.stop()
    assert "Traceback" not in made.log_file.read_text(), made.log_file.read_text()


class TwoNodes:
    """Agents that take trials and run nothing: what these print and how they end is up to the story."""

    def __init__(self, server):
        self.server = server
        self.agents = {name: TakingAgent(server, 1, name) for name in ("n1", "n2")}
        self.people = as_(server, ROOT)

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        for each in self.people.experiments(state="ACTIVE").experiments:
            self.people.act(each.experiment, wire.ExperimentAction(action="kill"))
        until(lambda: self.round() or not self.people.experiments(state="ACTIVE,STOPPING_KILLED").experiments)
        for each in self.agents.values():
            each.leave()
        self.people.close()

    def round(self):
        for each in self.agents.values():
            each.report()

    def create(self, *policies, **given):
        new = spec("random", max_trials=1, log_policies=list(policies), **given)
        return self.people.create_experiment(new).experiment

    def place(self, number):
        """The node that the trial runs on, once it does."""
        job, found = wire.trial_job(number, 1), []

        def is_there():
            self.round()
            found[:] = [name for name, each in self.agents.items() if job in each.orders]
            return bool(found)

        until(is_there, lambda: f"{self.people.trial(number, 1)}")
        return found[0]

    def print_and_fail(self, number, *lines):
        """Where it runs. As a real agent: what was printed is sent before the end is."""
        name, job = self.place(number), wire.trial_job(number, 1)
        assignment = self.agents[name].orders[job].number
        with Coordinator(self.server.url, ROOT, job) as trial:
            Writer(trial, wire.trial_node(name, assignment)).say(*lines)
        self.agents[name].fail(job)
        return name

    def fail(self, number):
        """Again, if it runs again: the search of its log may have taken long."""
        job = wire.trial_job(number, 1)
        for each in self.agents.values():
            if job in each.orders:
                each.fail(job)

    def until_trial(self, number, look):
        found = []

        def is_so():
            self.round()
            found[:] = [self.people.trial(number, 1)]
            return look(found[0])

        until(is_so, lambda: f"{found}")
        return found[0]


@pytest.fixture
def nodes(server):
    with TwoNodes(server) as made:
        yield made


EXCLUDE = wire.LogPolicy(name="bad GPU", pattern=r"Xid \d+", action="exclude_node")
CANCEL = wire.LogPolicy(pattern="No such file", action="cancel_retries")


def test_a_trial_is_not_placed_again_on_a_node_that_is_excluded_and_waits_if_there_is_no_other(nodes):
    number = nodes.create(EXCLUDE, max_restarts=5)
    first = nodes.print_and_fail(number, "step 1", "GPU 0: Xid 79")
    trial = nodes.until_trial(number, lambda it: it.num_restarts == 1)
    assert f"log policy bad GPU: not on {first} again (GPU 0: Xid 79)" in trial.reason
    assert trial.log_matches == [
        wire.LogMatch(policy="bad GPU", action="exclude_node", node=first, line="GPU 0: Xid 79")
    ]
    second = nodes.print_and_fail(number, "GPU 1: Xid 13")
    assert second != first
    trial = nodes.until_trial(number, lambda it: it.num_restarts == 2 and "no other node" in it.reason)
    assert "needs 1 slot, not on n1, n2 (log policy); the pool has no other node now" in trial.reason
    assert not any(each.orders for each in nodes.agents.values())


def test_a_node_that_is_excluded_for_one_trial_still_runs_others(nodes):
    one = nodes.create(EXCLUDE)
    bad = nodes.print_and_fail(one, "Xid 79")
    assert nodes.place(one) != bad
    assert nodes.place(nodes.create()) == bad


def test_the_next_failure_ends_a_trial_whose_retries_are_canceled(nodes):
    number = nodes.create(CANCEL, max_restarts=5)
    nodes.print_and_fail(number, "x.npz: No such file")
    trial = nodes.until_trial(number, lambda it: it.state in wire.ENDED)
    assert (trial.state, trial.num_restarts) == ("ERROR", 0)
    assert "exit code 1; log policy No such file allows no more restarts (x.npz: No such file)" in trial.reason


def test_a_failure_without_a_match_restarts_the_trial_as_usual(nodes):
    number = nodes.create(EXCLUDE, CANCEL, max_restarts=1)
    first = nodes.print_and_fail(number, "all is well")
    assert nodes.place(number) == first, "its node is as good as the other one"
    nodes.print_and_fail(number, "all is well")
    trial = nodes.until_trial(number, lambda it: it.state in wire.ENDED)
    assert trial.reason.startswith("exit code 1; its only restart is used") and trial.log_matches == []


def test_the_built_in_policies_name_what_happened_and_can_be_turned_off(nodes):
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    usual = nodes.create(max_restarts=0)
    where = nodes.print_and_fail(usual, line)
    trial = nodes.until_trial(usual, lambda it: it.state in wire.ENDED)
    assert trial.reason == f"exit code 1; no restart is allowed; CUDA OOM on {where}"
    off = nodes.create(wire.LogPolicy(name="CUDA OOM"), max_restarts=0)
    nodes.print_and_fail(off, line)
    assert nodes.until_trial(off, lambda it: it.state in wire.ENDED).log_matches == []


def test_a_regular_expression_that_takes_forever_is_given_up_and_hurts_nobody(nodes):
    number = nodes.create(wire.LogPolicy(name="slow", pattern="(a+)+$", action="cancel_retries"), CANCEL)
    nodes.print_and_fail(number, "a" * 5000 + "b", "x: No such file")
    trial = nodes.until_trial(number, lambda it: nodes.fail(number) or it.state in wire.ENDED)
    assert "log policy slow: the regular expression took longer than" in trial.reason
    assert "No such file allows no more restarts" in trial.reason, "the other policy still works"


def test_a_pattern_that_is_no_regular_expression_is_refused(nodes):
    with pytest.raises(Refused) as refused:
        nodes.create(wire.LogPolicy(name="x", pattern="("))
    assert refused.value.code == "log-regex-invalid" and "log policy x" in refused.value.message


def test_what_was_matched_is_known_after_kill_9(tmp_path, server_class):
    write_tokens(tmp_path)
    server = server_class(tmp_path, str(tmp_path / "db"))
    with TwoNodes(server) as nodes:
        number = nodes.create(EXCLUDE, max_restarts=5)
        first = nodes.print_and_fail(number, "Xid 79")
        nodes.until_trial(number, lambda it: it.num_restarts == 1)
        server.kill()
        server.start()
        nodes.people.close()
        nodes.people = as_(server, ROOT)
        assert excluded(nodes.until_trial(number, lambda it: True)) == [first]
        assert nodes.place(number) != first
    server.stop()


def excluded(trial):
    return [each.node for each in trial.log_matches if each.action == "exclude_node"]
