// What became of a trial, from what the coordinator tells of it. Pure.

import { comparison } from "./rung_rows.js";

/** @typedef {{experiment: number, trial: number, trial_id: number, job: string, state: string, reason: string, hparams: Record<string, unknown>, seed: number, bracket: number, target: number | null, length: number, latest: number | string | null, best: number | string | null, best_length: number, num_restarts: number, num_slots: number, best_checkpoint: string, latest_checkpoint: string, batches: number, created_at: number, started_at: number | null, ended_at: number | null, kind: string}} Trial */
/** @typedef {{length: number, metric: number | string, batches: number, digest: string, is_planned: boolean}} Result */
/** @typedef {{length: number, quota: number, is_decided: boolean, trials: number[], metrics: (number | null)[], outcomes: string[], places: number[], compared: number[]}} Rung */
/** @typedef {{length: number | null, metric: number | string | null, decision: string, compared: string}} Stage */

const OVER = new Set(["COMPLETED", "CANCELED", "ERROR"]);

/** @param {{state: string}} trial */
export const isOver = ({ state }) => OVER.has(state);

/** The lengths that the search gave a trial, what it reached there, and what was decided.
 * @param {Trial} trial @param {Result[]} results @param {(number | null)[]} targets @param {{rungs: Rung[]}[]} cohorts
 * @returns {Stage[]} */
export function stages(trial, results, targets, cohorts) {
  const rungs = cohorts.flatMap((each) => each.rungs).filter((each) => each.trials.includes(trial.trial));
  return targets.map((length, i) => {
    const result = results.find((each) => each.length === length);
    const rung = rungs.find((each) => each.length === length);
    return { length, metric: result?.metric ?? null, decision: decision(trial, targets[i + 1], i + 1 < targets.length, Boolean(result)), compared: rung ? sentence(rung, trial.trial) : "" };
  });
}

/** By which numbers a trial continued or was cut at a rung.
 * @param {Rung} rung @param {number} trial */
function sentence({ outcomes, places, compared, quota, trials }, trial) {
  const at = trials.indexOf(trial);
  return comparison({ trial, metric: null, cohort: 0, outcome: /** @type {any} */ (outcomes[at]), place: places[at], compared: compared[at], quota });
}

/** @param {Trial} trial @param {number | null | undefined} next @param {boolean} hasNext @param {boolean} isReached */
function decision(trial, next, hasNext, isReached) {
  if (hasNext) return next === null ? "continued to the end of its script" : `continued to ${next}`;
  if (isOver(trial)) return isReached ? `over: ${trial.reason}` : `not reached: ${trial.reason}`;
  if (trial.state === "WAITING") return "reached; waits for the search to decide";
  return trial.state === "RUNNING" ? "trains to it now" : trial.reason;
}

/** "1 → 3 → 2 workers": how a trial grew and shrank.
 * @param {{size: number}[]} sizes in order @param {number} most */
export function sizesText(sizes, most = 12) {
  const changes = sizes.map((each) => each.size).filter((size, i, all) => size !== all[i - 1]);
  if (!changes.length) return "";
  const shown = changes.slice(-most);
  return `${changes.length > most ? "… → " : ""}${shown.join(" → ")} ${shown.at(-1) === 1 ? "worker" : "workers"}`;
}
