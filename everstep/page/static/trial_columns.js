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
 * @property {number} last_event of the search, up to which these count
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
/** @typedef {[trial: number, length: number, metric: number | string | null, time: number]} Result */
/** @typedef {{trials: number[], lengths: number[][], metrics: (number | string | null)[][], times: number[][], num_results: number[], num_left_out: number, thinned: string}} CurvesView */
/** @typedef {{times: number[], slots: number[], slot_seconds: number[]}} Use */

const LISTS = /** @type {const} */ (["ids", "states", "reasons", "brackets", "lengths", "latest", "best", "best_lengths", "slots", "restarts", "created_at", "started_at", "ended_at"]);
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

/** Columns with some trials as the stream tells of them, known ones and new ones.
 * @param {Columns} columns @param {Columns} news @returns {Columns} */
export function merged(columns, news) {
  if (news.last_event < columns.last_event || !news.trials.length) return columns;
  const places = new Map(columns.trials.map((trial, i) => [trial, i]));
  const trials = [...columns.trials];
  for (const trial of news.trials) {
    if (places.has(trial)) continue;
    places.set(trial, trials.length);
    trials.push(trial);
  }
  const at = news.trials.map((trial) => /** @type {number} */ (places.get(trial)));
  /** @param {unknown[] | undefined} known @param {unknown[] | undefined} told */
  const put = (known, told) => {
    const made = known ? [...known] : new Array(columns.trials.length).fill(null);
    at.forEach((place, i) => (made[place] = told?.[i] ?? null));
    return made;
  };
  const lists = /** @type {Pick<Columns, typeof LISTS[number]>} */ (Object.fromEntries(LISTS.map((name) => [name, put(columns[name], news[name])])));
  const names = new Set([...Object.keys(columns.hparams), ...Object.keys(news.hparams)]);
  const hparams = Object.fromEntries([...names].map((name) => [name, put(columns.hparams[name], news.hparams[name])]));
  return { ...columns, ...lists, trials, hparams, searched: news.searched, last_event: news.last_event };
}

/** Curves with results that the stream tells of; the same length again changes that result.
 * @param {CurvesView} view @param {Result[]} results @returns {CurvesView} */
export function withResults(view, results) {
  if (!results.length) return view;
  const places = new Map(view.trials.map((trial, i) => [trial, i]));
  const made = { ...view, trials: [...view.trials], lengths: [...view.lengths], metrics: [...view.metrics], times: [...view.times], num_results: [...view.num_results] };
  for (const [trial, length, metric, time] of results) {
    const place = places.get(trial) ?? made.trials.length;
    if (place === made.trials.length) {
      places.set(trial, place);
      made.trials.push(trial);
      made.num_results.push(0);
      made.lengths[place] = made.metrics[place] = made.times[place] = [];
    }
    const end = after(made.lengths[place], length);
    const isKnown = made.lengths[place][end - 1] === length;
    const put = (/** @type {any[]} */ list, /** @type {unknown} */ value) => list.toSpliced(isKnown ? end - 1 : end, Number(isKnown), value);
    made.lengths[place] = put(made.lengths[place], length);
    made.metrics[place] = put(made.metrics[place], metric);
    made.times[place] = put(made.times[place], time);
    if (!isKnown) made.num_results[place]++;
  }
  return made;
}
