// A pool: its nodes and slots, who holds each slot and since when, and how much people have used.

import { useEffect } from "preact/hooks";
import { Bar } from "./bar.js";
import { useFollowed } from "./fetched.js";
import { count, plural } from "./format.js";
import { html } from "./html.js";
import { Nodes } from "./pool_nodes.js";
import { withPool } from "./pool_news.js";
import { DEFAULT_POOL, Pools } from "./pools.js";
import { go, poolAddress, query, queueAddress } from "./route.js";
import { agentState, isFound, numBusy } from "./slots.js";
import { Empty, Failed, Waiting } from "./states.js";
import { UseChart } from "./use_chart.js";

const STATES = ["enabled", "draining", "disabled", "absent"];

/** @param {{id: string, tab: string}} props */
export function View({ id }) {
  const name = id || DEFAULT_POOL;
  const { data, problem, renew } = useFollowed({ all: "/v1/pools" }, [`pools/${name}`], {
    pool: (made, news) => ({ ...made, all: { pools: withPool(made.all.pools, news) } }),
  });
  /** @type {import("./slots.js").PoolView[] | undefined} */
  const pools = data?.all.pools;
  const pool = pools?.find((each) => each.pool === name);
  useEffect(() => {
    document.title = `Pool ${pool?.pool ?? id} – Everstep`;
  }, [pool?.pool, id]);
  if (!pools) return problem ? html`<${Failed} problem=${problem} />` : html`<${Waiting} />`;
  if (!pool) return html`<${Empty} title="No such pool"><p>The coordinator has no pool “${id}”. <a href="/pools">Show all pools</a></p><//>`;
  return html`<div class="stack">
    <div class="head"><h1>Pool ${pool.pool}</h1><a href=${queueAddress(pool.pool)}>Queue${pool.num_queued > 0 && `: ${plural(pool.num_queued, "trial")} waiting`}</a></div>
    ${problem && html`<${Failed} problem=${problem} />`}
    <${Pools} pools=${pools} chosen=${pool.pool} address=${poolAddress} />
    <${Facts} pool=${pool} />
    <${Members} pool=${pool} renew=${renew} />
    <${UseChart} key=${pool.pool} pool=${pool.pool} />
  </div>`;
}

/** @param {{pool: import("./slots.js").PoolView}} props */
function Facts({ pool }) {
  const present = pool.agents.filter((each) => each.is_present);
  const busy = present.reduce((sum, each) => sum + numBusy(each), 0);
  const facts = [
    ["Slots", count(pool.num_slots)],
    ["In use", count(busy)],
    ["Free", count(pool.num_free)],
    ["Wanted", count(pool.num_wanted)],
    ["Trials waiting", count(pool.num_queued)],
    ["Nodes", pool.agents.length === present.length ? count(present.length) : `${count(present.length)} of ${count(pool.agents.length)} present`],
  ];
  const { nodes } = pool;
  return html`<dl class="facts">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    ${nodes && html`<p class="quiet">Nodes come from ${nodes.platform}: ${count(nodes.num_nodes)} of at most ${count(nodes.max_nodes)}${nodes.num_joining > 0 && `, ${count(nodes.num_joining)} on the way`}. ${nodes.reason}</p>`}`;
}

/** @param {{pool: import("./slots.js").PoolView, renew: () => Promise<void>}} props */
function Members({ pool, renew }) {
  if (!pool.agents.length) {
    return html`<${Empty} title="No nodes yet"><p>Trials of this pool wait until a machine offers its slots. Run this on one:</p>
      <code>everstep pool join ${pool.pool === "default" ? "" : `${pool.pool} `}--coordinator URL --token-file FILE</code><//>`;
  }
  const find = query.value.get("find") ?? "";
  const state = query.value.get("state") ?? "";
  const found = pool.agents.filter((each) => (!state || agentState(each) === state) && isFound(each, find));
  return html`<${Bar} label="Which nodes" changed=${Number(Boolean(state))} first=${html`<input type="search" class="grow" placeholder="Find nodes, people and trials" aria-label="Find nodes" value=${find}
      onInput=${(/** @type {any} */ event) => go({ find: event.target.value }, { replace: true })} />`}>
      <label>State <select value=${state} onChange=${(/** @type {any} */ event) => go({ state: event.target.value }, { replace: true })}>
        <option value="">all</option>${STATES.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>
      <span class="quiet small" aria-live="polite">${found.length === pool.agents.length ? plural(found.length, "node") : `${count(found.length)} of ${plural(pool.agents.length, "node")}`}</span>
    <//>
    ${found.length ? html`<${Nodes} pool=${pool.pool} agents=${found} renew=${renew} />` : html`<${Empty} title="No node matches"><p>Change the search or the state, or <a href=${poolAddress(pool.pool)}>show all nodes</a>.</p><//>`}`;
}
