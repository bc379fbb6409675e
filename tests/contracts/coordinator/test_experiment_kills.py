"""kill -9 the coordinator at each of its writes while trials report, twice and in any order: the same search, once."""

from __future__ import annotations

import itertools
import random
import select
import subprocess
import sys
from collections import Counter

import pytest

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.env import read_token
from everstep.errors import CoordinatorUnreachable
from lab.command import DEADLINE_S, until
from lab.experiments import ToyPool, ToyTrials, spec

# A coordinator is a fork of a process that has imported everything. Each dies at one of its writes: just before the
# store keeps it, or just after.
NURSERY = """
import ctypes, os, signal, sys
from everstep.coordinator.edge.server import serve
from everstep.coordinator.store.store import Store
store, token_file, log, port = sys.argv[1:]

def die_at(number, is_before):
    write, count = Store.write, [0]
    async def counted(self, change):
        count[0] += 1
        if count[0] == number and is_before:
            os.kill(os.getpid(), signal.SIGKILL)
        kept = await write(self, change)
        if count[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return kept
    Store.write = counted

for line in sys.stdin:
    number, is_before = map(int, line.split())
    ready, ready_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # dies with this process
        os.close(ready)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        die_at(number, is_before)
        serve("127.0.0.1", int(port), store, token_file, ready_fd=ready_fd)
        os._exit(0)
    os.close(ready_fd)
    with os.fdopen(ready) as lines:
        print(lines.readline().strip(), flush=True)
    os.waitpid(pid, 0)
    print("dead", flush=True)
"""


class Mortal:
    def __init__(self, folder, store, port):
        self.token_file, self._log_file = folder / "token", folder / "log"
        command = [sys.executable, "-c", NURSERY, store, str(self.token_file), str(self._log_file), str(port)]
        self._process = subprocess.Popen(
            command,
            env={"PYTHONPATH": ":".join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,  # what has been read ahead, select would not see
        )
        self._lives = itertools.cycle([(1, 0), (2, 1), (2, 0), (3, 1), (3, 0)])
        self.num_lives = 0
        self._start(*next(self._lives))

    def _start(self, number, is_before):
        self.num_lives += 1
        self._process.stdin.write(f"{number} {is_before}\n".encode())
        self.url = self._process.stdout.readline().decode().strip()  # empty: it died of a write at its start

    @property
    def token(self):
        return read_token(self.token_file)

    def call(self, make):
        """Again and again, with a new coordinator for each dead one."""
        while True:
            try:
                return make()
            except CoordinatorUnreachable:  # dead, or slow on a busy machine
                if select.select([self._process.stdout], [], [], 1.0)[0]:
                    assert self._process.stdout.readline().strip() == b"dead"
                    self._start(*next(self._lives))

    def close(self):
        self._process.kill()
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(60)


def search(mortal, seed):
    """Each result comes twice, in any order; some answers are lost."""
    chance = random.Random(seed)
    request = spec("adaptive_asha", max_trials=9, divisor=3, max_rungs=2, max_length={"batches": 9}, request="once")
    with Coordinator(mortal.url, mortal.token, "none") as people:
        number = mortal.call(lambda: people.create_experiment(request)).experiment
        assert mortal.call(lambda: people.create_experiment(request)).experiment == number
    toy = ToyTrials(mortal.url, mortal.token, number)
    posts = []

    def is_over():
        trials = mortal.call(toy.trials)
        open_ = [each.trial for each in trials if each.state not in (*wire.ENDED, "WAITING")]
        chance.shuffle(open_)
        for trial in open_:
            with toy.job(trial) as job:
                mortal.call(lambda job=job: job.create_job(wire.JobSpec()))
                target = mortal.call(lambda job=job: job.target(wire.TargetRequest(wait_s=0.0)))
                if target.wish == wire.TRAIN:
                    loss = toy.loss(trial, target.length)
                    posts.append((trial, wire.TrialResult(length=target.length, metric=loss, batches=target.length)))
                    again = chance.choice(posts)  # one of before, late
                    for each, result in (posts[-1], again, posts[-1]):
                        with toy.job(each) as of:
                            mortal.call(lambda of=of, result=result: of.report_result(result))
        return mortal.call(toy.view).state in wire.ENDED

    until(is_over, lambda: "the experiment did not end", timeout_s=2 * DEADLINE_S)  # dozens of coordinators
    view, story, trials = mortal.call(toy.view), mortal.call(toy.story), mortal.call(toy.trials)
    events = mortal.call(lambda: toy.people.search_events(number, limit=1000)).events
    toy.close()
    return view, story, trials, events


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_a_coordinator_that_dies_at_its_writes_creates_nothing_twice_and_forgets_nothing(
    tmp_path, server_class, held_port, store, request
):
    def url(name):
        return str(tmp_path / name) if store == "sqlite" else request.getfixturevalue("postgres_url")

    mortal = Mortal(tmp_path, url("frail"), held_port)
    view, story, trials, events = search(mortal, seed=1)
    num_lives = mortal.num_lives
    mortal.close()

    folder = tmp_path / "calm"
    folder.mkdir()
    server = server_class(folder, str(folder / "db"))
    with Coordinator(server.url, server.token, "none") as people:
        given = spec("adaptive_asha", max_trials=9, divisor=3, max_rungs=2, max_length={"batches": 9})
        calm = ToyTrials(server.url, server.token, people.create_experiment(given).experiment)
        calm_view = calm.train_all()
        calm_story = calm.story()
        calm.close()
    server.stop()

    assert num_lives > 5
    assert story == calm_story
    assert (view.state, view.best) == (calm_view.state, calm_view.best) and view.state == "COMPLETED"
    assert len({each.trial_id for each in trials}) == len(trials) == 9
    assert [each.number for each in events] == list(range(1, len(events) + 1))
    created = [each["trial"] for event in events for each in event.operations if each["kind"] == "create"]
    assert sorted(created) == [each.trial for each in trials]
    results = [(e.event["trial"], e.event["length"]) for e in events if e.event["kind"] == "validated"]
    assert len(set(results)) == len(results)


class WatchedPool(ToyPool):
    """Remembers what it was given."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.given, self.most_held = {}, Counter()

    def report(self):
        orders = super().report()
        running = {number for number, state in self._states.items() if state.state == "running"}
        slots, held = Counter(), Counter()
        for each in orders.run:
            assert self.given.setdefault(each.number, (each.job, each.slot)) == (each.job, each.slot)
        for number in running | {each.number for each in orders.run}:
            job, slot = self.given[number]
            slots[slot] += number not in self._states or number in running
            held[job] += 1
        assert max(slots.values(), default=0) <= 1, "no slot twice"
        self.most_held |= held
        return orders


def test_trials_with_several_slots_keep_them_through_deaths_at_writes_and_none_has_a_slot_twice(tmp_path, held_port):
    mortal = Mortal(tmp_path, str(tmp_path / "frail"), held_port)
    given = spec(max_trials=4, max_length={"batches": 8}, min_slots=2, max_slots=2, num_micro_batches=2, request="once")
    with Coordinator(mortal.url, mortal.token, "none") as people:
        number = mortal.call(lambda: people.create_experiment(given)).experiment
    pool = WatchedPool(mortal.url, mortal.token, num_slots=5)

    def is_over():
        mortal.call(pool.work)
        return mortal.call(lambda: pool.people.experiment(number)).state in wire.ENDED

    until(is_over, lambda: f"{mortal.call(lambda: pool.people.trials(number))}", timeout_s=2 * DEADLINE_S)
    found = mortal.call(lambda: pool.people.trials(number)).trials
    num_lives = mortal.num_lives
    pool.close()
    mortal.close()
    assert num_lives > 5
    assert [(each.state, each.length, each.num_restarts) for each in found] == [("COMPLETED", 8, 0)] * 4
    assert set(pool.most_held.values()) == {2}
