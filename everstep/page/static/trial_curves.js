// Learning curves of many trials, without the drawing: their extents, the best of them, the one pointed at. Pure.

import { after } from "./curve.js";
import { isOn } from "./scale.js";

/** @typedef {{trial: number, x: number[], y: (number | string | null)[]}} TrialCurve  x rises */

/** The best curves first, by their best value; those without any number are left out.
 * @param {TrialCurve[]} curves @param {boolean} isSmallerBetter @param {number} most */
export function bestCurves(curves, isSmallerBetter, most) {
  const sign = isSmallerBetter ? 1 : -1;
  return curves
    .map((curve) => ({ curve, value: bestValue(curve, isSmallerBetter) }))
    .filter(({ value }) => value !== null)
    .sort((a, b) => sign * (Number(a.value) - Number(b.value)) || a.curve.trial - b.curve.trial)
    .slice(0, most)
    .map(({ curve }) => curve);
}

/** @param {TrialCurve} curve @param {boolean} isSmallerBetter @returns {number | null} */
export function bestValue({ y }, isSmallerBetter) {
  /** @type {number | null} */
  let best = null;
  for (const value of y) if (isOn("real", value) && (best === null || (isSmallerBetter ? value < best : value > best))) best = value;
  return best;
}

/** @param {TrialCurve[]} curves */
export const allValues = (curves) => curves.flatMap(({ y }) => y);

/** @param {TrialCurve[]} curves @returns {[number, number]} */
export function extent(curves) {
  let [low, high] = [Infinity, -Infinity];
  for (const { x } of curves) {
    if (!x.length) continue;
    low = Math.min(low, x[0]);
    high = Math.max(high, x[x.length - 1]);
  }
  return low <= high ? [low, high] : [0, 1];
}

/** The height of a curve at a place, in the drawing's own measure; null where it is not.
 * @param {TrialCurve} curve @param {number} x @param {(value: unknown) => number} toY @param {(value: number) => number} toX */
export function heightAt(curve, x, toY, toX) {
  const { x: xs, y } = curve;
  const right = after(xs, x);
  if (!xs.length || x < xs[0] || x > xs[xs.length - 1]) return null;
  if (right >= xs.length || xs.length === 1) return toY(y[Math.min(right, xs.length) - 1]);
  const part = (toX(x) - toX(xs[right - 1])) / (toX(xs[right]) - toX(xs[right - 1]) || 1);
  return toY(y[right - 1]) * (1 - part) + toY(y[right]) * part;
}

/** The best value so far, a point for each time that it gets better, and one at the end.
 * @param {{x: number, value: unknown, trial: number}[]} results by x @param {boolean} isSmallerBetter @param {number} end
 * @returns {{x: number[], y: number[], trials: number[]}} */
export function bestSoFar(results, isSmallerBetter, end) {
  /** @type {{x: number[], y: number[], trials: number[]}} */
  const made = { x: [], y: [], trials: [] };
  for (const { x, value, trial } of results) {
    const known = made.y[made.y.length - 1];
    if (!isOn("real", value) || (made.y.length && (isSmallerBetter ? value >= known : value <= known))) continue;
    made.x.push(x);
    made.y.push(value);
    made.trials.push(trial);
  }
  if (made.x.length && end > made.x[made.x.length - 1]) {
    made.x.push(end);
    made.y.push(made.y[made.y.length - 1]);
    made.trials.push(made.trials[made.trials.length - 1]);
  }
  return made;
}
