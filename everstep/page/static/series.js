// One series of a job: its numbers, and what is drawn of it. Increments of the stream are added to what was fetched, so
// a plot follows its job without asking again; it asks again when a window has grown too long or has been overtaken.

import { signal } from "@preact/signals";
import { get, jobPath } from "./api.js";

const MOST_ENTRIES = 3000; // of a window that grows; then fetched anew
const COLUMNS = 1000;
const MOST_COLUMNS = 1500; // that the coordinator gives
const PAUSE_MS = 1000; // between fetches of a window that increments have overtaken
const RETRY_MS = 2000; // while the coordinator is away
const LISTS = ["first_steps", "first_times", "firsts", "last_steps", "last_times", "lasts", "least", "most", "counts", "nans", "infs", "negative_infs"];

/** @typedef {import("./curve.js").Window} Window */
/** @typedef {{series: number, name: string, count: number, first_step: number, last_step: number, last_time: number, last: number | string, least: number | null, most: number | null}} SeriesView */
/** @typedef {{series: number, name: string, count: number, cut: number | null, steps: number[], times: number[], values: (number | string)[], is_thinned: boolean}} Points */

export class Series {
  /** @param {string} job @param {SeriesView} view */
  constructor(job, view) {
    this.job = job;
    this.name = view.name;
    this.number = view.series;
    this.view = signal(view);
    /** @type {Window | null} all of it */
    this.whole = null;
    /** @type {Window | null} what is zoomed into */
    this.part = null;
    this.version = signal(0); // of what is drawn
    this.problem = signal("");
    this.isWanted = false; // by a plot: others are only counted
    this.columns = COLUMNS;
    /** @type {[number, number] | null} steps asked for */
    this.zoom = null;
    /** @type {Points[]} that came while a fetch was under way */
    this.waiting = [];
    /** @type {Points[] | null} that came while the part was being fetched */
    this.waitingForPart = null;
    this.isFetching = false;
    this.isStale = false; // fetched again as soon as a plot wants it
    this.isCut = false; // a rollback took points away: `least` and `most` are of those after it, until the list is read
    /** @type {any} */
    this.timer = null;
  }

  /** Be drawn, in about this many pixels.
   * @param {number} columns */
  want(columns) {
    this.columns = Math.max(50, Math.min(MOST_COLUMNS, Math.round(columns)));
    this.isWanted = true;
    if (!this.whole || this.isStale) this.fetch();
  }

  unwant() {
    this.isWanted = false;
  }

  /** The coordinator's list was read anew.
   * @param {SeriesView} view */
  renew(view) {
    const isSame = view.count === this.view.value.count && view.last_time === this.view.value.last_time;
    this.view.value = this.isCut ? { ...view, ...reach(view, [this.view.value.least, this.view.value.most]) } : view;
    this.isCut = false;
    if (!isSame) this.refetch(0);
  }

  /** Look at these steps only, or at all.
   * @param {[number, number] | null} steps */
  look(steps) {
    if (String(steps) === String(this.zoom)) return;
    this.zoom = steps;
    if (!steps) {
      this.part = this.waitingForPart = null;
      this.version.value++;
    } else if (this.isWanted) this.fetchPart();
  }

  /** What to draw now. */
  get shown() {
    return this.part ?? this.whole;
  }

  /** @param {number} pause_ms */
  refetch(pause_ms) {
    this.isStale = true;
    if (this.isFetching || !this.isWanted) return; // then when that is done, or when it is wanted
    this.timer ??= setTimeout(() => {
      this.timer = null;
      if (this.isWanted) this.fetch();
    }, pause_ms);
  }

  async fetch() {
    if (this.isFetching) return;
    clearTimeout(this.timer);
    this.timer = null;
    this.isFetching = true;
    this.isStale = false;
    /** @type {import("./api.js").Refused | null} */
    let refused = null;
    try {
      this.whole = await this.window({});
      this.problem.value = "";
    } catch (error) {
      refused = /** @type {import("./api.js").Refused} */ (error);
      if (!this.whole) this.problem.value = refused.message;
    }
    this.isFetching = false;
    const isOvertaken = this.isStale;
    const waiting = this.waiting;
    this.waiting = [];
    for (const points of waiting) this.put(points);
    this.version.value++;
    if (refused) return this.failed(refused);
    if (isOvertaken) this.refetch(PAUSE_MS);
    if (this.zoom) this.fetchPart();
  }

  /** What failed for now is tried again while a plot wants it; what is refused, when the plot is seen anew.
   * @param {import("./api.js").Refused} refused */
  failed(refused) {
    this.isStale = true;
    if (refused.isTemporary) this.refetch(RETRY_MS);
  }

  async fetchPart() {
    const zoom = this.zoom;
    if (!zoom) return;
    const waiting = /** @type {Points[]} */ ([]);
    this.waitingForPart = waiting;
    const part = await this.window({ start: zoom[0], stop: zoom[1] }).catch((error) => waiting === this.waitingForPart && this.failed(error));
    if (!part || waiting !== this.waitingForPart) return; // looked elsewhere meanwhile
    this.waitingForPart = null;
    for (const points of waiting) append(part, within(points, zoom));
    this.part = part;
    this.version.value++;
  }

  /** @param {Record<string, number>} range @returns {Promise<Window>} */
  window(range) {
    return get(`${jobPath(this.job)}/series/${this.number}`, { columns: this.columns, ...range });
  }

  /** New points from the stream.
   * @param {Points} points */
  add(points) {
    const last = points.steps.length - 1;
    const before = this.view.value;
    this.isCut ||= isCut(points);
    this.view.value = {
      ...before,
      ...(last >= 0 && { last: points.values[last], last_step: points.steps[last], last_time: points.times[last] }),
      ...reach(isCut(points) ? { least: null, most: null } : before, points.values),
      count: points.count,
    };
    if (this.isFetching) this.waiting.push(points);
    else if (this.whole) this.put(points);
  }

  /** @param {Points} points */
  put(points) {
    if (!this.whole) return;
    if (!this.isWanted) {
      this.whole = this.part = this.waitingForPart = null; // scrolled away: fetched again when it is back
      return;
    }
    const isFit = append(this.whole, points);
    this.waitingForPart?.push(points);
    if (this.part && this.zoom) append(this.part, within(points, this.zoom));
    if (!isFit || isCut(points) || points.is_thinned || this.whole.firsts.length > MOST_ENTRIES) this.refetch(PAUSE_MS);
    this.version.value++;
  }
}

/** @param {{cut?: number | null}} points */
export const isCut = (points) => points.cut !== null && points.cut !== undefined;

/** From the least to the most of what is known and these values; NaN and infinities, which are texts, do not count.
 * @param {{least: number | null, most: number | null}} known @param {(number | string | null)[]} values */
function reach({ least, most }, values) {
  const all = /** @type {number[]} */ ([least, most, ...values].filter((value) => typeof value === "number"));
  return all.length ? { least: Math.min(...all), most: Math.max(...all) } : { least, most };
}

/** The points of these that a zoomed window may get.
 * @param {Points} points @param {[number, number]} zoom @returns {Points} */
function within(points, [start, stop]) {
  const kept = points.steps.map((_, i) => i).filter((i) => points.steps[i] >= start && points.steps[i] < stop);
  if (kept.length === points.steps.length) return points;
  return { ...points, steps: kept.map((i) => points.steps[i]), times: kept.map((i) => points.times[i]), values: kept.map((i) => points.values[i]) };
}

/** Add points at the end of a window; false if they do not simply follow.
 * @param {Window} window changed
 * @param {{cut: number | null, steps: number[], times: number[], values: (number | string)[]}} points */
export function append(window, points) {
  let isFit = true;
  const lists = /** @type {Record<string, any[]>} */ (/** @type {unknown} */ (window));
  const drop = (/** @type {number} */ from) => LISTS.forEach((name) => lists[name]?.length && (lists[name].length = from));
  const cut = points.cut ?? Infinity;
  if (isCut(points)) {
    let end = window.firsts.length;
    while (end && window.first_steps[end - 1] >= cut) window.num_points -= window.counts[--end] ?? 1;
    if (end && (window.last_steps[end - 1] ?? -1) >= cut) isFit = false; // in the middle of a span
    drop(end);
  }
  points.steps.forEach((step, i) => {
    const at = window.firsts.length;
    const end = at ? window.last_steps[at - 1] ?? window.first_steps[at - 1] : -1;
    const [time, value] = [points.times[i], points.values[i]];
    if (step === end && (window.counts[at - 1] ?? 1) === 1) drop(at - 1);
    else if (step <= end) return void (isFit = false);
    else window.num_points++;
    window.first_steps.push(step);
    window.first_times.push(time);
    window.firsts.push(value);
    if (!window.counts.length) return;
    window.last_steps.push(step);
    window.last_times.push(time);
    window.lasts.push(value);
    window.least.push(typeof value === "number" ? value : null);
    window.most.push(typeof value === "number" ? value : null);
    window.counts.push(1);
    window.nans.push(Number(value === "nan"));
    window.infs.push(Number(value === "inf"));
    window.negative_infs.push(Number(value === "-inf"));
  });
  return isFit;
}
