"""What the band of workers shows of a story: who came, who died, who leads, each once and at its step."""

from __future__ import annotations

import pytest

from everstep.coordinator.job_band import JobBand
from everstep.coordinator.roster import changes
from everstep.coordinator.roster.marks import CREATED


@pytest.fixture
def play(stage):
    class Play(stage):
        """After each act, the marks that it leaves are kept, as the coordinator does."""

        def __init__(self, **policy):
            super().__init__(**policy)
            self.band, self.marks = JobBand(), []

        def _act(self, roster):
            before = self.roster
            super()._act(roster)
            found = self.band.follow(before, self.roster, self.signs)
            self.band.keep(found)
            self.marks += found

        def arrive(self, *names, step=0, **more):
            for name in names:
                self.band.hear(name, step)
            super().arrive(*names, step=step, **more)

        def leave(self, *names, step=0, **more):
            for name in names:
                self.band.hear(name, step)
            super().leave(*names, step=step, **more)

        def stop(self, reason):
            self._act(changes.stop(self.roster, reason))

        def take(self):
            """Since the last call: kind, worker, step."""
            told, self.marks = self.marks, []
            return [(mark.kind, mark.worker, mark.step) for mark in told]

        def train(self, number):
            names = self.add(number)
            self.arrive(*names)
            self.settle(*names)
            return names

    return Play


def test_the_first_generation_is_one_mark_with_all_its_members(play):
    job = play(start_workers=2)
    job.train(2)
    (formed,) = job.marks
    assert (formed.kind, formed.worker, formed.size) == ("formed", "w0", 2)
    assert (formed.joined, formed.parted) == (["w0", "w1"], [])
    assert formed.reason == "generation 1 formed by w0, w1: 2 workers, 2 of them new"


def test_a_death_and_the_generation_after_it_are_marks_at_the_step(play):
    job = play(start_workers=3)
    job.train(3)
    job.take()
    job.hear("w0", "w1", "w2", step=7)
    job.exit("w1", step=7)
    job.arrive("w0", "w2", step=7)
    died = job.marks[0]
    assert (died.worker, died.rank, died.generation, died.reason) == ("w1", 1, 1, "w1 died: killed by SIGKILL")
    assert job.take() == [("died", "w1", 7), ("closed", "", 7), ("formed", "w0", 7)]


def test_a_worker_that_is_lost_and_then_confirmed_dead_died_once(play):
    job = play(start_workers=2, lease_s=3.0)
    job.train(2)
    job.take()
    job.hear("w0", "w1", step=4)
    job.after(5.0, "w0")
    job.exit("w1")
    assert [each for each in job.take() if each[0] == "died"] == [("died", "w1", 4)]


def test_a_newcomer_joins_and_is_named_once(play):
    job = play(start_workers=1)
    job.train(1)
    job.take()
    (new,) = job.add(1)
    job.arrive(new)
    job.arrive("w0", step=5)
    assert job.marks[1].joined == [new]
    assert job.take() == [("closed", "", 5), ("formed", "w0", 5), ("joined", new, 5)]


def test_the_death_of_the_leader_makes_another_one_lead(play):
    job = play(start_workers=2)
    job.train(2)
    job.take()
    job.exit("w0", step=3)
    job.arrive("w1", step=3)
    assert job.marks[-1].reason == "w1 leads from generation 2 on, after w0"
    assert [each[:2] for each in job.take()] == [("died", "w0"), ("closed", ""), ("formed", "w1"), ("leads", "w1")]


def test_an_end_in_good_order_is_marked_at_the_last_step(play):
    job = play(start_workers=2)
    job.train(2)
    job.take()
    job.leave("w0", "w1", step=9)
    assert job.take() == [("left", "w0", 9), ("left", "w1", 9), ("finished", "", 9)]
    assert job.band.past.ended_at and job.band.past.num_deaths == 0


def test_workers_that_are_ended_with_the_job_did_not_die(play):
    job = play(start_workers=2)
    job.train(2)
    job.stop("canceled")
    job.exit("w0", "w1", code=-15)
    assert [each[0] for each in job.take()] == ["formed", "stopped"]


def test_marks_are_numbered_without_gaps_and_go_on_after_a_restart(play):
    job = play(start_workers=1)
    begun = job.band.begin()
    job.band.keep(begun)
    assert [(each.kind, each.number) for each in begun] == [(CREATED, 1)]
    job.train(1)
    job.band = JobBand(last=job.marks[-1].number, past=job.band.past)
    job.exit("w0")
    assert [each.number for each in job.marks] == list(range(2, 2 + len(job.marks)))
