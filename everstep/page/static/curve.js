// From what the coordinator tells of a series to what a plot draws. Pure.
//
// An entry of a window is one point, or a span of points next to each other with its first, last, least and greatest
// value. A span becomes up to four points of the line: so each pixel column shows the same peaks as all points would.

const MOST_STEPS = 2 ** 53; // that the coordinator reads

/** @typedef {{x: number[], y: (number | null)[], odd: {x: number, what: string}[]}} Curve */
/** @typedef {"step" | "epoch" | "time" | "elapsed"} Axis */
/**
 * @typedef {object} Window  `SeriesWindow` of the protocol
 * @property {number} series
 * @property {string} name
 * @property {number} start
 * @property {number} stop
 * @property {number} num_points
 * @property {number} span_steps
 * @property {number[]} first_steps
 * @property {number[]} first_times
 * @property {(number | string)[]} firsts
 * @property {number[]} last_steps
 * @property {number[]} last_times
 * @property {(number | string)[]} lasts
 * @property {(number | null)[]} least
 * @property {(number | null)[]} most
 * @property {number[]} counts
 * @property {number[]} nans
 * @property {number[]} infs
 * @property {number[]} negative_infs
 */

/** A finite number, or null: a gap.
 * @param {number | string | null} value */
const finite = (value) => (typeof value === "number" ? value : null);

/** @param {Window} window @param {(step: number, time: number) => number} place where a step is on the x axis
 * @returns {Curve} */
export function curve(window, place) {
  /** @type {Curve} */
  const made = { x: [], y: [], odd: [] };
  const hasSpans = window.counts?.length > 0;
  let last = -Infinity;
  /** @param {number} x @param {number | null} y */
  const put = (x, y) => {
    // Clocks may go back a little, a line may not; and each x is there once, so that curves can be aligned.
    last = x > last ? x : last + Math.max(Math.abs(last) * 1e-12, 1e-9);
    made.x.push(last);
    made.y.push(y);
  };
  for (let i = 0; i < window.firsts.length; i++) {
    const x = place(window.first_steps[i], window.first_times[i]);
    const first = window.firsts[i];
    if (!hasSpans || window.counts[i] === 1) {
      put(x, finite(first));
      if (typeof first === "string") made.odd.push({ x, what: first });
      continue;
    }
    const end = place(window.last_steps[i], window.last_times[i]);
    const middle = (x + end) / 2;
    put(x, finite(first));
    if (window.least[i] !== null) {
      put(x + (end - x) / 3, window.least[i]);
      put(x + ((end - x) * 2) / 3, window.most[i]);
    }
    put(end, finite(window.lasts[i]));
    if (window.nans[i]) made.odd.push({ x: middle, what: "nan" });
    if (window.infs[i]) made.odd.push({ x: middle, what: "inf" });
    if (window.negative_infs[i]) made.odd.push({ x: middle, what: "-inf" });
  }
  return made;
}

/** A running mean that forgets, without the pull of its start towards zero. Gaps stay gaps.
 * @param {(number | null)[]} values @param {number} weight from 0 (as it is) to just below 1 */
export function smooth(values, weight) {
  if (!weight) return values;
  let mean = 0;
  let share = 0;
  return values.map((value) => {
    if (value === null) return null;
    mean = mean * weight + value * (1 - weight);
    share = share * weight + (1 - weight);
    return mean / share;
  });
}

/** Where a step is on the x axis. Epochs come from the points of the series that tells them.
 * @param {Axis} axis @param {{steps: number[], epochs: number[]} | null} epochs @param {number} start of the job
 * @returns {(step: number, time: number) => number} */
export function placer(axis, epochs, start) {
  if (axis === "time") return (_, time) => time;
  if (axis === "elapsed") return (_, time) => time - start;
  if (axis === "epoch" && epochs?.steps.length) return (step) => between(epochs.steps, epochs.epochs, step);
  return (step) => step;
}

/** A curve less another, where that one has values.
 * @param {Curve} curve @param {Curve} base @returns {Curve} */
export function minus(curve, base) {
  const known = base.x.map((_, i) => i).filter((i) => base.y[i] !== null);
  const [xs, ys] = [known.map((i) => base.x[i]), known.map((i) => /** @type {number} */ (base.y[i]))];
  const y = curve.y.map((value, i) => {
    const x = curve.x[i];
    if (value === null || !xs.length || x < xs[0] || x > xs[xs.length - 1]) return null;
    return value - (xs.length === 1 ? ys[0] : between(xs, ys, x));
  });
  return { ...curve, y };
}

/** Between two points of a rising line, and on from its ends.
 * @param {number[]} xs rising @param {number[]} ys @param {number} x */
export function between(xs, ys, x) {
  if (xs.length === 1) return xs[0] ? (ys[0] * x) / xs[0] : ys[0];
  const i = Math.min(Math.max(after(xs, x), 1), xs.length - 1);
  const slope = (ys[i] - ys[i - 1]) / (xs[i] - xs[i - 1] || 1);
  return ys[i - 1] + (x - xs[i - 1]) * slope;
}

/** The index of the first entry greater than x.
 * @param {number[]} xs rising @param {number} x */
export function after(xs, x) {
  let low = 0;
  let high = xs.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] > x) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Steps that a stretch of the x axis covers, for asking the coordinator.
 * @param {Window} whole of the series @param {Axis} axis @param {(step: number, time: number) => number} place
 * @param {number} from @param {number} to
 * @returns {[number, number]} from, to before */
export function steps(whole, axis, place, from, to) {
  if (axis === "step") return [Math.min(MOST_STEPS, Math.max(0, Math.floor(from))), Math.min(MOST_STEPS, Math.max(1, Math.ceil(to) + 1))];
  const xs = whole.first_steps.map((step, i) => place(step, whole.first_times[i]));
  const low = Math.max(after(xs, from) - 1, 0);
  const high = Math.min(after(xs, to), xs.length - 1);
  const ends = whole.last_steps?.length ? whole.last_steps : whole.first_steps;
  return [whole.first_steps[low] ?? 0, (ends[high] ?? 0) + 1];
}

/** Several curves on the x values of all of them, as uPlot wants it: null is a gap, undefined none of its points.
 * @param {Curve[]} curves */
export function align(curves) {
  if (curves.length === 1) return { x: curves[0].x, ys: [curves[0].y] };
  const xs = [...new Set(curves.flatMap((each) => each.x))].sort((a, b) => a - b);
  const index = new Map(xs.map((x, i) => [x, i]));
  const ys = curves.map((each) => {
    /** @type {(number | null | undefined)[]} */
    const y = new Array(xs.length).fill(undefined);
    each.x.forEach((x, i) => (y[/** @type {number} */ (index.get(x))] = each.y[i]));
    return y;
  });
  return { x: xs, ys };
}
