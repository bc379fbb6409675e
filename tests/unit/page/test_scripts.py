"""What the page's scripts ask of the coordinator, and what they keep of it."""

from __future__ import annotations


def test_an_axis_between_values_that_differ_by_rounding_ends(node):
    node("""
    const { ticks } = await import("./ticks.js");
    const { yRange } = await import("./plot.js");
    for (const [from, to] of [[0.3, 0.1 + 0.2], [1e17, 1e17 + 16], [-1e17 - 16, -1e17], [1e300, 1.1e300], [0, 5e-324]])
      assert.ok(ticks(from, to, 8).length <= 20, `${from}`);
    assert.deepEqual(ticks(0.3, 0.1 + 0.2, 8), []);
    assert.deepEqual(ticks(-1, 1, 4), [-1, -0.5, 0, 0.5, 1]);
    const [low, high] = yRange(null, 0.3, 0.1 + 0.2);
    assert.ok(high - low > 0.05 && ticks(low, high, 8).length > 2);
    """)


def test_the_ticks_of_a_narrow_range_are_told_apart(node):
    node("""
    const { placeText, xTexts, yTexts } = await import("./ticks.js");
    assert.deepEqual(yTexts([1.9975, 1.998, 1.9985, 1.999]), ["1.9975", "1.998", "1.9985", "1.999"]);
    assert.deepEqual(yTexts([0, 0.5, 1]), ["0", "0.5", "1"]);
    assert.deepEqual(xTexts([1000100, 1000200, 1000300], "step", 300), ["1.0001M", "1.0002M", "1.0003M"]);
    assert.deepEqual(placeText(1000123, "step"), "1,000,123");
    """)


def test_a_plot_that_could_not_be_fetched_comes_when_the_coordinator_is_back(node):
    node("""
    const { Series } = await import("./series.js");
    let isAway = true;
    answers = () => (isAway ? AWAY : window_of(numbers(1, 9)));
    const series = new Series("job", view_of(numbers(1, 9)));
    series.want(500);
    await until(() => series.problem.value);
    isAway = false;
    await until(() => series.shown?.num_points === 9 && !series.problem.value);

    answers = (_, query) => (isAway ? AWAY : window_of(query.start ? numbers(3, 5) : numbers(1, 9)));
    isAway = true;
    series.look([3, 6]);
    await until(() => asked.filter((each) => each.includes("start=3")).length === 1);
    isAway = false;
    await until(() => series.shown.num_points === 3);

    series.unwant();
    series.renew({ ...series.view.value, count: 10 });
    answers = () => window_of(numbers(1, 10));
    series.look(null);
    series.want(500);
    await until(() => series.shown.num_points === 10);

    answers = () => ({ status: 404, code: "unknown" });
    const gone = new Series("gone", view_of([1]));
    gone.want(500);
    await until(() => gone.problem.value);
    const before = asked.length;
    await settled();
    await settled();
    assert.equal(asked.length, before);
    """)


def test_points_that_come_while_a_zoomed_part_is_fetched_are_drawn_in_it(node):
    node("""
    const { Series } = await import("./series.js");
    const part = held();
    answers = (_, query) => (query.start ? part.promise : window_of(numbers(1, 9)));
    const series = new Series("job", view_of(numbers(1, 9)));
    series.want(500);
    await until(() => series.shown);
    series.look([5, 100]);
    series.add(points([10, 11], 11));
    part.open(window_of(numbers(5, 9)));
    await until(() => series.part);
    assert.deepEqual(series.shown.first_steps, numbers(5, 11));
    """)


def test_after_a_rollback_points_and_extremes_are_those_that_are_left(node):
    node("""
    const { Series, append } = await import("./series.js");
    const { JobState } = await import("./job_state.js");
    const spans = { ...window_of([1, 5, 9]), num_points: 12, counts: [4, 4, 4], last_steps: [4, 8, 12] };
    assert.ok(append(spans, points([], 8, 9)));
    assert.equal(spans.num_points, 8);

    const list = held();
    answers = (path) => (path.endsWith("/series") ? list.promise : window_of([...numbers(1, 5), 6]));
    const state = new JobState("job");
    const series = new Series("job", view_of(numbers(1, 90)));
    state.byNumber.set(1, series);
    state.series.value = [series];
    series.whole = window_of(numbers(1, 90));
    series.isWanted = true;
    state.takePoints([points([6], 6, 6)]);
    assert.equal(series.shown.num_points, 6);
    state.takePoints([points([7], 7)]);
    list.open({ series: [view_of(numbers(1, 6))] }); // read before step 7 came
    await until(() => !series.isCut);
    assert.deepEqual([series.view.value.least, series.view.value.most], [1, 7]);
    await until(() => asked.some((each) => each.includes("columns")));
    """)


def test_no_mark_is_lost_that_comes_early_or_after_a_hole(node):
    node("""
    const { JobState } = await import("./job_state.js");
    const mark = (number) => ({ number });
    const first = held();
    const all = numbers(1, 9).map(mark);
    answers = async (path, query) => {
      if (query.after === "0") return first.promise;
      return { marks: all.slice(Number(query.after)), last: 9 };
    };
    const state = new JobState("job");
    const fetched = state.fetchMarks();
    state.takeMarks([mark(3)]);
    first.open({ marks: all.slice(0, 2), last: 2 });
    await fetched;
    assert.deepEqual(state.marks.value.map((each) => each.number), [1, 2, 3]);
    state.takeMarks([mark(6)]);
    await until(() => state.marks.value.length === 9);
    assert.deepEqual(state.marks.value, all);
    assert.ok(asked.at(-1).includes("after=3"));
    """)


def test_a_tab_that_joins_a_stream_is_told_to_load(node):
    node("""
    const { Stream } = await import("./stream.js");
    const sources = [];
    globalThis.EventSource = class extends EventTarget {
      constructor(url) { super(); this.url = url; sources.push(this); }
      close() {}
      say(event) { this.dispatchEvent(Object.assign(new Event(event), { data: "{}", lastEventId: "1-1" })); }
    };
    const reader = () => {
      const told = [];
      return [({ event }) => told.push(event), told];
    };
    const stream = new Stream();
    const [[one, first], [two, second]] = [reader(), reader()];
    const began = (told) => told.filter((event) => event === "began").length;
    stream.read(one, ["a"]);
    await until(() => sources.length === 1);
    sources[0].say("hello");
    assert.equal(began(first), 1);

    stream.read(two, ["a"]); // the same topics: nothing is opened for it
    await until(() => began(second) === 1);
    stream.forget(two); // hidden, and back
    stream.read(two, ["a"]);
    await until(() => began(second) === 2);
    stream.forget(two);
    stream.read(two, ["b"]); // the stream goes on from where it is, which is later than what this tab knows
    await until(() => sources.length === 2);
    assert.ok(sources[1].url.includes("after=1-1"));
    sources[1].say("hello");
    assert.deepEqual([began(first), began(second)], [1, 3]);
    sources[1].say("jobs");
    assert.ok(first.includes("jobs") && second.includes("jobs"));
    """)


def test_a_comparison_reads_all_metrics_of_a_job_but_not_those_of_its_system(node):
    node("""
    const { Comparison } = await import("./compare.js");
    const names = numbers(1, 1001).map((each) => view_of([1], each, `m${each}`));
    const page = (after, limit) => names.slice(after, after + limit);
    answers = (_, { after, limit, is_own }) => ({ series: is_own ? page(Number(after), Number(limit)) : [] });
    const made = new Comparison(["job"]);
    await made.fetchSeries("job");
    assert.equal(made.metrics.size, 1001);
    """)


def test_the_list_of_jobs_renews_the_rows_in_sight(node):
    node("""
    const { Listing } = await import("./listing.js");
    answers = (_, query) => ({ jobs: [{ job: query.start }], num_found: 2000, num_jobs: 2000 });
    const listing = new Listing({ path: "/v1/jobs", rows: "jobs", id: "job" });
    listing.ask("sort=job");
    for (const first of [100, 300, 700, 1250]) listing.need(first, first + 60);
    await settled();
    asked.length = 0;
    listing.renew();
    await settled();
    assert.deepEqual(asked.map((each) => each.match(/start=(\\d+)/)[1]), ["1200", "1300"]);
    """)


def test_new_lines_of_a_log_that_could_not_be_read_are_read_later_and_few_are_kept(node):
    node("""
    const { Reading } = await import("./logs.js");
    const line = (number) => ({ worker: "w", stream: "out", line: number });
    let isAway = false;
    let total = 3500;
    answers = (_, query) => {
      if (isAway) return AWAY;
      const [from, to] = query.tail ? [0, total] : [Number(query.cursor), Math.min(total, Number(query.cursor) + 1000)];
      return { lines: numbers(from + 1, to).map(line), next: `${to}`, previous: "", is_end: to === total };
    };
    const reading = new Reading("job", {});
    await reading.news();
    isAway = true;
    total += 10;
    await reading.news();
    assert.ok(reading.problem.value);
    isAway = false;
    await until(() => reading.size === 3510 && !reading.problem.value);

    reading.isFollowing = false; // someone reads further up: no more than a bound is added below
    total += 1000;
    await reading.news();
    assert.ok(reading.size <= 4000 && !reading.hasEnd);
    """)


def test_signing_out_says_when_the_coordinator_did_not_end_the_session(node):
    node("""
    const { doorSays, isSignedIn, signOut } = await import("./api.js");
    answers = () => AWAY;
    isSignedIn.value = true;
    await signOut();
    assert.equal(isSignedIn.value, false);
    assert.match(doorSays.value, /may still be open.*not responding/);
    for (const reply of [{}, { status: 401 }]) {
      answers = () => reply;
      await signOut();
      assert.equal(doorSays.value, "");
    }
    """)
