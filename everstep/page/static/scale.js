// Where a value is on an axis whose kind is the hyperparameter's: log, int, real or choice. Pure.
//
// No value is left out. One that has no place in the range (NaN, an infinity, a text among numbers, none yet) has a
// place of its own below it.

import { text } from "./configuration.js";
import { number } from "./format.js";
import { logTicks, ticks, yTexts } from "./ticks.js";

const ODD_SHARE = 0.09; // of the axis, for each odd value …
const MOST_ODD = 4; // … and the last of these stands for all others
const OTHER = "other";

/** @typedef {"log" | "int" | "real" | "choice"} Kind */
/** @typedef {{name: string, kind: Kind, low: number, high: number, choices: string[], odd: string[]}} Scale */
/** @typedef {{name: string, kind: Kind, low?: number | null, high?: number | null, choices?: unknown[] | null}} Range  what a search may draw from */
/** @typedef {{at: number, text: string, isOdd: boolean}} Tick  `at`: from 0 to 1 */
/** @typedef {{range?: [number, number], keys?: string[]}} Only  values to keep: numbers in a range, or these texts */

/** What a value is called where it is not a number on the axis.
 * @param {unknown} value */
export function key(value) {
  if (value === null || value === undefined) return "none";
  if (typeof value === "number") return number(value);
  if (value === "nan" || value === "inf" || value === "-inf") return number(value);
  return text(value);
}

/** The text of any value, as tables and sentences have it.
 * @param {unknown} value */
export const valueText = (value) => (value === null || value === undefined ? "–" : key(value));

/** An axis for all that may be drawn and all that was.
 * @param {Range} range @param {unknown[]} values @returns {Scale} */
export function scaleOf(range, values) {
  const { name, kind } = range;
  if (kind === "choice") {
    const choices = [...new Set([...(range.choices ?? []), ...values].map(key))];
    return { name, kind, low: 0, high: 1, choices, odd: [] };
  }
  let low = isOn(kind, range.low) ? range.low : Infinity;
  let high = isOn(kind, range.high) ? range.high : -Infinity;
  /** @type {Map<string, number>} */
  const odd = new Map();
  for (const value of values) {
    if (isOn(kind, value)) {
      if (value < low) low = value;
      if (value > high) high = value;
    } else odd.set(key(value), (odd.get(key(value)) ?? 0) + 1);
  }
  if (low > high) [low, high] = kind === "log" ? [1, 10] : [0, 1];
  const often = [...odd].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([each]) => each);
  const told = often.length > MOST_ODD ? [...often.slice(0, MOST_ODD - 1), OTHER] : often;
  return { name, kind, low, high, choices: [], odd: told };
}

/** Whether a value is in the axis's range of numbers, and not odd.
 * @param {Kind} kind @param {unknown} value @returns {value is number} */
export const isOn = (kind, value) => typeof value === "number" && Number.isFinite(value) && (kind !== "log" || value > 0);

/** The part of the axis that odd values take. @param {Scale} scale */
export const oddShare = (scale) => scale.odd.length * ODD_SHARE;

/** From 0, the low end, to 1.
 * @param {Scale} scale @param {unknown} value */
export function position(scale, value) {
  if (scale.kind === "choice") return (scale.choices.indexOf(key(value)) + 0.5) / scale.choices.length;
  const start = oddShare(scale);
  if (isOn(scale.kind, value)) return start + (1 - start) * share(scale, value);
  const place = scale.odd.indexOf(key(value));
  return ((place < 0 ? scale.odd.length - 1 : place) + 0.5) * ODD_SHARE;
}

/** @param {Scale} scale @param {number} value */
function share({ kind, low, high }, value) {
  if (!(high > low)) return 0.5;
  if (kind === "log") return (Math.log(value) - Math.log(low)) / (Math.log(high) - Math.log(low));
  return (value - low) / (high - low);
}

/** The number at a position; those below the range give its low end.
 * @param {Scale} scale @param {number} at */
export function valueAt(scale, at) {
  const start = oddShare(scale);
  const part = Math.min(1, Math.max(0, (at - start) / (1 - start)));
  const { kind, low, high } = scale;
  if (kind === "log") return Math.exp(Math.log(low) + part * (Math.log(high) - Math.log(low)));
  return low + part * (high - low);
}

/** Places with words, about as many as have room.
 * @param {Scale} scale @param {number} most @returns {Tick[]} */
export function scaleTicks(scale, most) {
  const odd = scale.odd.map((each, i) => ({ at: (i + 0.5) * ODD_SHARE, text: each, isOdd: true }));
  if (scale.kind === "choice") {
    const every = Math.max(1, Math.ceil(scale.choices.length / Math.max(1, most)));
    return scale.choices.flatMap((each, i) => (i % every ? [] : [{ at: (i + 0.5) / scale.choices.length, text: each, isOdd: false }]));
  }
  const found = numberTicks(scale, most);
  const texts = scale.kind === "log" ? found.map((each) => number(each)) : yTexts(found);
  return [...odd, ...found.map((each, i) => ({ at: position(scale, each), text: texts[i], isOdd: false }))];
}

/** @param {Scale} scale @param {number} most */
function numberTicks({ kind, low, high }, most) {
  if (!(high > low)) return [low];
  const found = kind === "log" ? logTicks(low, high) : ticks(low, high, most);
  const kept = kind === "int" ? found.filter(Number.isInteger) : found;
  const thin = kept.filter((_, i) => i % Math.ceil(kept.length / Math.max(2, most)) === 0);
  return thin.length > 1 ? thin : [low, high];
}

/** @param {Scale} scale @param {Only | undefined} only @param {unknown} value */
export function passes(scale, only, value) {
  if (!only) return true;
  if (scale.kind !== "choice" && isOn(scale.kind, value)) return Boolean(only.range && value >= only.range[0] && value <= only.range[1]);
  return Boolean(only.keys?.includes(key(value)) || (only.keys?.includes(OTHER) && !scale.odd.includes(key(value))));
}

/** What is between two positions, to keep. Odd values and choices count if their place is within.
 * @param {Scale} scale @param {number} a @param {number} b @returns {Only | null} null: all of the axis */
export function onlyBetween(scale, a, b) {
  const [from, to] = [Math.min(a, b), Math.max(a, b)];
  const listed = scale.kind === "choice" ? scale.choices : scale.odd;
  const keys = listed.filter((_, i) => {
    const at = scale.kind === "choice" ? (i + 0.5) / listed.length : (i + 0.5) * ODD_SHARE;
    return at >= from && at <= to;
  });
  const hasRange = scale.kind !== "choice" && to > oddShare(scale);
  if (keys.length === listed.length && (!hasRange || from <= oddShare(scale)) && to >= 1) return null;
  /** @type {[number, number]} */
  const range = [rounded(scale, from), rounded(scale, to)];
  return { ...(hasRange && { range }), ...(keys.length > 0 && { keys }) };
}

/** @param {Scale} scale @param {number} at */
function rounded(scale, at) {
  if (at >= 1) return scale.high;
  if (at <= oddShare(scale)) return scale.low;
  return Number(valueAt(scale, at).toPrecision(4));
}

/** The stretch of the axis that a filter keeps, to draw it; for choices, several.
 * @param {Scale} scale @param {Only} only @returns {[number, number][]} */
export function stretches(scale, only) {
  const width = scale.kind === "choice" ? 1 / scale.choices.length : ODD_SHARE;
  const listed = scale.kind === "choice" ? scale.choices : scale.odd;
  const made = listed.flatMap((each, i) => (only.keys?.includes(each) ? [/** @type {[number, number]} */ ([i * width, (i + 1) * width])] : []));
  if (!only.range || scale.kind === "choice") return made;
  const [from, to] = only.range.map((each) => Math.min(scale.high, Math.max(scale.low, each)));
  return [...made, [position(scale, from), position(scale, to)]];
}

/** A filter in words. @param {Only} only */
export function onlyText(only) {
  const range = only.range && `${number(only.range[0])} to ${number(only.range[1])}`;
  return [range, ...(only.keys ?? [])].filter(Boolean).join(", ") || "nothing";
}

/** The filters in an address; whatever else stands there is none.
 * @param {string | null} written @returns {Record<string, Only>} */
export function readOnly(written) {
  try {
    const read = JSON.parse(written ?? "{}");
    const names = read && typeof read === "object" && !Array.isArray(read) ? Object.keys(read) : [];
    return Object.fromEntries(names.filter((name) => isOnly(read[name])).map((name) => [name, read[name]]));
  } catch {
    return {};
  }
}

/** @param {any} given */
function isOnly(given) {
  if (!given || typeof given !== "object") return false;
  const isRange = given.range === undefined || (Array.isArray(given.range) && given.range.length === 2 && given.range.every(Number.isFinite));
  return isRange && (given.keys === undefined || (Array.isArray(given.keys) && given.keys.every((/** @type {unknown} */ each) => typeof each === "string")));
}

/** @param {Record<string, Only>} filters */
export const writeOnly = (filters) => (Object.keys(filters).length ? JSON.stringify(filters) : "");
