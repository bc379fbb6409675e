// From the marks of a job to the lanes of its workers: who was in which generation, from where to where. Pure.

/** @typedef {import("./job_state.js").Mark} Mark */
/** @typedef {{from: number, to: number, generation: number, isLead: boolean}} Stretch */
/** @typedef {{worker: string, stretches: Stretch[]}} Lane */

/** What is drawn as a mark; the rest shows as the ends of stretches. */
export const SHOWN = new Set(["died", "joined", "left", "leads", "restarted", "stopped", "finished"]);

/** @param {Mark[]} marks @param {(mark: Mark) => number} place @param {number} end of the axis, for those still there
 * @returns {{lanes: Lane[], sizes: {x: number, size: number}[], starts: number[]}} */
export function lanes(marks, place, end) {
  /** @type {Map<string, Lane>} */
  const all = new Map();
  /** @type {Map<string, Stretch>} */
  const open = new Map();
  /** @type {Set<string>} */
  let members = new Set();
  /** @type {{x: number, size: number}[]} */
  const sizes = [];
  /** @type {number[]} */
  const starts = [];
  const finish = (/** @type {string} */ worker, /** @type {number} */ x) => {
    const stretch = open.get(worker);
    if (stretch) stretch.to = Math.max(x, stretch.from);
    open.delete(worker);
  };
  const finishAll = (/** @type {number} */ x) => [...open.keys()].forEach((worker) => finish(worker, x));
  const begin = (/** @type {string} */ worker, /** @type {number} */ x, /** @type {number} */ generation, /** @type {boolean} */ isLead) => {
    const lane = all.get(worker) ?? { worker, stretches: [] };
    all.set(worker, lane);
    const stretch = { from: x, to: end, generation, isLead };
    lane.stretches.push(stretch);
    open.set(worker, stretch);
  };
  for (const mark of marks) {
    const x = place(mark);
    if (mark.kind === "formed") {
      finishAll(x);
      for (const worker of mark.parted) members.delete(worker);
      for (const worker of mark.joined) members.add(worker);
      for (const worker of members) begin(worker, x, mark.generation, worker === mark.worker);
      sizes.push({ x, size: mark.size });
      starts.push(x);
    } else if (mark.kind === "died" || mark.kind === "left") {
      finish(mark.worker, x);
      members.delete(mark.worker);
      if (!all.has(mark.worker)) all.set(mark.worker, { worker: mark.worker, stretches: [] });
      if (sizes.length) sizes.push({ x, size: members.size });
    } else if (mark.kind === "leads") {
      const stretch = open.get(mark.worker);
      if (stretch) stretch.isLead = true;
    } else if (mark.kind === "restarted" || mark.kind === "stopped" || mark.kind === "finished") {
      finishAll(x);
      members = new Set();
      if (sizes.length) sizes.push({ x, size: 0 });
    }
  }
  return { lanes: [...all.values()].sort((a, b) => byName(a.worker, b.worker)), sizes, starts };
}

/** w2 before w10.
 * @param {string} a @param {string} b */
export const byName = (a, b) => a.localeCompare(b, "en", { numeric: true });
