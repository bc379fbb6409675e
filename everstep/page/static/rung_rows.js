// What a search compared at each rung: its numbers, and who continued. Pure.

import { isOn } from "./scale.js";

/** @typedef {"promoted" | "cut" | "finished" | "undecided" | "on its way" | "failed"} Outcome  finished: at the full length */
/** @typedef {{trial: number, metric: number | string | null, outcome: Outcome, cohort: number, place: number, compared: number, quota: number}} Entry  of a trial at a rung */
/** @typedef {{bracket: number, length: number, entries: Entry[]}} Rung  of all cohorts of a bracket */
/** @typedef {{results: number, promoted: number, cut: number, finished: number, undecided: number, coming: number, failed: number, worstPromoted: number | null, bestCut: number | null}} Summary */
/** @typedef {{length: number, quota: number, is_decided: boolean, trials: number[], metrics: (number | null)[], outcomes: string[], places: number[], compared: number[]}} RungView  of the protocol */
/** @typedef {{order: string, cohorts: {bracket: number, cohort: number, num_trials: number, rungs: RungView[]}[]}} RungsView */

export const NOT_FINITE = "not finite";

/** The rungs of each bracket, from the shortest, with the trials of all its cohorts.
 * @param {RungsView} view @returns {{bracket: number, numCohorts: number, rungs: Rung[]}[]} */
export function brackets({ cohorts }) {
  /** @type {Map<number, {numCohorts: number, rungs: Map<number, Rung>}>} */
  const made = new Map();
  for (const { bracket, cohort, rungs } of cohorts) {
    const known = made.get(bracket) ?? { numCohorts: 0, rungs: new Map() };
    made.set(bracket, known);
    known.numCohorts++;
    for (const each of rungs) {
      const rung = known.rungs.get(each.length) ?? { bracket, length: each.length, entries: [] };
      known.rungs.set(each.length, rung);
      rung.entries.push(...entries(each, cohort));
    }
  }
  const sorted = [...made].sort((a, b) => a[0] - b[0]);
  return sorted.map(([bracket, { numCohorts, rungs }]) => ({ bracket, numCohorts, rungs: [...rungs.values()].sort((a, b) => a.length - b.length) }));
}

/** @param {RungView} view @param {number} cohort @returns {Entry[]} */
function entries({ trials, metrics, outcomes, places, compared, quota }, cohort) {
  return trials.map((trial, i) => {
    const outcome = /** @type {Outcome} */ (outcomes[i]);
    const metric = metrics[i] ?? (hasResult(outcome) ? NOT_FINITE : null);
    return { trial, metric, outcome, cohort, place: places[i], compared: compared[i], quota };
  });
}

/** @param {Outcome} outcome */
const hasResult = (outcome) => outcome !== "on its way" && outcome !== "failed";

/** The comparison in words: by which numbers it was decided.
 * @param {Entry} entry */
export function comparison({ outcome, place, compared, quota }) {
  if (outcome === "finished") return "trained to the full length";
  if (outcome === "on its way") return "no result yet";
  if (outcome === "failed") return "ended without a result";
  if (!place) return "waits for the results of others";
  return `${ordinal(place)} of ${compared}; ${quota === 1 ? "the best continues" : quota ? `the best ${quota} continue` : "none continues"}`;
}

/** @param {number} place */
function ordinal(place) {
  const last = place % 100 > 10 && place % 100 < 14 ? 0 : place % 10;
  return `${place}${["th", "st", "nd", "rd"][last] ?? "th"}`;
}

/** The best first; what is no number last.
 * @param {Entry[]} entries @param {boolean} isSmallerBetter */
export function ranked(entries, isSmallerBetter) {
  const sign = isSmallerBetter ? 1 : -1;
  const value = (/** @type {Entry} */ { metric }) => (isOn("real", metric) ? metric : null);
  return [...entries].sort((a, b) => {
    const [left, right] = [value(a), value(b)];
    if (left === null || right === null) return Number(left === null) - Number(right === null) || a.trial - b.trial;
    return sign * (left - right) || a.trial - b.trial;
  });
}

/** @param {Rung} rung @param {boolean} isSmallerBetter @returns {Summary} */
export function summary({ entries }, isSmallerBetter) {
  const made = { results: 0, promoted: 0, cut: 0, finished: 0, undecided: 0, coming: 0, failed: 0 };
  let [worst, best] = [/** @type {number | null} */ (null), /** @type {number | null} */ (null)];
  const isBetter = (/** @type {number} */ a, /** @type {number} */ b) => (isSmallerBetter ? a < b : a > b);
  for (const { metric, outcome } of entries) {
    made[outcome === "on its way" ? "coming" : outcome]++;
    if (hasResult(outcome)) made.results++;
    if (!isOn("real", metric)) continue;
    if (outcome === "promoted" && (worst === null || isBetter(worst, metric))) worst = metric;
    if (outcome === "cut" && (best === null || isBetter(metric, best))) best = metric;
  }
  return { ...made, worstPromoted: worst, bestCut: best };
}
