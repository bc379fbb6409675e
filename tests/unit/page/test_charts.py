"""The charts of a search where no browser is needed, in Node: axes by their types, rows, bins, curves, rungs, notes."""

from __future__ import annotations


def test_the_axis_of_a_hyperparameter_follows_its_type(node):
    node("""
    const { position, scaleOf, scaleTicks, valueAt } = await import("./scale.js");
    const near = (a, b) => assert.ok(Math.abs(a - b) < 1e-9 * Math.max(1, Math.abs(b)), `${a} is not ${b}`);
    const lr = scaleOf({ name: "lr", kind: "log", low: 1e-5, high: 1e-1 }, [1e-3]);
    near(position(lr, 1e-3), 0.5);
    near(valueAt(lr, 0.25), 1e-4);
    assert.deepEqual(scaleTicks(lr, 9).map((each) => each.text), ["1e−5", "1e−4", "0.001", "0.01", "0.1"]);

    const layers = scaleOf({ name: "layers", kind: "int", low: 1, high: 5 }, [2, 5]);
    assert.ok(scaleTicks(layers, 30).every((each) => /^[1-5]$/.test(each.text)));
    near(position(layers, 3), 0.5);

    const kind = scaleOf({ name: "kind", kind: "choice", choices: ["adam", "sgd", true, [1, 2]] }, ["other"]);
    assert.deepEqual(kind.choices, ["adam", "sgd", "true", "[1,2]", "other"]);
    near(position(kind, "sgd"), 0.3);
    near(position(kind, [1, 2]), 0.7);

    assert.equal(position(scaleOf({ name: "one", kind: "real", low: 3, high: 3 }, [3]), 3), 0.5);
    assert.deepEqual(scaleOf({ name: "wider", kind: "real", low: 0, high: 1 }, [-1, 4]).high, 4);
    """)


def test_a_value_without_a_place_on_its_axis_is_below_it_and_not_left_out(node):
    node("""
    const { oddShare, position, scaleOf, scaleTicks } = await import("./scale.js");
    const loss = scaleOf({ name: "loss", kind: "real" }, [0, 1, "nan", null, "inf", "-inf", "nan"]);
    assert.deepEqual(loss.odd, ["NaN", "none", "−∞", "∞"]);
    const below = ["nan", null, "inf", "-inf"].map((each) => position(loss, each));
    assert.equal(new Set(below).size, 4);
    assert.ok(below.every((each) => each > 0 && each < oddShare(loss)) && position(loss, 0) >= oddShare(loss));
    assert.deepEqual(scaleTicks(loss, 5).filter((each) => each.isOdd).map((each) => each.text), loss.odd);

    const log = scaleOf({ name: "lr", kind: "log", low: 1, high: 10 }, [0, -3, 5]);
    assert.deepEqual([...log.odd].sort(), ["0", "−3"]);
    const many = scaleOf({ name: "x", kind: "real" }, ["a", "b", "c", "d", "e", "e"]);
    assert.deepEqual([many.odd.length, many.odd[0], many.odd.at(-1)], [4, "e", "other"]);
    assert.equal(position(many, "c"), position(many, "d"));
    """)


def test_what_is_brushed_is_kept_and_the_address_says_so(node):
    node("""
    const { onlyBetween, onlyText, passes, position, readOnly, scaleOf, stretches,
      writeOnly } = await import("./scale.js");
    const lr = scaleOf({ name: "lr", kind: "log", low: 1e-4, high: 1 }, [1e-4, 1, "nan"]);
    const only = onlyBetween(lr, position(lr, 0.01), 1);
    assert.deepEqual(only, { range: [0.01, 1] });
    assert.deepEqual([0.001, 0.01, 1, "nan"].map((each) => passes(lr, only, each)), [false, true, true, false]);
    assert.deepEqual(onlyBetween(lr, 0, position(lr, 0.01)).keys, ["NaN"]);
    assert.equal(onlyBetween(lr, 0, 1), null);
    assert.equal(onlyText({ range: [0.01, 1], keys: ["NaN"] }), "0.01 to 1, NaN");
    assert.equal(stretches(lr, { range: [0.01, 1], keys: ["NaN"] }).length, 2);

    const kind = scaleOf({ name: "kind", kind: "choice", choices: ["a", "b", "c"] }, []);
    assert.deepEqual(onlyBetween(kind, 0.4, 0.9), { keys: ["b", "c"] });
    assert.ok(passes(kind, { keys: ["b"] }, "b") && !passes(kind, { keys: ["b"] }, "a"));

    assert.deepEqual(readOnly(writeOnly({ lr: only })), { lr: only });
    for (const written of [null, "", "x", "[]", "3", '{"lr": 3}', '{"lr": {"range": [1]}}',
      '{"lr": {"range": [1, null]}}', '{"lr": {"keys": [3]}}'])
      assert.deepEqual(readOnly(written), {}, written);
    """)


ROWS = """
    const { kept, shares, sorted, bestOf } = await import("./trial_rows.js");
    const { scaleOf } = await import("./scale.js");
    const row = (trial, best, lr = trial) => ({ trial, best, state: trial % 2 ? "RUNNING" : "COMPLETED", reason: "",
      hparams: { lr } });
    const by = (each) => each.best;
    const numbers_of = (rows) => rows.map((each) => each.trial);
"""


def test_trials_are_sorted_with_those_without_a_number_last_in_both_directions(node):
    node(f"""{ROWS}
    const rows = [row(1, 0.5), row(2, "nan"), row(3, 0.1), row(4, null), row(5, "inf"), row(6, 0.5), row(7, "-inf")];
    assert.deepEqual(numbers_of(sorted(rows, by, true)), [7, 3, 1, 6, 5, 2, 4]);
    assert.deepEqual(numbers_of(sorted(rows, by, false)), [5, 1, 6, 3, 7, 2, 4]);
    assert.deepEqual(shares(rows, by, true).map((each) => each ?? "none"), [0, "none", 1, "none", "none", 0, "none"]);
    assert.deepEqual([bestOf(rows, by, true).trial, bestOf(rows, by, false).trial, bestOf([], by, true)], [3, 1, null]);
    const texts = [row(1, 0, "sgd"), row(2, 0, "adam"), row(3, 0, 4)];
    assert.deepEqual(numbers_of(sorted(texts, (each) => each.hparams.lr, true)), [3, 2, 1]);
    """)


def test_trials_are_filtered_by_axes_state_and_text(node):
    node(f"""{ROWS}
    const rows = [row(1, 0.5), row(2, 0.2), row(30, 0.1)];
    const axes = new Map([["lr", {{ scale: scaleOf({{ name: "lr", kind: "real" }}, [1, 2, 30]),
      of: (each) => each.hparams.lr }}]]);
    assert.deepEqual(numbers_of(kept(rows, axes, {{ lr: {{ range: [2, 99] }} }})), [2, 30]);
    assert.deepEqual(numbers_of(kept(rows, axes, {{ gone: {{ range: [2, 3] }} }})), [1, 2, 30]);
    assert.deepEqual(numbers_of(kept(rows, axes, {{}}, {{ state: "COMPLETED" }})), [2, 30]);
    assert.deepEqual(numbers_of(kept(rows, axes, {{}}, {{ find: "TRIAL 30" }})), [30]);
    assert.deepEqual(numbers_of(kept(rows, axes, {{}}, {{ find: "lr 2" }})), [2]);
    """)


def test_bins_follow_the_types_and_hold_every_trial(node):
    node("""
    const { bins, binned } = await import("./bins.js");
    const { scaleOf } = await import("./scale.js");
    const layers = scaleOf({ name: "layers", kind: "int", low: 1, high: 4 }, []);
    assert.deepEqual(bins(layers).map((each) => each.text), ["1", "2", "3", "4"]);
    const lr = scaleOf({ name: "lr", kind: "log", low: 1e-5, high: 1 }, ["nan"]);
    assert.deepEqual(bins(lr).map((each) => each.text).slice(0, 2), ["NaN", "1e-5 to 0.0000316"].map((each,
      i) => (i ? bins(lr)[1].text : each)));
    assert.equal(bins(lr).length, 11);

    const rows = [[1, 1, 0.5], [1, 1, 0.3], [4, 1, "nan"], [2, "nan", 1], [3, 1e-5, null]];
    const axis = (scale, i) => ({ scale, of: (each) => each[i] });
    const { cells } = binned(rows, axis(layers, 0), axis(lr, 1), (each) => each[2]);
    assert.equal(cells.reduce((sum, each) => sum + each.count, 0), rows.length);
    const first = cells.find((each) => each.x === 0);
    assert.deepEqual([first.count, first.numbers, first.mean], [2, 2, 0.4]);
    assert.deepEqual(cells.filter((each) => each.mean === null).map((each) => each.x).sort(), [2, 3]);
    """)


def test_lines_of_parallel_coordinates_are_found_and_layered_with_the_best_on_top(node):
    node("""
    const { actives, layers, nearest, positions } = await import("./parallel_lines.js");
    const { scaleOf } = await import("./scale.js");
    const axes = [0, 1].map((i) => ({ scale: scaleOf({ name: `x${i}`, kind: "real", low: 0, high: 1 }, []),
      of: (each) => each[i] }));
    const rows = [[0, 1], [1, 0], [0.5, 0.5]];
    const places = positions(rows, axes);
    assert.deepEqual([...places], [0, 1, 1, 0, 0.5, 0.5]);
    const all = () => true;
    assert.equal(nearest(places, 2, 0, 0.02, all, 0.1), 0);
    assert.equal(nearest(places, 2, 1, 0.02, all, 0.1), 1);
    assert.equal(nearest(places, 2, 0.5, 0.52, (each) => each === 2, 0.1), 2);
    assert.equal(nearest(places, 2, 0, 0.25, all, 0.1), -1);
    const active = actives(rows, axes, { x0: { range: [0.4, 1] } });
    assert.deepEqual(active, [false, true, true]);
    assert.deepEqual(layers([1, null, 1, 0, 0.5], [true, true, false, true, true], 2),
      [{ color: -2, rows: [2] }, { color: -1, rows: [1] }, { color: 0, rows: [3] }, { color: 1, rows: [0, 4] }]);
    """)


def test_curves_are_read_between_their_points_and_the_best_so_far_only_gets_better(node):
    node("""
    const { bestCurves, bestSoFar, extent, heightAt } = await import("./trial_curves.js");
    const curves = [{ trial: 1, x: [1, 3], y: [4, 2] }, { trial: 2, x: [1], y: ["nan"] }, { trial: 3, x: [2, 9], y: [1,
      "inf"] }];
    assert.deepEqual(bestCurves(curves, true, 9).map((each) => each.trial), [3, 1]);
    assert.deepEqual(bestCurves(curves, false, 1).map((each) => each.trial), [1]);
    assert.deepEqual(extent(curves), [1, 9]);
    const same = (value) => value;
    assert.deepEqual([0, 1, 2, 3, 4].map((x) => heightAt(curves[0], x, same, same)), [null, 4, 3, 2, null]);

    const results = [[1, 5, 7], [2, 6, 8], [3, "nan", 9], [4, 3, 8], [5, 3, 1], [6, null, 2]].map(([x, value,
      trial]) => ({ x, value, trial }));
    assert.deepEqual(bestSoFar(results, true, 10), { x: [1, 4, 10], y: [5, 3, 3], trials: [7, 8, 8] });
    assert.deepEqual(bestSoFar(results, false, 2), { x: [1, 2], y: [5, 6], trials: [7, 8] });
    assert.deepEqual(bestSoFar([], true, 9), { x: [], y: [], trials: [] });
    """)


def test_rungs_of_cohorts_are_summed_up_by_the_numbers_that_decided(node):
    node("""
    const { brackets, comparison, ranked, summary } = await import("./rung_rows.js");
    const rung = (length, quota, trials, metrics, outcomes, places) => ({ length, quota, is_decided: true, trials,
      metrics, outcomes, places, compared: trials.map(() => trials.length) });
    const cohorts = [
      { bracket: 1, cohort: 0, num_trials: 1, rungs: [rung(64, 0, [9], [0.5], ["finished"], [1])] },
      { bracket: 0, cohort: 0, num_trials: 3, rungs: [rung(16, 1, [1, 2, 3], [0.1, 0.4, null], ["promoted", "cut",
        "cut"], [1, 2, 3]), rung(64, 0, [1], [null], ["on its way"], [0])] },
      { bracket: 0, cohort: 1, num_trials: 2, rungs: [rung(16, 1, [4, 5], [0.2, 0.3], ["promoted", "cut"], [1, 2])] },
    ];
    const [first, second] = brackets({ order: "exact", cohorts });
    assert.deepEqual([first.bracket, first.numCohorts, first.rungs.map((each) => each.length)], [0, 2, [16, 64]]);
    assert.deepEqual(ranked(first.rungs[0].entries, true).map((each) => each.trial), [1, 4, 5, 2, 3]);
    const sums = summary(first.rungs[0], true);
    assert.deepEqual([sums.results, sums.promoted, sums.cut, sums.worstPromoted, sums.bestCut], [5, 2, 3, 0.2, 0.3]);
    assert.deepEqual(summary(first.rungs[1], true).coming, 1);
    assert.equal(first.rungs[0].entries[2].metric, "not finite");
    assert.deepEqual([first.rungs[0].entries[1], first.rungs[1].entries[0], second.rungs[0].entries[0]].map(comparison),
      ["2nd of 3; the best continues", "no result yet", "trained to the full length"]);
    const place = (place) => comparison({ outcome: "cut", place, compared: 200, quota: 5 }).split(" ")[0];
    assert.deepEqual([1, 3, 11, 12, 13, 21, 111, 122].map(place), ["1st", "3rd", "11th", "12th", "13th", "21st",
      "111th", "122nd"]);
    """)


COLUMNS = """
    const { axesOf, curvesOf, merged, metricAxis, resultsAt, resultsInTime, rowsOf,
      withResults } = await import("./trial_columns.js");
    const lists = ["ids", "states", "reasons", "brackets", "lengths", "latest", "best", "best_lengths", "slots",
      "restarts", "created_at", "started_at", "ended_at"];
    const columns_of = (trials, value, last_event = 1) => ({
      last_event, metric: "loss", smaller_is_better: true, unit: "batches", trials,
      searched: [{ name: "lr", kind: "log", least: 1e-3, most: 1, values: [] }],
      ...Object.fromEntries(lists.map((name) => [name, trials.map(() => value)])),
        hparams: { lr: trials.map((each) => each / 10) },
    });
"""


def test_columns_become_rows_and_take_what_the_stream_tells_of_some_trials(node):
    node(f"""{COLUMNS}
    const first = columns_of([1, 2], 5);
    const newer = merged(first, columns_of([2, 3], 6, 2));
    assert.deepEqual([newer.trials, newer.best, newer.hparams.lr, newer.last_event], [[1, 2, 3], [5, 6, 6], [0.1, 0.2,
      0.3], 2]);
    assert.deepEqual(first.best, [5, 5]);
    assert.equal(merged(newer, columns_of([1], 9, 1)), newer); // older than what is known
    const fresh = merged(newer, {{ ...columns_of([3], 7, 3), hparams: {{ lr: [0.3], "<b>": ["new"] }} }});
    assert.deepEqual(fresh.hparams["<b>"], [null, null, "new"]);
    const rows = rowsOf(newer);
    assert.deepEqual([rows[2].trial, rows[2].best, rows[2].hparams.lr], [3, 6, 0.3]);
    const [lr] = axesOf(newer, rows);
    assert.deepEqual([lr.scale.kind, lr.scale.low, lr.scale.high, lr.of(rows[0])], ["log", 1e-3, 1, 0.1]);
    const none = rowsOf({{ ...columns_of([1, 2], null), lengths: [0, 4] }});
    const metric = metricAxis(newer, none, "best", false);
    assert.deepEqual(none.map(metric.of), [null, "not finite"]);
    """)


def test_results_come_to_their_curves_by_length_and_are_placed_in_time(node):
    node(f"""{COLUMNS}
    const view = {{ trials: [1], lengths: [[2, 4]], metrics: [[0.5, null]], times: [[10, 20]], num_results: [2],
      num_left_out: 0, thinned: "" }};
    const now = withResults(view, [[1, 3, 0.4, 15], [1, 4, 0.3, 20], [7, 1, null, 30], [7, 2, 9, 40]]);
    assert.deepEqual([now.trials, now.lengths, now.metrics, now.num_results], [[1, 7], [[2, 3, 4], [1, 2]], [[0.5, 0.4,
      0.3], [null, 9]], [3, 2]]);
    assert.deepEqual(withResults(now, [[1, 4, 0.3, 20]]), now); // told twice
    assert.deepEqual([view.lengths, view.num_results], [[[2, 4]], [2]]);
    assert.deepEqual(curvesOf(view)[0].y, [0.5, "not finite"]);
    assert.deepEqual([...resultsAt(now, 3)], [[1, 0.4], [7, 9]]);
    assert.deepEqual([...resultsAt(view, 1)], []);
    assert.deepEqual(resultsInTime(view, 5, null).map((each) => each.x), [5, 15]);
    const use = {{ times: [10, 20, 30], slots: [2, 4, 0], slot_seconds: [0, 20, 60] }};
    assert.deepEqual(resultsInTime({{ ...view, times: [[9, 15]] }}, 5, use).map((each) => each.x), [0, 10]);
    assert.deepEqual(resultsInTime({{ ...view, times: [[25, 99]] }}, 5, use).map((each) => each.x), [40, 60]);
    """)


def test_what_comes_while_a_part_is_fetched_is_put_into_the_answer(node):
    node("""
    const { Part } = await import("./part.js");
    const answer = held();
    answers = () => answer.promise;
    const part = new Part("/v1/x");
    const add = (number) => (list) => (list.includes(number) ? list : [...list, number]);
    part.change(add(9));
    part.want();
    part.change(add(2));
    answer.open([1]);
    await until(() => part.value.value);
    assert.deepEqual(part.value.value, [1, 2]);
    part.change(add(3));
    assert.deepEqual(part.value.value, [1, 2, 3]);

    let calls = 0;
    answers = () => (++calls < 3 ? AWAY : [calls]);
    part.renew();
    part.renew();
    await until(() => part.value.value.length === 1); // after two that failed
    assert.equal(part.problem.value, null);
    part.unwant();
    part.renew();
    await settled();
    assert.equal(calls, 3);
    part.want();
    await until(() => calls === 4);
    answers = () => ({ status: 404, code: "unknown" });
    part.renew();
    await until(() => part.problem.value);
    const before = asked.length;
    await settled();
    assert.equal(asked.length, before);
    """)


def test_notes_are_a_small_part_of_markdown_and_all_else_is_text(node):
    node("""
    const { blocks, inline } = await import("./markdown.js");
    const kinds = (source) => blocks(source).map((each) => each.kind);
    assert.deepEqual(kinds("# One\\n\\ntext\\nmore\\n\\n- a\\n- b\\n\\n1. c\\n2) d\\n\\n```py\\n# code\\n```\\nend"),
      ["heading", "paragraph", "list", "list", "code", "paragraph"]);
    assert.deepEqual(blocks("```\\n<b>\\n\\n*x*\\n```"), [{ kind: "code", text: "<b>\\n\\n*x*" }]);
    assert.deepEqual(inline("a **b *c*** `d*` snake_case_name 2*3*4").map((each) => each.kind), ["text", "strong",
      "text", "code", "text"]);
    assert.deepEqual(inline("[x](https://a.example/?q=1)"), [{ kind: "link", to: "https://a.example/?q=1",
      parts: [{ kind: "text", text: "x" }] }]);
    assert.deepEqual(inline("see https://a.example/b.").map((each) => each.kind), ["text", "link", "text"]);

    const links = (parts) =>
      parts.flatMap((each) => (each.kind === "link" ? [each.to] : each.parts ? links(each.parts) : []));
    for (const hostile of ["[x](javascript:alert(1))", "[x](JaVaScRiPt:alert)", "[x](data:text/html,x)",
      "[x](//evil.example)", "[x](vbscript:x)", "<a href='javascript:x'>y</a>",
      "<img src=x onerror=alert(1)>", "![x](javascript:x)", "[x]( javascript:x)", "[x](\\u0001javascript:x)"])
      assert.deepEqual(links(inline(hostile)), [], hostile);
    assert.deepEqual(inline("<script>alert(1)</script>"), [{ kind: "text", text: "<script>alert(1)</script>" }]);

    for (const long of ["*".repeat(1e5), "`".repeat(1e5), "[".repeat(1e5), "*a ".repeat(3e4), "`a ``".repeat(2e4),
      "_a".repeat(4e4), "[a](".repeat(2e4)]) {
      const began = process.cpuUsage();
      assert.ok(JSON.stringify(inline(long)).length > 1e4);
      assert.ok(process.cpuUsage(began).user < 5e6, long.slice(0, 9));
    }
    """)
