// Trials as rows: their columns, and how they are filtered, sorted and ranked. Pure; quick for tens of thousands.

import { flatten } from "./configuration.js";
import { isOn, key, passes } from "./scale.js";

/** @typedef {import("./scale.js").Scale} Scale */
/** @typedef {import("./scale.js").Only} Only */
/**
 * @typedef {object} Row  a trial
 * @property {number} trial
 * @property {number} id unique at the coordinator
 * @property {string} state
 * @property {string} reason
 * @property {Record<string, unknown>} hparams by their dotted names
 * @property {unknown} best
 * @property {unknown} latest
 * @property {number} length of the last result
 * @property {number} best_length
 * @property {unknown} [at] the metric at a chosen length
 * @property {number} num_slots
 * @property {number} num_restarts
 * @property {number} bracket
 * @property {number | null} started_at
 * @property {number | null} ended_at
 * @property {number} created_at
 */
/** @typedef {{name: string, of: (row: Row) => unknown}} Column */
/** @typedef {{scale: Scale, of: (row: Row) => unknown}} Axis */

/** Nested hyperparameters by their dotted names.
 * @param {object} hparams @returns {Record<string, unknown>} */
export const flat = (hparams) => Object.fromEntries(flatten(hparams));

/** The place of a value in an order: numbers with infinities, then texts; null: neither.
 * @param {unknown} value */
function rank(value) {
  if (value === "inf") return Infinity;
  if (value === "-inf") return -Infinity;
  if (value === "nan" || value === null || value === undefined || Number.isNaN(value)) return null;
  return typeof value === "number" || typeof value === "string" ? value : typeof value === "boolean" ? Number(value) : key(value);
}

/** Sorted by a column, ties by the trial's number. What has no value, or NaN, is last in both directions.
 * @param {Row[]} rows @param {(row: Row) => unknown} of @param {boolean} isUp */
export function sorted(rows, of, isUp) {
  const ranked = rows.map((row) => ({ row, rank: rank(of(row)) }));
  const sign = isUp ? 1 : -1;
  ranked.sort((a, b) => compare(a.rank, b.rank, sign) || a.row.trial - b.row.trial);
  return ranked.map((each) => each.row);
}

/** @param {string | number | null} a @param {string | number | null} b @param {number} sign */
function compare(a, b, sign) {
  if (a === null || b === null) return Number(a === null) - Number(b === null);
  if (typeof a === typeof b) return a < b ? -sign : a > b ? sign : 0;
  return typeof a === "number" ? -sign : sign;
}

/** Those that pass all filters and mention the text.
 * @param {Row[]} rows @param {Map<string, Axis>} axes @param {Record<string, Only>} filters @param {{state?: string, find?: string}} [more] */
export function kept(rows, axes, filters, { state = "", find = "" } = {}) {
  const named = Object.entries(filters).flatMap(([name, only]) => (axes.has(name) ? [{ only, .../** @type {Axis} */ (axes.get(name)) }] : []));
  const words = find.toLowerCase();
  return rows.filter(
    (row) => (!state || row.state === state) && named.every(({ scale, of, only }) => passes(scale, only, of(row))) && (!words || mentions(row, words)),
  );
}

/** @param {Row} row @param {string} words in lower case */
function mentions(row, words) {
  if (`trial ${row.trial}`.includes(words) || row.reason.toLowerCase().includes(words)) return true;
  for (const name in row.hparams) if (`${name} ${key(row.hparams[name])}`.toLowerCase().includes(words)) return true;
  return false;
}

/** How good each trial is, by its place among all: 1 the best, 0 the worst, null without a finite metric. By place and
 * not by value, so that one trial that has diverged does not make all others look the same.
 * @param {Row[]} rows @param {(row: Row) => unknown} of @param {boolean} isSmallerBetter @returns {(number | null)[]} */
export function shares(rows, of, isSmallerBetter) {
  const values = rows.map((row) => of(row));
  const order = values.flatMap((value, i) => (isOn("real", value) ? [i] : []));
  const sign = isSmallerBetter ? 1 : -1;
  order.sort((a, b) => sign * (Number(values[b]) - Number(values[a])));
  /** @type {(number | null)[]} */
  const made = new Array(rows.length).fill(null);
  let share = 0;
  order.forEach((index, place) => {
    if (!place || values[index] !== values[order[place - 1]]) share = order.length > 1 ? place / (order.length - 1) : 1;
    made[index] = share;
  });
  return made;
}

/** The trial with the best finite value.
 * @param {Row[]} rows @param {(row: Row) => unknown} of @param {boolean} isSmallerBetter @returns {Row | null} */
export function bestOf(rows, of, isSmallerBetter) {
  /** @type {Row | null} */
  let best = null;
  for (const row of rows) {
    const value = of(row);
    if (!isOn("real", value)) continue;
    const known = best && Number(of(best));
    if (known === null || (isSmallerBetter ? value < known : value > known)) best = row;
  }
  return best;
}
