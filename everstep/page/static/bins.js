// Means of a metric over two hyperparameters, bin by bin. Pure.

import { isOn, oddShare, position, valueAt } from "./scale.js";

const MOST_BINS = 10;

/** @typedef {import("./scale.js").Scale} Scale */
/** @typedef {import("./trial_rows.js").Axis} Axis */
/** @typedef {{from: number, to: number, text: string}} Bin  a stretch of an axis, from 0 to 1 */
/** @typedef {{x: number, y: number, count: number, numbers: number, mean: number | null}} Cell  `numbers`: trials with a finite metric */

/** A bin for each choice, each odd value, and each whole number if there are few; else equal stretches.
 * @param {Scale} scale @returns {Bin[]} */
export function bins(scale) {
  if (scale.kind === "choice") return scale.choices.map((text, i) => ({ from: i / scale.choices.length, to: (i + 1) / scale.choices.length, text }));
  const start = oddShare(scale);
  const odd = scale.odd.map((text, i) => ({ from: (i * start) / scale.odd.length, to: ((i + 1) * start) / scale.odd.length, text }));
  const whole = scale.high - scale.low + 1;
  const isEach = scale.kind === "int" && whole <= MOST_BINS;
  const number = scale.high > scale.low ? (isEach ? whole : MOST_BINS) : 1;
  const edges = Array.from({ length: number + 1 }, (_, i) => (isEach && i > 0 && i < number ? (position(scale, scale.low + i - 1) + position(scale, scale.low + i)) / 2 : start + ((1 - start) * i) / number));
  const even = Array.from({ length: number }, (_, i) => ({
    from: edges[i],
    to: edges[i + 1],
    text: isEach ? String(scale.low + i) : `${shortly(valueAt(scale, edges[i]))} to ${shortly(valueAt(scale, edges[i + 1]))}`,
  }));
  return [...odd, ...even];
}

/** @param {number} value */
const shortly = (value) => String(Number(value.toPrecision(3)));

/** @param {Bin[]} all @param {number} at */
export function binAt(all, at) {
  const found = all.findIndex((each) => at < each.to);
  return found < 0 ? all.length - 1 : found;
}

/** Cells that have trials.
 * @template Row @param {Row[]} rows @param {{scale: Scale, of: (row: Row) => unknown}} x @param {{scale: Scale, of: (row: Row) => unknown}} y @param {(row: Row) => unknown} metric
 * @returns {{across: Bin[], up: Bin[], cells: Cell[]}} */
export function binned(rows, x, y, metric) {
  const [across, up] = [bins(x.scale), bins(y.scale)];
  /** @type {Map<number, {count: number, numbers: number, sum: number}>} */
  const sums = new Map();
  for (const row of rows) {
    const at = binAt(across, position(x.scale, x.of(row))) * up.length + binAt(up, position(y.scale, y.of(row)));
    const known = sums.get(at) ?? { count: 0, numbers: 0, sum: 0 };
    const value = metric(row);
    known.count++;
    if (isOn("real", value)) (known.numbers++, (known.sum += value));
    sums.set(at, known);
  }
  const cells = [...sums].map(([at, { count, numbers, sum }]) => ({ x: Math.floor(at / up.length), y: at % up.length, count, numbers, mean: numbers ? sum / numbers : null }));
  return { across, up, cells };
}
