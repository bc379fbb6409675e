"""What is told of a series: each new point, or if there are too many, those that show."""

from __future__ import annotations

import asyncio
import json
import math
from types import SimpleNamespace

from sqlalchemy import Engine, event

from everstep import wire
from everstep.coordinator.feed import LONGEST_S, MOST_POINTS, STEPS_S, JobFeed, _NewPoints
from everstep.coordinator.service import Service
from everstep.coordinator.store.store import Store
from everstep.coordinator.stream import LIST, LiveStream
from everstep.record.writing import SeriesNews


def told(*news):
    points = _NewPoints(7, "loss")
    for num_points, cut, found in news:
        points.add(SeriesNews("job", 7, "loss", num_points, cut, found))
    return points.view()


def test_points_of_several_reports_become_one_message():
    view = told((1, None, [(1, 10.0, 0.5)]), (2, None, [(2, 11.0, math.nan)]))
    assert (view["steps"], view["times"], view["values"], view["count"]) == ([1, 2], [10.0, 11.0], [0.5, "nan"], 2)
    assert (view["cut"], view["is_thinned"]) == (None, False)


def test_points_that_are_trained_again_replace_those_of_the_same_message():
    view = told((3, None, [(1, 0.0, 1.0), (2, 0.0, 2.0), (3, 0.0, 3.0)]), (2, 2, [(2, 0.0, 20.0)]))
    assert (view["cut"], view["steps"], view["values"]) == (2, [1, 2], [1.0, 20.0])


def test_many_points_are_thinned_to_their_ends_and_extremes():
    values = dict.fromkeys(range(MOST_POINTS + 1), 1.0) | {5: 9.0, 8: -9.0, 9: math.inf}
    view = told((100, None, [(step, 0.0, value) for step, value in values.items()]))
    assert view["is_thinned"] and view["steps"] == [0, 5, 8, MOST_POINTS]


def test_a_job_that_reports_very_much_is_sent_less_often():
    """The bytes for a hundred readers must not keep heartbeats waiting."""

    async def story():
        now = [0.0]
        stream = LiveStream(1)
        feed = JobFeed(stream, lambda _job: None, list, now=lambda: now[0])
        reader = stream.open_reader(["job"], "")
        reader.begin(is_new=True)
        counts = []
        for _ in range(8):
            feed.note_points([SeriesNews("job", n, f"series {n}", 1, None, [(1, 0.0, 1.0)]) for n in range(1500)])
            feed.tick()
            counts.append(reader.take().count(b"event: points"))
            now[0] += LONGEST_S / 4
        feed.close()
        return counts

    assert asyncio.run(story()) == [1, 0, 0, 0, 1, 0, 0, 0]


def test_more_series_than_fit_into_a_message_come_in_several_and_no_reader_is_cut():
    """Each series has its turn, with all points that it got meanwhile."""

    async def story():
        now = [0.0]
        stream = LiveStream(1)
        feed = JobFeed(stream, lambda _job: None, list, now=lambda: now[0])
        reader = stream.open_reader(["job"], "")
        reader.begin(is_new=True)
        names = [f"layer {n}/{'gradient' * 20}" for n in range(5000)]
        told = dict.fromkeys(names, 0)
        for step in range(40):
            if step < 2:
                feed.note_points(
                    [SeriesNews("job", n, name, 1, None, [(step, 0.0, 1.0)]) for n, name in enumerate(names)]
                )
            feed.tick()
            said = reader.take()
            assert said is not None and b"event: reload" not in said
            for line in said.splitlines():
                if line.startswith(b"data: "):
                    for each in json.loads(line[6:])["series"]:
                        told[each["name"]] += len(each["steps"])
            now[0] += LONGEST_S
        feed.close()
        return set(told.values())

    assert asyncio.run(story()) == {2}


def test_points_are_noted_while_the_only_reader_is_away(tmp_path):
    """It comes back with the last number that it has, and misses nothing."""

    async def story():
        service = Service(Store(str(tmp_path / "db")))
        reader = service.stream.open_reader(["job"], "")
        reader.begin(is_new=True)
        last = service.stream.last_id
        reader.close()
        service._note_points([SeriesNews("job", 1, "loss", 1, None, [(7, 0.0, 1.0)])])
        await asyncio.sleep(0)  # the loop's turn
        service.feed.tick()
        said = service.stream.open_reader(["job"], last).begin(is_new=False)
        await service.close()
        return said

    said = asyncio.run(story())
    assert b'"steps":[7]' in said and b"event: reload" not in said


def test_a_reader_costs_no_query(tmp_path):
    """The list of jobs, a job, its marks, points and lines: all come from memory."""

    async def story():
        service = Service(Store(str(tmp_path / "db")))
        service.feed.close()  # ticks come by hand
        await service.create("job", wire.JobSpec())
        statements = []

        def note(*given):
            statements.append(given[2])

        event.listen(Engine, "before_cursor_execute", note)
        readers = [service.stream.open_reader([LIST, "job"], "") for _ in range(20)]
        for reader in readers:
            reader.begin(is_new=True)
        service.feed.tick()
        service.feed.note_points([SeriesNews("job", 1, "loss", 1, None, [(7, 0.0, 1.0)])])
        service.feed.note_marks("job", [wire.Mark(number=2, time=0.0, step=0, kind="died")])
        service.feed.note_lines("job", 3)
        service.feed.tick()
        said = [reader.take() for reader in readers]
        event.remove(Engine, "before_cursor_execute", note)
        await service.close()
        return said, statements

    said, statements = asyncio.run(story())
    assert statements == []
    assert all(b"event: %s\n" % kind in each for each in said for kind in (b"job", b"points", b"band", b"logs"))


def test_the_first_words_about_a_job_are_all_of_it(tmp_path):
    """It may have changed after its reader has loaded it, and before the first tick."""

    async def story():
        service = Service(Store(str(tmp_path / "db")))
        service.feed.close()  # ticks come by hand
        job = await service.create("job", wire.JobSpec())
        reader = service.stream.open_reader(["job"], "")
        reader.begin(is_new=True)
        await job.stop("enough")
        service.feed.tick()
        first = reader.take()
        service.feed.tick()
        second = reader.take()
        await service.close()
        return first, second

    first, second = asyncio.run(story())
    assert b"event: job\n" in first and b'"reason":"enough"' in first and b'"workers":[]' in first
    assert second == b""


def test_the_steps_of_workers_are_told_about_once_per_second():
    async def story():
        now, steps = [0.0], SimpleNamespace(num_steps=0)
        job = SimpleNamespace(kept=SimpleNamespace(workers={"w0": None}), reason="", signs=steps, summary=lambda: 1)

        def view(*, is_brief):
            worker = wire.WorkerView(
                worker="w0", status="member", reason="", agent="", pid=1, step=steps.num_steps, generation=1, rank=0
            )
            return SimpleNamespace(workers=[worker], nodes=[])

        job.view = view
        stream = LiveStream(1)
        feed = JobFeed(stream, lambda _job: job, list, now=lambda: now[0])
        feed.close()  # ticks come by hand
        reader = stream.open_reader(["job"], "")
        reader.begin(is_new=True)
        told = []
        for _ in range(8):
            feed.tick()
            told.append(b'"step":%d,' % steps.num_steps in reader.take())
            now[0] += STEPS_S / 4
            steps.num_steps += 1
        return told

    assert asyncio.run(story()) == [True, False, False, False, True, False, False, False]
