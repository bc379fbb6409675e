"""What follows from what trials print, with a store and a receiver, and no other process."""

from __future__ import annotations

import asyncio
import base64
import time

import pytest

from everstep import wire
from everstep.coordinator import log_watch
from everstep.coordinator.experiments.seam import AssignmentEnd
from everstep.coordinator.service import Service
from everstep.coordinator.store.store import Store
from everstep.coordinator.webhooks.hosts import parse_hosts
from everstep.errors import Refused
from everstep.record.log_chunk import STDOUT, PrintedLine, chunk_of
from everstep.record.log_search import by_regex
from everstep.wire.tokens import USER, Token
from lab.command import until
from lab.experiments import spec
from lab.webhook_receiver import WebhookReceiver

ANYONE = Token(role=USER, word="x")
FAILED = AssignmentEnd(exit_code=1, was_asked=False, is_lost=False, reason="exit code 1")
EXCLUDE = wire.LogPolicy(name="bad GPU", pattern=r"Xid \d+", action="exclude_node")
CANCEL = wire.LogPolicy(pattern="No such file", action="cancel_retries")


class HereProcess:
    """Instead of a process: these expressions are quick, but one."""

    def searching(self, regex):
        def search(text):
            if regex == "slow":
                raise Refused("the regular expression took longer than 2 s", code="log-regex-too-slow")
            return by_regex(regex)(text)

        return search

    def close(self): ...


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(log_watch, "RegexProcess", HereProcess)
    monkeypatch.setattr(log_watch, "LONGEST_CATCH_UP_S", 600.0)


class Printer:
    """A worker of a trial's job that is nothing but its output."""

    def __init__(self, service, job, node):
        self.service, self.job, self.node, self.next_line, self.num_bytes = service, job, node, 0, 0

    async def say(self, *texts):
        job = await self.service.create(self.job, wire.JobSpec())
        worker = (await job.reserve(wire.ReserveWorker(agent=self.node, request=self.node))).worker
        chunk = chunk_of([PrintedLine(time.time(), 20, STDOUT, text) for text in texts])
        self.num_bytes += len(chunk.text)
        message = wire.LogChunk(
            worker=worker,
            first_line=self.next_line,
            stdout=self.num_bytes,
            stderr=0,
            rank=0,
            data=base64.b64encode(chunk.pack()).decode(),
        )
        self.next_line += len(texts)
        await self.service.logs.keep(job, self.node, wire.LogChunks(chunks=[message]))


def run(folder, story, *hosts):
    async def begin():
        service = Service(Store(str(folder / "db")), webhook_hosts=parse_hosts(hosts))
        await service.start()
        try:
            return await story(service)
        finally:
            service.let_go()
            await service.close()

    return asyncio.run(begin())


async def created(service, *policies, **given):
    new = spec("random", max_trials=1, log_policies=list(policies), **given)
    return (await service.experiment_calls.create(new, ANYONE)).experiment


def test_a_failed_trial_is_kept_away_from_the_node_that_its_log_names(tmp_path):
    async def story(service):
        number = await created(service, EXCLUDE, max_restarts=5)
        await Printer(service, f"e{number}-t1", "n1-1").say("fine", "GPU 0: Xid 79\x07", "Xid 80")
        await service.experiments.vacated(number, 1, 1, FAILED, [])
        (candidate,) = service.experiments.live[number].candidates()
        return candidate.excluded, await service.experiment_calls.trial(number, 1)

    excluded, trial = run(tmp_path, story)
    assert (excluded, trial.num_restarts) == ({"n1"}, 1)
    assert "log policy bad GPU: not on n1 again (GPU 0: Xid 79)" in trial.reason
    again = run(tmp_path, lambda service: service.experiment_calls.trial(1, 1))
    assert (
        again.log_matches
        == trial.log_matches
        == [wire.LogMatch(policy="bad GPU", action="exclude_node", node="n1", line="GPU 0: Xid 79 ")]
    )


def test_a_trial_whose_retries_are_canceled_ends_with_its_failure(tmp_path):
    async def story(service):
        number = await created(service, CANCEL, max_restarts=5)
        await Printer(service, f"e{number}-t1", "n1-1").say("x: No such file")
        await service.experiments.vacated(number, 1, 1, FAILED, [])
        return await service.experiment_calls.trial(number, 1), await service.experiment_calls.view(number)

    trial, view = run(tmp_path, story)
    assert (trial.state, trial.num_restarts, view.state) == ("ERROR", 0, "ERROR")
    assert "exit code 1; log policy No such file allows no more restarts (x: No such file)" in trial.reason


def test_a_pattern_that_is_too_slow_is_given_up_and_the_others_work(tmp_path):
    async def story(service):
        number = await created(service, wire.LogPolicy(name="endless", pattern="slow", action="cancel_retries"), CANCEL)
        await Printer(service, f"e{number}-t1", "n1-1").say("slow", "x: No such file")
        await service.experiments.vacated(number, 1, 1, FAILED, [])
        return await service.experiment_calls.trial(number, 1)

    trial = run(tmp_path, story)
    assert trial.state == "ERROR" and "log policy No such file allows no more restarts" in trial.reason
    assert "log policy endless: the regular expression took longer than 2 s; it is no longer matched" in trial.reason


def test_patterns_of_webhooks_alerts_and_ends_reach_the_receiver_once_also_after_a_restart(tmp_path):
    with WebhookReceiver() as receiver:

        async def story(service):
            first = receiver.new("all", "alert", "experiment-failed", "trial-failed", log_patterns=["boom", "slow"])
            made = await service.webhooks.create(first, ANYONE)
            number = await created(service, max_restarts=0)
            printer = Printer(service, f"e{number}-t1", "n1-1")
            await printer.say("boom 1", "boom 2")
            for _ in range(2):
                alert = wire.Alert(request="a", title="look")
                assert (await service.trials.alert(f"e{number}-t1", alert)).num_webhooks == 1
            await printer.say("boom 3", "slow")
            await service.experiments.vacated(number, 1, 1, FAILED, [])
            await asyncio.to_thread(receiver.wait, 4)
            return made.secret

        async def again(service):
            await Printer(service, "e1-t1", "n2-2").say("boom 4")
            await service.log_watch.catch_up("e1-t1")

            async def listed():
                return (await service.webhooks.deliveries(1, 0, 100, ANYONE)).deliveries

            while any(each.state == "waiting" for each in await listed()):
                await asyncio.sleep(0.05)
            return await listed()

        secret = run(tmp_path, story, receiver.host)
        found = run(tmp_path, again, receiver.host)
        until(lambda: len(receiver.received) >= 4)
        kinds = {each.id: each.event["event_type"] for each in receiver.received}
        assert sorted(kinds.values()) == ["CUSTOM", "EXPERIMENT_STATE_CHANGE", "TASK_LOG", "TRIAL_STATE_CHANGE"]
        assert all(each.is_signed_by(secret) for each in receiver.received)
        (line,) = {str(each.event["event_data"]["task_log"]) for each in receiver.received if "LOG" in kinds[each.id]}
        assert "boom 1" in line and "'node': 'n1'" in line
        assert sorted(each.state for each in found) == [*["delivered"] * 4, "given up"]
        (given_up,) = [each for each in found if each.state == "given up"]
        assert "took longer than 2 s" in given_up.reason and "slow" in given_up.event
