"""kill -9 the coordinator at each of its writes, and between sending and noting it: every event is received, none
under two IDs, and each with a valid signature."""

from __future__ import annotations

import itertools
import select
import subprocess
import sys
from collections import Counter, defaultdict

import pytest

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.env import read_token
from everstep.errors import CoordinatorUnreachable
from lab.command import DEADLINE_S, until
from lab.experiments import spec
from lab.log_writer import Writer
from lab.webhook_receiver import WebhookReceiver, allowing

# A coordinator is a fork of a process that has imported everything. Each dies at one of its writes, just before the
# store keeps it or just after, or once a receiver has answered, before that is noted.
NURSERY = """
import ctypes, os, signal, sys
from everstep.coordinator.edge import server as edge
from everstep.coordinator.store.store import Store
from everstep.coordinator.webhooks.post import Poster
store, token_file, log, port = sys.argv[1:]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def die_at(number, how):
    name, owner = ("post", Poster) if how == "sent" else ("write", Store)
    usual, count = getattr(owner, name), [0]
    async def counted(self, *given):
        count[0] += 1
        is_it = count[0] == number
        if is_it and how == "before":
            die()
        answer = await usual(self, *given)
        if is_it:
            die()
        return answer
    setattr(owner, name, counted)

for line in sys.stdin:
    number, how = line.split()
    ready, ready_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # dies with this process
        os.close(ready)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        die_at(int(number), how)
        edge.serve("127.0.0.1", int(port), store, token_file, ready_fd=ready_fd)
        os._exit(0)
    os.close(ready_fd)
    with os.fdopen(ready) as lines:
        print(lines.readline().strip(), flush=True)
    os.waitpid(pid, 0)
    print("dead", flush=True)
"""
LIVES = [(number, how) for number in range(1, 5) for how in ("before", "after", "sent")]
MANY = 1_000_000  # writes: it lives


class Mortal:
    def __init__(self, folder, store, port, before):
        self.token_file, self.log_file = folder / "token", folder / "log"
        command = [sys.executable, "-c", before + NURSERY, store, str(self.token_file), str(self.log_file), str(port)]
        self._process = subprocess.Popen(
            command,
            env={"PYTHONPATH": ":".join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # what has been read ahead, select would not see
        )
        self._lives = itertools.chain(LIVES, itertools.repeat((MANY, "before")))
        self.url, self.num_deaths = f"http://127.0.0.1:{port}", 0
        self._start()

    def _start(self):
        number, how = next(self._lives)
        self._process.stdin.write(f"{number} {how}\n".encode())
        self._process.stdout.readline()  # its URL; nothing: it died at its start

    @property
    def token(self):
        return read_token(self.token_file)

    def revive(self, wait_s=0.0):
        """Start the next one if this one is dead."""
        if select.select([self._process.stdout], [], [], wait_s)[0]:
            assert self._process.stdout.readline().strip() == b"dead"
            self.num_deaths += 1
            self._start()

    def call(self, make):
        while True:
            try:
                return make()
            except CoordinatorUnreachable:
                self.revive(1.0)

    def close(self):
        self._process.kill()
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(60)


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_each_event_is_received_under_one_id_though_the_coordinator_dies_at_its_writes(
    tmp_path, held_port, store, request
):
    url = str(tmp_path / "db") if store == "sqlite" else request.getfixturevalue("postgres_url")
    with WebhookReceiver() as receiver:
        mortal = Mortal(tmp_path, url, held_port, allowing(receiver.host))
        triggers = ("experiment-paused", "experiment-canceled", "trial-canceled", "alert")
        new = receiver.new("all", *triggers, log_patterns=["boom"])
        numbers, expected = [], Counter()
        with Coordinator(mortal.url, mortal.token, "none") as people:
            hook = mortal.call(lambda: people.create_webhook(new))
            assert mortal.call(lambda: people.create_webhook(new)).secret == hook.secret
            for name in map(str, range(3)):
                given = spec("random", max_trials=2, request=name)
                number = mortal.call(lambda given=given: people.create_experiment(given)).experiment
                numbers.append(number)
                with Coordinator(mortal.url, mortal.token, wire.trial_job(number, 1)) as trial:
                    mortal.call(lambda trial=trial: trial.create_job(wire.JobSpec()))
                    alert = wire.Alert(request="once", title="look")
                    for _ in range(2):
                        mortal.call(lambda trial=trial: trial.alert(alert))  # noqa: B023
                    writer = mortal.call(lambda trial=trial: Writer(trial, "n-1"))
                    chunk = writer.chunk("boom")
                    mortal.call(lambda writer=writer, chunk=chunk: writer.send(chunk))
                for action in ("pause", "kill"):
                    what = wire.ExperimentAction(action=action)
                    mortal.call(lambda number=number, what=what: people.act(number, what))
                expected += Counter(
                    {(number, "PAUSED"): 1, (number, "CANCELED"): 3, (number, "look"): 1, (number, "boom"): 1}
                )

            def story():
                listed = mortal.call(lambda: people.deliveries(hook.webhook.webhook, limit=1000))
                return f"{listed}\n{mortal.log_file.read_text()[-3000:]}"

            def is_done():
                mortal.revive()
                listed = mortal.call(lambda: people.deliveries(hook.webhook.webhook, limit=1000)).deliveries
                return len(listed) == expected.total() and all(each.state == "delivered" for each in listed)

            until(is_done, story, timeout_s=2 * DEADLINE_S)
        mortal.close()
        by_id = defaultdict(list)
        for each in receiver.received:
            by_id[each.id].append(each)
        told = Counter(map(what_of, (each[0] for each in by_id.values())))
        assert told == expected
        assert all(len({each.body for each in some}) == 1 for some in by_id.values())
        assert all(each.is_signed_by(hook.secret) for each in receiver.received)
        assert len(receiver.received) > len(by_id), "killed after sending: sent again with the same ID"
        assert mortal.num_deaths >= len(LIVES) - 2


def what_of(received):
    event = received.event
    data, condition = event["event_data"], event["condition"]
    if event["event_type"] == "CUSTOM":
        return data["experiment"]["id"], data["data"]["title"]
    return data["experiment"]["id"], condition.get("state") or condition["regex"]
