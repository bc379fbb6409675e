// Round places on an axis, and their words. Pure.

import { clock, count, number, short } from "./format.js";

const TIMES_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
const MOST = 1000;

/** @typedef {import("./curve.js").Axis} Axis */

/** At most about `most` of them.
 * @param {number} from @param {number} to @param {number} most @param {Axis} [axis] */
export function ticks(from, to, most, axis) {
  const span = to - from;
  if (!(span > 0) || !Number.isFinite(span)) return [];
  const step = stride(span / Math.max(1, most), axis);
  const zone = axis === "time" ? new Date(from * 1000).getTimezoneOffset() * 60 : 0; // round in local time
  const first = Math.ceil((from - zone) / step);
  if (!Number.isSafeInteger(first) || from + step === from || to + step === to) return []; // closer than numbers can be
  const made = /** @type {number[]} */ ([]);
  // Multiples, not sums: what is added up step by step misses zero. To a bound: rounding must not keep the page busy.
  for (let i = 0; i <= MOST && (first + i) * step + zone <= to + step * 1e-9; i++) made.push(Number(((first + i) * step + zone).toPrecision(12)));
  return made.filter((tick, i) => tick !== made[i - 1]);
}

/** @param {number} rough @param {Axis} [axis] */
function stride(rough, axis) {
  if (axis === "time" || axis === "elapsed") {
    const found = TIMES_S.find((each) => each >= rough);
    if (found && rough > 0.5) return found;
  }
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5, 10].find((each) => each * power >= rough * 0.999) ?? 10);
}

/** Powers of ten, and 2 and 5 times them while there is room.
 * @param {number} min @param {number} max */
export function logTicks(min, max) {
  if (!(min > 0 && max > min)) return [];
  const [low, high] = [Math.floor(Math.log10(min)), Math.ceil(Math.log10(max))];
  const each = Math.max(1, Math.ceil((high - low) / 6));
  const factors = high - low <= 2 ? [1, 2, 5] : [1];
  const made = [];
  for (let power = low; power <= high; power += each) made.push(...factors.map((factor) => Number((factor * 10 ** power).toPrecision(12))));
  return made.filter((tick) => tick >= min && tick <= max);
}

/** @param {number} x @param {Axis} axis @param {number} [span] that is seen @param {number} [more] digits */
function xText(x, axis, span = 0, more = 0) {
  if (axis === "time") return span > 4 * 86400 ? clock(x).slice(5, 10) : span > 600 ? clock(x).slice(-8, -3) : clock(x).slice(-8);
  if (axis === "elapsed") return x < 120 ? `${number(x, more)} s` : x < 7200 ? `${number(x / 60, more)} min` : `${number(x / 3600, more)} h`;
  return axis === "epoch" ? number(x, more) : Math.abs(x) >= 1e5 ? short(x, more) : number(x, more);
}

/** The place of one point. @param {number} x @param {Axis} axis */
export const placeText = (x, axis) => (axis === "step" ? count(x) : xText(x, axis, 0, 2));

/** @param {number[]} ticks @param {Axis} axis @param {number} span that is seen */
export const xTexts = (ticks, axis, span) => apart((more) => ticks.map((x) => xText(x, axis, span, more)));

/** @param {number[]} ticks */
export function yTexts(ticks) {
  const isLarge = Math.max(...ticks.map(Math.abs)) >= 1e5;
  return apart((more) => ticks.map((y) => (isLarge ? short(y, more) : number(y, more))));
}

/** With as many digits as it takes to tell ticks of a narrow range apart.
 * @param {(more: number) => string[]} texts */
function apart(texts) {
  let made = texts(0);
  for (let more = 1; more <= 8 && new Set(made).size < made.length; more++) made = texts(more);
  return made;
}
