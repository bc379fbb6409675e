// What the page knows of one experiment: its parts, each fetched when a view shows it, and fetched again when the
// stream tells that something has changed.

import { batch, computed } from "@preact/signals";
import { ENDED } from "./experiment_actions.js";
import { watch } from "./live.js";
import { Part } from "./part.js";
import { axesOf, curvesOf, merged, rowsOf, withResults } from "./trial_columns.js";

/**
 * @typedef {object} View  `ExperimentView` of the protocol
 * @property {number} experiment
 * @property {string} name
 * @property {string} state
 * @property {string} reason
 * @property {string} searcher
 * @property {string} metric
 * @property {boolean} smaller_is_better
 * @property {string} unit
 * @property {number} progress
 * @property {Record<string, number>} num_trials
 * @property {number} num_slots
 * @property {{trial: number, metric: number, length: number, checkpoint: string} | null} best
 * @property {number} created_at
 * @property {number | null} started_at
 * @property {number | null} ended_at
 * @property {string} description
 * @property {string[]} labels
 * @property {string} notes
 * @property {boolean} is_archived
 * @property {number} forked_from
 * @property {string} code
 * @property {string} owner
 * @property {{pool: string, priority: number, weight: number, max_slots: number}} scheduling
 */

/** @typedef {{view: View, trials: import("./trial_columns.js").Columns | null, results: import("./trial_columns.js").Result[]}} News */

const MANY = 2000; // trials
const MANY_PAUSE_MS = 1000;

export class ExperimentState {
  /** @param {string} id */
  constructor(id) {
    this.id = id;
    const path = `/v1/experiments/${id}`;
    /** @type {Part<View>} */
    this.view = new Part(path);
    /** @type {Part<import("./trial_columns.js").Columns>} */
    this.columns = new Part(`${path}/columns`);
    /** @type {Part<import("./trial_columns.js").CurvesView>} */
    this.curves = new Part(`${path}/curves`);
    /** @type {Part<import("./rung_rows.js").RungsView>} */
    this.rungs = new Part(`${path}/rungs`);
    /** @type {Part<import("./trial_columns.js").Use>} */
    this.use = new Part(`${path}/use`);
    /** @type {Part<{config: object, written: string, spec: object}>} */
    this.config = new Part(`${path}/config`);
    /** @type {Part<{code: string, files: {name: string, num_bytes: number, kind: string}[], num_left_out: number}>} */
    this.files = new Part(`${path}/files`);
    this.isOver = computed(() => ENDED.includes(this.view.value.value?.state ?? ""));
    this.rows = computed(() => (this.columns.value.value ? rowsOf(this.columns.value.value) : null));
    this.axes = computed(() => (this.columns.value.value && this.rows.value ? axesOf(this.columns.value.value, this.rows.value) : []));
    this.trialCurves = computed(() => (this.curves.value.value ? curvesOf(this.curves.value.value) : null));
    this.ids = computed(() => new Map((this.rows.value ?? []).map((row) => [row.trial, row.id])));
    /** @type {News[]} */
    this.waiting = [];
    /** @type {any} */
    this.timer = null;
    this.end = () => {};
    /** What an action has made of it. @param {View} view */
    this.changed = (view) => this.view.change(() => view);
  }

  /** What goes on while the experiment does. */
  get moving() {
    return [this.view, this.columns, this.curves, this.rungs, this.use];
  }

  open() {
    this.view.isWanted = true;
    this.end = watch({
      topics: [`experiments/${this.id}`],
      load: () => this.moving.forEach((part) => part.renew()),
      take: { experiment: (data) => String(data.experiment) === this.id && this.take(data) },
    });
    return this;
  }

  /** Of many trials not at once: each time, all that is shown of them is drawn anew.
   * @param {News} news */
  take(news) {
    this.waiting.push(news);
    const isMany = (this.columns.value.value?.trials.length ?? 0) > MANY;
    this.timer ??= setTimeout(() => this.apply(), isMany ? MANY_PAUSE_MS : 0);
  }

  apply() {
    const all = this.waiting;
    this.waiting = [];
    this.timer = null;
    batch(() => {
      for (const { view, trials, results } of all) {
        this.view.change(() => view);
        if (trials) this.columns.change((columns) => merged(columns, trials));
        if (results.length) this.curves.change((curves) => withResults(curves, results));
      }
    });
    if (all.every(({ trials }) => !trials)) return;
    this.use.renew();
    this.rungs.renew();
  }

  close() {
    this.end();
    clearTimeout(this.timer);
    for (const part of [...this.moving, this.config, this.files]) part.unwant();
  }

  /** Only these parts are shown, besides the view of the experiment itself.
   * @param {Part<any>[]} parts */
  show(parts) {
    for (const part of [...this.moving.slice(1), this.config, this.files]) {
      if (parts.includes(part)) part.want();
      else part.unwant();
    }
  }
}
