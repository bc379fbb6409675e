// From the columns and curves of all trials, as the coordinator tells them, to the rows and axes that are shown. Pure.

import { after, between } from "./curve.js";
import { NOT_FINITE } from "./rung_rows.js";
import { scaleOf } from "./scale.js";

/** @typedef {import("./trial_rows.js").Row} Row */
/** @typedef {import("./trial_rows.js").Axis} Axis */
/** @typedef {import("./trial_curves.js").TrialCurve} TrialCurve */
/** @typedef {{name: string, kind: string, least: number | null, most: number | null, values: unknown[]}} Searched */
/**
 * @typedef {object} Columns  `TrialColumns` of the protocol
 * @property {string} metric
 * @property {boolean} smaller_is_better
 * @property {string} unit
 * @property {Searched[]} searched
 * @property {number[]} trials
 * @property {number[]} ids
 * @property {string[]} states
 * @property {string[]} reasons
 * @property {number[]} brackets
 * @property {number[]} lengths
 * @property {unknown[]} latest
 * @property {unknown[]} best
 * @property {number[]} best_lengths
 * @property {number[]} slots
 * @property {number[]} restarts
 * @property {number[]} created_at
 * @property {(number | null)[]} started_at
 * @property {(number | null)[]} ended_at
 * @property {Record<string, unknown[]>} hparams
 */
/** @typedef {{trials: number[], lengths: number[][], metrics: (number | string | null)[][], times: number[][], num_results: number[], num_left_out: number, thinned: string}} CurvesView */
/** @typedef {{times: number[], slots: number[], slot_seconds: number[]}} Use */

const KINDS = /** @type {Record<string, import("./scale.js").Kind>} */ ({ double: "real", int: "int", log: "log", choice: "choice" });

/** @param {Columns} columns @returns {Row[]} */
export function rowsOf(columns) {
  const names = Object.keys(columns.hparams);
  return columns.trials.map((trial, i) => ({
    trial,
    id: columns.ids[i],
    state: columns.states[i],
    reason: columns.reasons[i],
    hparams: Object.fromEntries(names.map((name) => [name, columns.hparams[name][i]])),
    best: columns.best[i],
    latest: columns.latest[i],
    length: columns.lengths[i],
    best_length: columns.best_lengths[i],
    num_slots: columns.slots[i],
    num_restarts: columns.restarts[i],
    bracket: columns.brackets[i],
    created_at: columns.created_at[i],
    started_at: columns.started_at[i],
    ended_at: columns.ended_at[i],
  }));
}

/** An axis for each searched hyperparameter, of its own kind.
 * @param {Columns} columns @param {Row[]} rows @returns {Axis[]} */
export function axesOf({ searched }, rows) {
  return searched.map(({ name, kind, least, most, values }) => {
    const of = (/** @type {Row} */ row) => row.hparams[name];
    return { of, scale: scaleOf({ name, kind: KINDS[kind] ?? "real", low: least, high: most, choices: values }, rows.map(of)) };
  });
}

/** The axis of the metric, by its best or its last value.
 * @param {Columns} columns @param {Row[]} rows @param {"best" | "last"} which @param {boolean} isLog @returns {Axis} */
export function metricAxis({ metric }, rows, which, isLog) {
  const of = (/** @type {Row} */ row) => (which === "best" ? row.best ?? (row.length ? NOT_FINITE : null) : row.latest);
  return { of, scale: scaleOf({ name: `${which} ${metric}`, kind: isLog ? "log" : "real" }, rows.map(of)) };
}

/** @param {CurvesView} view @returns {TrialCurve[]} */
export const curvesOf = ({ trials, lengths, metrics }) => trials.map((trial, i) => ({ trial, x: lengths[i], y: metrics[i].map((each) => each ?? NOT_FINITE) }));

/** Each trial's result at a length, or the last one before it.
 * @param {CurvesView} view @param {number} length @returns {Map<number, number | string>} */
export function resultsAt({ trials, lengths, metrics }, length) {
  /** @type {Map<number, number | string>} */
  const made = new Map();
  trials.forEach((trial, i) => {
    const last = after(lengths[i], length) - 1;
    if (last >= 0) made.set(trial, metrics[i][last] ?? NOT_FINITE);
  });
  return made;
}

/** All results by when they came, in seconds from the start; or, with the use of slots, by the slot-seconds until then.
 * @param {CurvesView} view @param {number} start @param {Use | null} use @returns {{x: number, value: unknown, trial: number}[]} */
export function resultsInTime({ trials, metrics, times }, start, use) {
  const place = (/** @type {number} */ time) => (use ? slotSeconds(use, time) : Math.max(0, time - start));
  const made = trials.flatMap((trial, i) => times[i].map((time, j) => ({ x: place(time), value: metrics[i][j], trial })));
  return made.sort((a, b) => a.x - b.x);
}

/** @param {Use} use @param {number} time of day */
export function slotSeconds({ times, slot_seconds: used }, time) {
  if (!times.length || time <= times[0]) return 0;
  if (time >= times[times.length - 1]) return used[used.length - 1];
  return between(times, used, time);
}
