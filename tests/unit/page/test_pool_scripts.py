"""What the page makes of pools, trials and comparisons: rows, columns and differences."""

from __future__ import annotations


def test_neighboring_slots_of_a_trial_are_one_row(node):
    node("""
    const { holder, isFound, numBusy, places, stretches, why } = await import("./slots.js");
    const taken = (slot, trial, since = 10, more = {}) =>
      ({ slot, assignment: slot + 1, experiment: 3, trial, since, owner: "ana", state: "given",
        reason: `slot ${slot} of a was free`, ...more });
    const free = (slot) => ({ slot, assignment: 0, experiment: 0, trial: 0, since: 0, owner: "", state: "",
        reason: "" });
    const slots = [taken(0, 7), taken(1, 7, 10.4), taken(2, 7, 99), taken(3, 8, 99), taken(4, 8, 99, { state: "parking",
        reason: "for e9" }), free(5), free(6), taken(7, 8)];
    const rows = stretches(slots);
    assert.deepEqual(rows.map(places), ["0 to 1", "2", "3", "4", "5 to 6", "7"]);
    assert.deepEqual(rows.map((row) => (row.assignment ? holder(row) : "")), ["e3-t7", "e3-t7", "e3-t8", "e3-t8",
        "", "e3-t8"]);
    assert.deepEqual(rows.map(why), ["was free", "was free", "was free", "for e9", "", "was free"]);
    const agent = { agent: "gpu-1", kind: "H200", is_present: true, state: "draining", state_reason: "new disk",
        slots };
    assert.equal(numBusy(agent), 6);
    for (const text of ["", "GPU", "h200", "drain", "disk", "e3-t8", "Ana"]) assert.ok(isFound(agent, text), text);
    for (const text of ["gpu-2", "e3-t9", "enabled"]) assert.ok(!isFound(agent, text), text);
    """)


def test_use_has_a_column_for_each_day_and_a_part_for_each_person(node):
    node("""
    const { roundUp, useByDay } = await import("./pool_use.js");
    const now = Date.parse("2026-03-01T12:00:00Z");
    const use = [
      { day: "2026-02-27", person: "ana", slot_seconds: 3600 }, { day: "2026-03-01", person: "ana",
        slot_seconds: 1800 },
      { day: "2026-03-01", person: "", slot_seconds: 7200 }, { day: "2026-02-01", person: "ana", slot_seconds: 1e9 },
    ];
    const { days, people } = useByDay(use, 3, now);
    assert.deepEqual(days.map((day) => [day.day, day.hours]), [["2026-02-27", 1], ["2026-02-28", 0], ["2026-03-01",
        2.5]]);
    assert.deepEqual(people, [{ person: "ana", hours: 1.5 }, { person: "no owner", hours: 2 }]);
    const many = Array.from({ length: 20 }, (_, i) => ({ day: "2026-03-01", person: `p${String(i).padStart(2,
        "0")}`, slot_seconds: 3600 * (20 - i) }));
    const crowd = useByDay(many, 1, now);
    assert.equal(crowd.people.length, 8);
    assert.deepEqual(crowd.people.at(-1), { person: "others", hours: 91 });
    assert.equal(crowd.days[0].hours, 210);
    assert.deepEqual([0, 0.03, 1, 1.2, 4.9, 99].map(roundUp), [1, 0.05, 1, 2, 5, 100]);
    """)


def test_a_comparison_shows_what_differs_and_by_how_much(node):
    node("""
    const { difference, factsOf, namesOf } = await import("./compare_table.js");
    const job = (lr, loss, more = {}) => ({
      summary: { job: "x", state: "finished", step: 9, num_workers: 1, num_deaths: 0, created_at: 0 },
      policy: { lease_s: 5 }, config: { name: "x", hyperparameters: { lr, net: { width: 8 } }, ...more },
      values: [{ name: "loss", last: loss, least: loss, most: 9 }],
    });
    const facts = [job(0.1, 0.5), job(0.2, 0.5), job(0.1, "nan")].map(factsOf);
    assert.deepEqual(namesOf(facts, false), ["hyperparameters.lr", "loss (last)", "loss (min)"]);
    const all = namesOf(facts, true);
    assert.deepEqual(all.slice(0, 2), ["hyperparameters.lr", "hyperparameters.net.width"]);
    assert.ok(all.includes("policy.lease_s") && all.includes("name"));
    assert.deepEqual(namesOf([job(1, 2), job(1, 2, { gone: null })].map(factsOf), false), []);
    assert.equal(difference(0.2, 0.1), "+0.1 (+100%)");
    assert.equal(difference(0.05, 0.2), "−0.15 (−75%)");
    assert.equal(difference(-3, -2), "−1 (−50%)");
    assert.equal(difference(3, 0), "+3");
    assert.equal(difference(2, 2), "±0");
    for (const [value, base] of [["nan", 1], [1, null], ["adam", "sgd"], [undefined,
        1]]) assert.equal(difference(value, base), "");
    """)


def test_a_curve_less_the_baseline_has_values_where_both_have_some(node):
    node("""
    const { minus } = await import("./curve.js");
    const base = { x: [2, 4, 6], y: [20, null, 60], odd: [] };
    const made = minus({ x: [1, 2, 3, 4, 6, 7], y: [1, 2, 33, null, 6, 7], odd: [{ x: 4, what: "nan" }] }, base);
    assert.deepEqual(made.y, [null, -18, 3, null, -54, null]);
    assert.deepEqual([made.x.length, made.odd.length], [6, 1]);
    assert.deepEqual(minus({ x: [5], y: [7], odd: [] }, { x: [5], y: [4], odd: [] }).y, [3]);
    assert.deepEqual(minus({ x: [5], y: [7], odd: [] }, { x: [], y: [], odd: [] }).y, [null]);
    """)


def test_a_trial_s_stages_say_what_the_search_decided(node):
    node("""
    const { sizesText, stages } = await import("./trial_story.js");
    const trial = { trial: 7, state: "COMPLETED", reason: "cut: 3rd of 4" };
    const results = [{ length: 4, metric: 0.5 }, { length: 16, metric: 0.4 }];
    const rung = (length, trials, outcomes) =>
      ({ length, quota: 2, trials, outcomes, metrics: [0.1, 0.5], places: [1, 2], compared: [4, 4] });
    const cohorts = [{ rungs: [rung(4, [8, 9], ["cut", "cut"])] },
      { rungs: [rung(4, [9, 7], ["promoted", "promoted"]), rung(16, [7, 9], ["cut", "cut"])] }];
    const told = stages(trial, results, [4, 16], cohorts);
    assert.deepEqual(told.map((each) => [each.length, each.metric, each.decision]),
      [[4, 0.5, "continued to 16"], [16, 0.4, "over: cut: 3rd of 4"]]);
    assert.ok(/2.* of 4/.test(told[0].compared) && /1.* of 4/.test(told[1].compared), JSON.stringify(told));
    assert.deepEqual(stages(trial, results, [4], []).map((each) => each.compared), [""]);
    const now = (state, targets, reason = "") =>
      stages({ trial: 1, state, reason }, [{ length: 4, metric: 1 }], targets, []).at(-1).decision;
    assert.equal(now("RUNNING", [4, 16]), "trains to it now");
    assert.equal(now("WAITING", [4]), "reached; waits for the search to decide");
    assert.equal(now("QUEUED", [4, 16], "needs 2 slots"), "needs 2 slots");
    assert.equal(now("ERROR", [4, 16], "died"), "not reached: died");
    assert.equal(stages(trial, results, [4, null], [])[0].decision, "continued to the end of its script");
    const sizes = (...all) => sizesText(all.map((size) => ({ size })));
    assert.equal(sizes(1, 1, 3, 3, 2, 1), "1 → 3 → 2 → 1 worker");
    assert.ok(sizes(...Array.from({ length: 20 }, (_, i) => i)).startsWith("… → 8 → 9 → 10 →"));
    assert.equal(sizes(), "");
    """)


def test_increments_are_added_to_pools_and_queues(node):
    node("""
    const { withPool, withQueue } = await import("./pool_news.js");
    const agent = (agent, state = "enabled") => ({ agent, state, slots: [] });
    const agents = [agent("a"), agent("b"), agent("d")];
    const pools = [{ pool: "default", num_free: 1, agents }, { pool: "x", agents: [] }];
    const news = { pool: "default", num_free: 3, agents: [agent("c"), agent("b", "draining")], gone: ["d"] };
    const [made, other] = withPool(pools, news);
    assert.deepEqual(made.agents.map((each) => [each.agent, each.state]),
      [["a", "enabled"], ["b", "draining"], ["c", "enabled"]]);
    assert.equal(made.num_free, 3);
    assert.ok(!("gone" in made) && other === pools[1] && pools[0].agents.length === 3);
    const entry = (experiment, position = 0) => ({ experiment, position });
    const queue = { pool: "default", num_waiting: 1, entries: [entry(1), entry(2, 1)] };
    const then = withQueue(queue, { order: [3, 2], num_waiting: 2, entries: [entry(3, 1)] });
    assert.deepEqual(then.entries, [entry(3, 1), entry(2, 1)]);
    assert.equal(then.num_waiting, 2);
    """)


def test_metadata_are_changed_to_what_was_typed(node):
    node("""
    const { labelsOf, metadataChange } = await import("./written.js");
    const before = { stage: "test", tries: [1, 2], gone: true };
    const typed = '{"stage": "production", "tries": [1, 2], "new": null}';
    const change = { set_metadata: { stage: "production", new: null }, remove_metadata: ["gone"] };
    assert.deepEqual(metadataChange(before, typed), change);
    assert.deepEqual(metadataChange({ a: 1 }, " "), { set_metadata: {}, remove_metadata: ["a"] });
    for (const wrong of ["stage", "[1]", "null", '"x"'])
      assert.throws(() => metadataChange(before, wrong), /metadata are/);
    assert.deepEqual(labelsOf(" a, b,,a ,"), ["a", "b"]);
    """)


def test_the_view_of_a_trial_s_job_is_that_of_the_trial(node):
    node("""
    const { viewOf } = await import("./route.js");
    assert.deepEqual(viewOf("/jobs/e12-t7"), { name: "trial", id: "e12-t7", tab: "" });
    assert.equal(viewOf("/jobs/e12-t7x").name, "job");
    assert.equal(viewOf("/trials/7").name, "trial");
    assert.deepEqual(viewOf("/pools/a.b%2Fc"), { name: "pool", id: "a.b/c", tab: "" });
    """)
