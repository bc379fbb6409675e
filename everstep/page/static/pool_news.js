// What the stream tells of pools and queues, added to what was loaded. Pure.

/** @typedef {import("./slots.js").PoolView} PoolView */
/** @typedef {import("./queue.js").Entry} Entry */
/** @typedef {{entries: Entry[], num_waiting: number}} Queue */

/** @param {PoolView[]} pools @param {Omit<PoolView, "agents"> & {agents: PoolView["agents"], gone: string[]}} news those agents that changed
 * @returns {PoolView[]} */
export function withPool(pools, { agents, gone, ...counts }) {
  return pools.map((pool) => {
    if (pool.pool !== counts.pool) return pool;
    const changed = new Map(agents.map((each) => [each.agent, each]));
    const kept = pool.agents.filter((each) => !changed.has(each.agent) && !gone.includes(each.agent));
    return { ...pool, ...counts, agents: [...kept, ...agents].sort((a, b) => (a.agent < b.agent ? -1 : 1)) };
  });
}

/** @param {Queue} queue @param {{order: number[], num_waiting: number, entries: Entry[]}} news
 * @returns {Queue} */
export function withQueue(queue, { order, num_waiting, entries }) {
  const known = new Map([...queue.entries, ...entries].map((each) => [each.experiment, each]));
  return { ...queue, num_waiting, entries: order.flatMap((number) => known.get(number) ?? []) };
}
