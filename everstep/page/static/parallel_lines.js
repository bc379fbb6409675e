// Parallel coordinates without the drawing: where each trial's line is on each axis, and which one is pointed at. Pure.

import { passes, position } from "./scale.js";

/** @typedef {import("./trial_rows.js").Axis} Axis */
/** @typedef {import("./trial_rows.js").Row} Row */

/** Positions from 0 to 1, all of one trial next to each other.
 * @param {Row[]} rows @param {Axis[]} axes */
export function positions(rows, axes) {
  const made = new Float32Array(rows.length * axes.length);
  rows.forEach((row, i) => axes.forEach(({ scale, of }, j) => (made[i * axes.length + j] = position(scale, of(row)))));
  return made;
}

/** Which rows pass the filters of all axes.
 * @param {Row[]} rows @param {Axis[]} axes @param {Record<string, import("./scale.js").Only>} filters */
export function actives(rows, axes, filters) {
  const used = axes.filter(({ scale }) => filters[scale.name]);
  return rows.map((row) => used.every(({ scale, of }) => passes(scale, filters[scale.name], of(row))));
}

/** The row whose line is nearest to a point, among those that count; -1 if none is near.
 * @param {Float32Array} places @param {number} numAxes @param {number} x in axes: 1.5 is in the middle between the second and the third
 * @param {number} y from 0 to 1 @param {(row: number) => boolean} counts @param {number} reach farther is not near */
export function nearest(places, numAxes, x, y, counts, reach) {
  if (!numAxes) return -1;
  const left = Math.min(Math.max(0, Math.floor(x)), Math.max(0, numAxes - 2));
  const right = Math.min(left + 1, numAxes - 1);
  const part = Math.min(1, Math.max(0, x - left));
  let [best, distance] = [-1, reach];
  for (let row = 0; row * numAxes < places.length; row++) {
    const at = places[row * numAxes + left] * (1 - part) + places[row * numAxes + right] * part;
    const away = Math.abs(at - y);
    if (away < distance && counts(row)) [best, distance] = [row, away];
  }
  return best;
}

/** Rows in the order of drawing, in as many groups as there are colors: those without a metric, then from the worst to
 * the best, which is on top.
 * @param {(number | null)[]} shares @param {boolean[]} active @param {number} numColors
 * @returns {{color: number, rows: number[]}[]} color -1: no metric; -2: filtered out */
export function layers(shares, active, numColors) {
  /** @type {Map<number, number[]>} */
  const made = new Map();
  for (let color = -2; color < numColors; color++) made.set(color, []);
  shares.forEach((share, row) => {
    const color = !active[row] ? -2 : share === null ? -1 : Math.min(numColors - 1, Math.floor(share * numColors));
    made.get(color)?.push(row);
  });
  return [...made].flatMap(([color, rows]) => (rows.length ? [{ color, rows }] : []));
}
