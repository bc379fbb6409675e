// From the slots of a node to rows that people read: neighbors with the same trial are one. Pure.

/** @typedef {{slot: number, assignment: number, experiment: number, trial: number, since: number, owner: string, state: string, reason: string}} Slot */
/** @typedef {{agent: string, kind: string, is_present: boolean, slots: Slot[], state: string, state_reason: string, environment: {image: string, python: string, torch: string, slot_memory_bytes: number, slot_cpus: number}}} PoolAgent */
/** @typedef {{platform: string, min_nodes: number, max_nodes: number, num_nodes: number, num_joining: number, reason: string}} PoolNodes */
/** @typedef {{pool: string, agents: PoolAgent[], num_slots: number, num_free: number, num_queued: number, num_wanted: number, nodes: PoolNodes | null}} PoolView */
/** @typedef {Slot & {last: number}} Stretch  from `slot` to `last` */

const MOMENT_S = 1; // slots given within it were given together

/** The trial that has a slot, by its name.
 * @param {{experiment: number, trial: number}} slot */
export const holder = ({ experiment, trial }) => `e${experiment}-t${trial}`;

/** @param {Slot[]} slots @returns {Stretch[]} */
export function stretches(slots) {
  /** @type {Stretch[]} */
  const made = [];
  for (const slot of slots) {
    const before = made.at(-1);
    if (before && isAlike(before, slot)) before.last = slot.slot;
    else made.push({ ...slot, last: slot.slot });
  }
  return made;
}

/** @param {Stretch} a @param {Slot} b */
function isAlike(a, b) {
  if (!a.assignment || !b.assignment) return !a.assignment && !b.assignment;
  return a.experiment === b.experiment && a.trial === b.trial && a.state === b.state && why(a) === why(b) && Math.abs(a.since - b.since) < MOMENT_S;
}

/** The reason without the slot and the node, which are in the row already.
 * @param {Slot} slot */
export const why = ({ slot, reason }) => (reason.startsWith(`slot ${slot} of `) && reason.endsWith(" was free") ? "was free" : reason);

/** "3", or "0 to 3".
 * @param {Stretch} stretch */
export const places = ({ slot, last }) => (slot === last ? String(slot) : `${slot} to ${last}`);

/** What a node is doing, in a word.
 * @param {PoolAgent} agent */
export const agentState = (agent) => (agent.is_present ? agent.state : "absent");

/** @param {PoolAgent} agent */
export const numBusy = (agent) => agent.slots.filter((slot) => slot.assignment).length;

/** Whether a node, or what runs on it, has this text.
 * @param {PoolAgent} agent @param {string} text */
export function isFound(agent, text) {
  const part = text.trim().toLowerCase();
  if (!part) return true;
  const texts = [agent.agent, agent.kind, agentState(agent), agent.state_reason, ...agent.slots.flatMap((slot) => (slot.assignment ? [holder(slot), slot.owner] : []))];
  return texts.some((each) => each.toLowerCase().includes(part));
}
