"""The stream of a browser: numbered increments, resumed without loss or repetition; a slow reader is cut, not fed."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from everstep.wire import MetricReport, Stop
from lab.browser import EventStream, opened
from lab.command import until
from lab.reporting_script import Script


@pytest.fixture
def browser(server):
    with opened(server) as browser:
        yield browser


@pytest.fixture
def follow(browser):
    streams = []

    def begin(*jobs, **more):
        streams.append(EventStream(browser, jobs, **more))
        until(lambda: streams[-1].events, lambda: f"no answer: {streams[-1].error}")
        return streams[-1]

    yield begin
    for each in streams:
        each.close()


class Curve:
    """What a page knows of a series: the points of the stream, and those that it loads when it is told to."""

    def __init__(self, browser, job):
        self._browser, self._job = browser, job
        self.points, self.num_seen = {}, 0

    def draw(self, stream):
        for event in stream.events[self.num_seen :]:
            if event.kind == "reload":
                self.load()
            elif event.kind == "points":
                for each in event.data["series"]:
                    self._add(each)
            self.num_seen += 1

    def _add(self, told):
        if told["cut"] is not None:
            self.points = {step: value for step, value in self.points.items() if step < told["cut"]}
        for step, value in zip(told["steps"], told["values"], strict=True):
            self.points[step] = value

    def load(self):
        for series in self._browser.get(f"/v1/jobs/{self._job}/series")["series"]:
            found = self._browser.get(f"/v1/jobs/{self._job}/series/{series['series']}", is_full=True)
            self.points |= dict(zip(found["first_steps"], found["firsts"], strict=True))


def test_a_reader_hears_of_jobs_workers_marks_points_and_lines(play, follow):
    one = play()
    job = one.coordinator.job
    stream = follow(job)
    (worker,) = one.training(1)
    Script(one, worker).losses([0.5, 0.25], start=1)

    assert stream.events[0].kind == "hello" and stream.events[0].data["jobs"] == [job]
    formed = stream.wait("band", lambda data: any(mark["kind"] == "formed" for mark in data["marks"]))
    assert formed["job"] == job and formed["marks"][-1]["joined"] == [worker.name]
    told = stream.wait("points")
    assert [(each["name"], each["steps"], each["values"]) for each in told["series"]] == [("loss", [1, 2], [0.5, 0.25])]
    member = stream.wait("job", lambda data: any(each["status"] == "member" for each in data["workers"]))
    assert member["summary"]["state"] == "running"
    stream.wait("jobs", lambda data: any((each["job"], each["state"]) == (job, "running") for each in data["jobs"]))


def test_only_the_jobs_that_were_asked_for_are_told_in_detail(play, follow):
    one, other = play(), play()
    stream = follow(one.coordinator.job)
    for each in (other, one):
        Script(each, each.puppets(1)[0]).losses([1.0])
    stream.wait("points")
    assert {data["job"] for kind in ("points", "band", "job") for data in stream.of(kind)} == {one.coordinator.job}


def test_a_new_job_appears_in_the_list_and_a_stopped_one_changes(play, follow):
    stream = follow()
    one = play()
    job = one.coordinator.job
    stream.wait("jobs", lambda data: any(each["job"] == job for each in data["jobs"]))
    one.coordinator.stop(Stop(reason="enough"))
    stream.wait("jobs", lambda data: any((each["job"], each["reason"]) == (job, "enough") for each in data["jobs"]))


def test_increments_come_at_most_four_times_per_second(play, follow):
    one = play()
    stream, script = follow(one.coordinator.job), Script(one, one.puppets(1)[0])
    began = time.monotonic()
    for step in range(60):
        script.losses([1.0], start=step)
    stream.wait("points", lambda data: 59 in data["series"][0]["steps"])
    took_s = time.monotonic() - began
    assert len(stream.of("points")) <= took_s * 4 + 2


def test_a_reader_that_comes_back_gets_what_it_missed_once(play, follow):
    one = play()
    stream, script = follow(one.coordinator.job), Script(one, one.puppets(1)[0])
    other = follow(one.coordinator.job)
    script.losses([1.0])
    stream.wait("points")
    stream.close()
    script.losses([2.0, 3.0], start=1)
    other.wait("points", lambda data: 2 in data["series"][0]["steps"])
    script.losses([4.0], start=3)
    stream.resume()
    stream.wait("points", lambda data: 3 in data["series"][0]["steps"])

    steps = [step for data in stream.of("points") for step in data["series"][0]["steps"]]
    assert steps == [0, 1, 2, 3] and not stream.of("reload")
    numbers = [int(each.id.partition("-")[2]) for each in stream.events if each.id]
    assert numbers == sorted(set(numbers))


def test_a_job_that_is_followed_in_addition_is_loaded_and_the_others_go_on(play, follow, browser):
    one, other = play(), play()
    first = follow(one.coordinator.job)
    script = Script(one, one.puppets(1)[0])
    script.losses([1.0])
    first.wait("points")
    first.close()
    both = follow(one.coordinator.job, other.coordinator.job, last_id=first.last_id)
    assert both.wait("reload") == {"jobs": [other.coordinator.job], "is_list": False, "topics": []}


def test_a_job_that_does_not_exist_is_not_followed(play, follow):
    job = play().coordinator.job
    assert follow("never", job, "not/a name").wait("hello")["jobs"] == [job]


@pytest.mark.parametrize("last_id", ["0-1", "999-1", "1-99999999", "nonsense", "1-", "-"])
def test_a_reader_whose_number_means_nothing_here_loads_everything(play, follow, last_id):
    job = play().coordinator.job
    assert follow(job, last_id=last_id).wait("reload") == {"jobs": [job], "is_list": True, "topics": []}


def test_steps_that_are_trained_again_are_cut_on_the_page_too(play, follow, browser):
    one = play(start_workers=2)
    job = one.coordinator.job
    stream, curve = follow(job), Curve(browser, job)
    workers = one.training(2)
    Script(one, workers[0]).losses([1.0, 2.0, 3.0], generation=1)
    stream.wait("points")
    workers[1].exit(-9)
    workers[0].arrive()
    workers[0].settle()
    Script(one, workers[0]).losses([20.0], generation=2, start=1)
    stream.wait("points", lambda data: data["series"][0]["cut"] == 1)
    curve.draw(stream)
    assert curve.points == {0: 1.0, 1: 20.0}


def test_points_are_drawn_once_each_over_a_restart_of_the_coordinator(tmp_path, server_class, play):
    """The page goes on by itself: it comes back, is told to load, and continues."""
    server = server_class(tmp_path, str(tmp_path / "db"))
    one = play(server)
    job, script = one.coordinator.job, Script(one, one.puppets(1)[0])
    with opened(server) as browser:
        stream, curve = EventStream(browser, (job,)), Curve(browser, job)
        until(lambda: stream.events, lambda: "no hello")
        for start in range(0, 40, 10):
            script.losses([float(step) for step in range(start, start + 10)], start=start)
            if start == 20:
                server.kill()
                until(lambda: stream.has_ended, lambda: "the stream goes on without a coordinator")
                server.start()
                stream.resume()
                stream.wait("reload", lambda data: data == {"jobs": [job], "is_list": True, "topics": []})
        stream.wait("points", lambda data: 39 in data["series"][0]["steps"])
        curve.draw(stream)
        stream.close()
    assert curve.points == {step: float(step) for step in range(40)}
    server.stop()


def test_a_reader_that_does_not_read_is_cut_and_the_others_go_on(tmp_path, server_class, play):
    before = "from everstep.coordinator.edge import stream_reply\nstream_reply.SLOW_S = 1.0\n"
    server = server_class(tmp_path, str(tmp_path / "db"), before=before)
    one = play(server)
    job, script = one.coordinator.job, Script(one, one.puppets(1)[0])
    with opened(server) as browser, socket.create_connection(("127.0.0.1", server.port)) as stuck:
        head = (
            f"GET /v1/stream?jobs={job} HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\ncookie: {browser.cookie}\r\n\r\n"
        )
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.sendall(head.encode())
        stream = EventStream(browser, (job,))
        names = [f"{'x' * 200}{number}" for number in range(200)]
        is_over = threading.Event()

        def load():
            for step in range(100_000):
                script.report(MetricReport(step=step, time=1.0, values=dict.fromkeys(names, 1.0)))
                if is_over.wait(0.02):
                    return

        loading = threading.Thread(target=load)
        loading.start()
        until(lambda: _is_closed(stuck), lambda: "the reader that does not read is still there")
        num_events = len(stream.events)
        until(lambda: len(stream.events) > num_events, lambda: "the other reader was cut, too")
        is_over.set()
        loading.join(60)
        stream.close()
    server.stop()
    assert "Traceback" not in server.log_file.read_text()


def _is_closed(connection):
    """Seen by the kernel, without reading anything."""
    try:
        connection.send(b"\r\n")
    except OSError:
        return True
    return False


def test_the_coordinator_ends_at_once_with_readers(tmp_path, server_class):
    server = server_class(tmp_path, str(tmp_path / "db"))
    with opened(server) as browser:
        streams = [EventStream(browser) for _ in range(3)]
        for stream in streams:
            until(lambda stream=stream: stream.events, lambda: "no hello")
        server.stop()
        for stream in streams:
            stream.wait("bye")
    assert "Traceback" not in server.log_file.read_text()


def test_a_stream_ends_with_its_session(tmp_path, server_class):
    before = "from everstep.coordinator.edge import stream_reply\nstream_reply.BEAT_S = 0.1\n"
    server = server_class(tmp_path, str(tmp_path / "db"), before=before)
    with opened(server) as browser, opened(server) as other:
        stream, stays = EventStream(browser), EventStream(other)
        stream.wait("hello")
        stays.wait("hello")
        assert browser.http.delete("/v1/session").status_code == 200
        until(lambda: stream.has_ended, lambda: "the stream goes on without a session")
        assert stream.error is None and not stays.has_ended
        stays.close()
    server.stop()
