"""The scripts of the list of experiments and of what people do with them, in Node."""

from __future__ import annotations

VIEW = """
const view = (more = {}) => ({
  experiment: 3, name: "n", description: "", state: "ACTIVE", owner: "", labels: ["a"], is_archived: false,
  metric: "loss", unit: "batches", progress: 0.5, num_trials: { COMPLETED: 2, QUEUED: 1 }, num_slots: 1, best: null,
  scheduling: { pool: "default", priority: 42, weight: 1, max_slots: 0 },
  ...more,
});
"""


def test_addresses_name_views_and_nothing_else(node):
    node("""
    const { viewOf } = await import("./route.js");
    const words = ({ name, id, tab }) => [name, id, tab].filter(Boolean).join(" ");
    const name = (path) => words(viewOf(path));
    const cases = {
      "/": "jobs", "/jobs": "jobs", "/jobs/a%2Fb": "job a/b", "/experiments": "experiments",
      "/experiments/12": "experiment 12", "/experiments/12/trials": "experiment 12 trials",
      "/experiments/12/x": "unknown", "/experiments/0": "unknown", "/experiments/1/trials/2": "unknown",
      "/experiments/abc": "unknown", "/trials/7": "trial 7", "/trials/7/x": "unknown", "/pools": "pool",
      "/pools/a.b": "pool a.b", "/queue/x": "queue x", "/models": "models", "/models/m%20n": "model m n",
      "/constructor": "unknown", "/toString/1": "unknown", "/compare": "compare", "/compare/1": "unknown",
    };
    for (const [path, wanted] of Object.entries(cases)) assert.equal(name(path), wanted, path);
    """)


def test_what_may_be_done_depends_on_all_that_are_selected(node):
    node(
        VIEW
        + """
    const { possible } = await import("./experiment_actions.js");
    const names = (...views) => possible(views).map((each) => each.name);
    assert.deepEqual(names(view()), ["pause", "cancel", "kill"]);
    assert.deepEqual(names(view({ state: "PAUSED" })), ["activate", "cancel", "kill"]);
    assert.deepEqual(names(view(), view({ state: "PAUSED" })), ["cancel", "kill"]);
    assert.deepEqual(names(view({ state: "STOPPING_KILLED" })), []);
    assert.deepEqual(names(view({ state: "COMPLETED" })), ["archive", "delete"]);
    assert.deepEqual(names(view({ state: "ERROR", is_archived: true })), ["unarchive", "delete"]);
    assert.deepEqual(names(view(), view({ state: "COMPLETED" })), []);
    assert.ok(possible([view({ state: "COMPLETED" })]).find((each) => each.name === "delete").asks);
    """
    )


def test_an_edit_sends_what_has_changed_and_nothing_else(node):
    node(
        VIEW
        + """
    const { changeOf } = await import("./experiment_actions.js");
    const typed = { name: "n", description: "", labels: "a", priority: "42", weight: "1", max_slots: "0" };
    assert.deepEqual(changeOf(view(), typed), {});
    const more = { ...typed, labels: " b, a,, b ", priority: "7", weight: "0.5" };
    assert.deepEqual(changeOf(view(), more), { labels: ["b", "a"], priority: 7, weight: 0.5 });
    """
    )


def test_each_is_acted_on_and_what_failed_is_said_once(node):
    node("""
    const { actOnAll } = await import("./experiment_actions.js");
    const done = [];
    answers = (path, _, how) => {
      done.push([path, JSON.parse(how.body).action, how.headers["x-everstep"]]);
      return path.includes("/2/") ? {} : { status: 409, detail: "it is over" };
    };
    await assert.rejects(actOnAll([1, 2, 3], "pause"), { message: "It is over." });
    assert.deepEqual(done, [1, 2, 3].map((each) => [`/v1/experiments/${each}/action`, "pause", "page"]));
    await actOnAll([2], "pause");
    """)


def test_requests_have_names_that_differ(node):
    node("""
    const { newRequest } = await import("./experiment_actions.js");
    const names = new Set(Array.from({ length: 100 }, newRequest));
    assert.equal(names.size, 100);
    for (const each of names) assert.match(each, /^[0-9a-f]{32}$/);
    """)


def test_columns_are_those_of_the_address_and_values_are_shown_as_text(node):
    node(
        VIEW
        + """
    const { columnsOf, choices, isExtra, rowsOf, shown, trialsText } = await import("./experiment_columns.js");
    const titles = columnsOf(["hp:lr", "state", "none", "metric:a/b", "name"]).map((each) => each.title);
    assert.deepEqual(titles, ["Name", "State", "lr", "a/b"]);
    assert.ok(isExtra("hp:lr") && !isExtra("state"));
    const [row] = rowsOf({ experiments: [view()], values: { "hp:lr": [0.25] } });
    assert.equal(columnsOf(["hp:lr"])[0].show(row), "0.25");
    assert.equal(columnsOf(["hp:lr"])[0].show(view()), "–");
    assert.deepEqual(["nan", "<b>", null, true, [1, 2], 0.5].map(shown), ["NaN", "<b>", "–", "true", "[1,2]", "0.5"]);
    assert.equal(trialsText(view()), "2 of 3");
    assert.equal(trialsText(view({ num_trials: { COMPLETED: 2 } })), "2");
    const known = { metrics: ["acc", "a,b"], hyperparameters: ["LR"] };
    assert.deepEqual(choices(known, "").map((each) => each.name), ["hp:LR", "metric:acc"]);
    assert.deepEqual(choices(known, "lr").map((each) => each.name), ["hp:LR"]);
    """
    )


def test_a_row_that_changed_keeps_its_values_and_one_that_moved_is_fetched_again(node):
    node("""
    const { Listing } = await import("./listing.js");
    const { rowsOf } = await import("./experiment_columns.js");
    const experiments = [{ experiment: 1, state: "ACTIVE", progress: 0 }];
    answers = () => ({ experiments, num_found: 1, values: { "hp:lr": [3] } });
    const listing = new Listing({ path: "/v1/experiments", rows: "experiments", id: "experiment", read: rowsOf });
    listing.ask("sort=experiment");
    await until(() => listing.found.value === 1);
    const taken = (more) => listing.take([{ experiment: 1, state: "ACTIVE", ...more }], [], ["state"]);
    assert.equal(taken({ progress: 0.5 }), false);
    assert.deepEqual(listing.rows[0], { experiment: 1, state: "ACTIVE", progress: 0.5, values: { "hp:lr": 3 } });
    assert.equal(taken({ state: "PAUSED" }), true);
    assert.equal(listing.take([{ experiment: 2 }], [], ["state"]), true);
    assert.equal(listing.take([], [1], ["state"]), true);
    """)


def test_who_may_change_what(node):
    node("""
    const { mayChange, session } = await import("./api.js");
    const may = (role, person, owner) => ((session.value = { role, person }), mayChange(owner));
    assert.ok(may("all", "", "bob") && may("user", "bob", "bob") && may("user", "bob", ""));
    assert.ok(!may("user", "bob", "alice") && !may("read-only", "bob", "bob") && !may("worker", "", ""));
    session.value = null;
    assert.ok(!mayChange());
    """)


def test_a_stream_asks_for_jobs_and_topics_and_a_view_loads_again_after_a_gap_of_its_own(node):
    node("""
    const sources = [];
    globalThis.EventSource = class extends EventTarget {
      constructor(url) { super(); this.url = new URL(url, "http://page"); sources.push(this); }
      close() {}
      say(event, data) {
        this.dispatchEvent(Object.assign(new Event(event), { data: JSON.stringify(data), lastEventId: "1-1" }));
      }
    };
    const { isSignedIn } = await import("./api.js");
    const { watch } = await import("./live.js");
    isSignedIn.value = true;
    const took = [];
    let loads = 0;
    const take = { experiment: (data) => took.push(data) };
    const end = watch({ topics: ["job-1", "experiments/3"], load: () => loads++, take });
    assert.equal(loads, 1);
    await until(() => sources.length);
    const [source] = sources;
    assert.equal(source.url.searchParams.get("jobs"), "job-1");
    assert.equal(source.url.searchParams.get("topics"), "experiments/3");
    source.say("hello", {});
    await until(() => loads === 2);
    source.say("experiment", { experiment: 3 });
    await until(() => took.length === 1);
    source.say("reload", { jobs: ["other"], topics: ["pools/x"] });
    source.say("reload", { jobs: [], topics: ["experiments/3"] });
    await until(() => loads === 3);
    await settled();
    assert.equal(loads, 3);
    end();
    """)
