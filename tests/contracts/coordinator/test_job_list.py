"""The list of jobs, what is known about one, and its band of workers: also after the coordinator was killed."""

from __future__ import annotations

import uuid

import pytest

from everstep import wire
from everstep.client.calls import Coordinator
from everstep.errors import Refused
from everstep.wire import MetricReport
from lab.reporting_script import Script


@pytest.fixture
def jobs(server):
    """Five of them, which nobody else has; found by the word in their names."""
    word = uuid.uuid4().hex[:8]
    made = []
    for number, name in enumerate(["cat", "dog", "Eel", "fox", "gnu"]):
        coordinator = Coordinator(server.url, server.token, f"{word}-{number}")
        coordinator.create_job(wire.JobSpec(name=name, config={"number": number}))
        made.append(coordinator)
    made[1].stop(wire.Stop(reason="by hand"))
    yield word, made
    for each in made:
        each.close()


def names(view):
    return [each.name for each in view.jobs]


def test_the_list_is_read_in_parts_that_neither_overlap_nor_leave_a_gap(jobs):
    word, (any_job, *_) = jobs
    parts = [any_job.jobs(start=start, limit=2, search=word) for start in (0, 2, 4, 6)]
    assert [names(part) for part in parts] == [["gnu", "fox"], ["Eel", "dog"], ["cat"], []]
    assert {part.num_found for part in parts} == {5} and parts[0].num_jobs >= 5


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"sort": "name", "is_descending": False}, ["Eel", "cat", "dog", "fox", "gnu"]),
        ({"sort": "job", "is_descending": False}, ["cat", "dog", "Eel", "fox", "gnu"]),
        ({"sort": "step"}, ["gnu", "fox", "Eel", "dog", "cat"]),
        ({"state": "stopped"}, ["dog"]),
        ({"state": "stopped,waiting", "sort": "ended_at", "is_descending": False, "limit": 1}, ["dog"]),
        ({"state": "running"}, []),
    ],
)
def test_the_list_is_sorted_and_filtered(jobs, query, found):
    word, (any_job, *_) = jobs
    assert names(any_job.jobs(**{"search": word, **query})) == found


def test_the_search_finds_parts_of_ids_names_and_reasons_in_any_case(jobs):
    _, (any_job, *_) = jobs
    for text in ("EEL", "eel"):
        assert "Eel" in names(any_job.jobs(search=text))
    assert "dog" in names(any_job.jobs(search="By Hand"))


def test_an_unknown_column_is_refused_with_those_that_there_are(jobs):
    with pytest.raises(Refused, match="cannot sort by 'size': a job has .*created_at") as refused:
        jobs[1][0].jobs(sort="size")
    assert refused.value.code == "parameter-invalid"


def test_jobs_are_compared_by_configuration_and_values(play, server):
    one, other = play(server), play(server)
    script = Script(one, one.puppets(1)[0])
    script.losses([2.0, 1.0, 3.0])
    script.report(MetricReport(kind="system", step=1, time=1.0, values={"w0/cpu_cores": 1.0}))
    compared = one.coordinator.compare(f"{one.coordinator.job},{other.coordinator.job},none-such")
    assert [each.summary.job for each in compared.jobs] == [one.coordinator.job, other.coordinator.job]
    (loss,) = compared.jobs[0].values
    assert (loss.name, loss.last, loss.least, loss.most) == ("loss", 3.0, 1.0, 3.0)
    assert (compared.jobs[1].values, compared.unknown) == ([], ["none-such"])


def test_a_configuration_that_is_too_deep_is_refused(server):
    deep: dict[str, object] = {}
    for _ in range(12):
        deep = {"in": deep}
    with Coordinator(server.url, server.token, "deep") as coordinator, pytest.raises(Refused, match="nested"):
        coordinator.create_job(wire.JobSpec(config=deep))


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_all_of_it_is_there_after_the_coordinator_was_killed(tmp_path, server_class, play, store, request):
    url = str(tmp_path / "db") if store == "sqlite" else request.getfixturevalue("postgres_url")
    server = server_class(tmp_path, url)
    one = play(server, start_workers=2)
    job = one.coordinator
    workers = one.training(2)
    details = {"uuid": "b6a5", "where": "s3://b"}
    Script(one, workers[0]).report(MetricReport(kind="checkpoint", step=4, time=5.0, details=details))
    workers[1].exit(-9, step=4)
    workers[0].step = 4
    workers[0].arrive()
    workers[0].settle()
    before = job.band().marks
    server.kill()
    server.start()
    listed = job.jobs(search=job.job).jobs[0]  # read from the store
    about, band = job.about(), job.band()
    job.stop(wire.Stop(reason="enough"))

    assert [(each.kind, each.worker, each.step) for each in band.marks] == [
        ("created", "", 0), ("formed", "w0", 0), ("died", "w1", 4), ("closed", "", 4), ("formed", "w0", 4),
    ]  # fmt: skip
    assert band.marks == before and band.last == 5
    assert (listed.num_deaths, listed.step, listed.generation, listed.num_workers) == (1, 4, 2, 1)
    assert listed.created_at == about.summary.created_at == band.marks[0].time
    assert [(each.uuid, each.step) for each in about.checkpoints] == [("b6a5", 4)]
    assert [each.kind for each in job.band(after=5).marks] == ["stopped"] and job.about().summary.ended_at
    server.stop()
