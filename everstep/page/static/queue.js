// A pool's queue: the order of the experiments, the slots that each holds and should have, and why trials wait. Priority
// and weight are changed here.

import { useEffect, useState } from "preact/hooks";
import { mayChange, send } from "./api.js";
import { useFollowed } from "./fetched.js";
import { count, number, plural } from "./format.js";
import { html } from "./html.js";
import { color } from "./palette.js";
import { withPool, withQueue } from "./pool_news.js";
import { DEFAULT_POOL, Pools } from "./pools.js";
import { experimentAddress, jobAddress, poolAddress, queueAddress } from "./route.js";
import { Empty, Failed, StateWord, Waiting } from "./states.js";
import { isDark } from "./theme.js";

/** @typedef {{trial: number, position: number, reason: string}} QueuedTrial */
/** @typedef {{position: number, experiment: number, name: string, state: string, owner: string, priority: number, weight: number, num_running: number, num_waiting: number, num_held: number, num_wanted: number, num_share: number, reason: string, waiting: QueuedTrial[]}} Entry */

/** @param {{id: string, tab: string}} props */
export function View({ id }) {
  const name = id || DEFAULT_POOL;
  const { data, problem, renew } = useFollowed({ all: "/v1/pools", queue: `/v1/pools/${encodeURIComponent(name)}/queue` }, [`pools/${name}`, `queues/${name}`], {
    pool: (made, news) => ({ ...made, all: { pools: withPool(made.all.pools, news) } }),
    queue: (made, news) => ({ ...made, queue: withQueue(made.queue, news) }),
  });
  /** @type {import("./slots.js").PoolView[] | undefined} */
  const pools = data?.all.pools;
  const pool = pools?.find((each) => each.pool === name);
  useEffect(() => {
    document.title = `Queue ${pool?.pool ?? id} – Everstep`;
  }, [pool?.pool, id]);
  if (pools && !pool) return html`<${Empty} title="No such pool"><p>The coordinator has no pool “${id}”. <a href="/queue">Show all queues</a></p><//>`;
  if (!data || !pools || !pool) return problem ? html`<${Failed} problem=${problem} />` : html`<${Waiting} />`;
  /** @type {Entry[]} */
  const entries = data.queue.entries;
  return html`<div class="stack">
    <div class="head"><h1>Queue ${pool.pool}</h1><span class="quiet" aria-live="polite">${plural(data.queue.num_waiting, "trial")} waiting</span><a href=${poolAddress(pool.pool)}>Pool: ${count(pool.num_free)} of ${plural(pool.num_slots, "slot")} free</a></div>
    ${problem && html`<${Failed} problem=${problem} />`}
    <${Pools} pools=${pools} chosen=${pool.pool} address=${queueAddress} />
    ${entries.length ? html`<${Held} entries=${entries} pool=${pool} /><${Entries} entries=${entries} renew=${renew} />` : html`<${Empty} title="Nothing runs or waits"><p>Experiments appear here while they hold slots or wait for some:</p><code>everstep e create experiment.yaml . --coordinator URL</code><//>`}
  </div>`;
}

/** Who holds the pool's slots, as one bar.
 * @param {{entries: Entry[], pool: import("./slots.js").PoolView}} props */
function Held({ entries, pool }) {
  const dark = isDark.value;
  const holding = entries.filter((each) => each.num_held).sort((a, b) => b.num_held - a.num_held);
  const label = `${holding.map((each) => `Experiment ${each.experiment} holds ${plural(each.num_held, "slot")}`).join(", ") || "No slot is held"}; ${count(pool.num_free)} of ${count(pool.num_slots)} are free.`;
  return html`<div class="held" role="img" aria-label=${label}>
    ${holding.map((each, i) => html`<div key=${each.experiment} title=${`Experiment ${each.experiment}: ${plural(each.num_held, "slot")}`} style=${{ flexGrow: each.num_held, background: color(i, dark) }}></div>`)}
    ${pool.num_free > 0 && html`<div class="free" title=${`${count(pool.num_free)} free`} style=${{ flexGrow: pool.num_free }}></div>`}
  </div>
  ${holding.length > 0 && html`<ul class="key" aria-hidden="true">${holding.slice(0, 8).map(
    (each, i) => html`<li key=${each.experiment}><svg width="12" height="12"><rect width="12" height="12" rx="2" fill=${color(i, dark)} /></svg>${each.experiment} ${each.name} <span class="quiet">${count(each.num_held)}</span></li>`,
  )}${holding.length > 8 && html`<li class="quiet">and ${plural(holding.length - 8, "experiment")} more</li>`}</ul>`}`;
}

/** @param {{entries: Entry[], renew: () => Promise<void>}} props */
function Entries({ entries, renew }) {
  const [said, setSaid] = useState({ text: "", isGood: true });
  /** @type {Change} */
  const change = async (entry, setting, value) => {
    try {
      await send("POST", `/v1/experiments/${entry.experiment}/change`, { [setting]: value });
      setSaid({ text: `Experiment ${entry.experiment} has ${setting} ${number(value)} now.`, isGood: true });
    } catch (error) {
      setSaid({ text: `Experiment ${entry.experiment} still has ${setting} ${number(entry[setting])}. ${/** @type {Error} */ (error).message}`, isGood: false });
    }
    await renew();
  };
  return html`<p class=${said.text && !said.isGood ? "notice bad" : "quiet"} role="status" hidden=${!said.text}>${said.text}</p>
  <div class="scroll queue" tabindex="0" role="region" aria-label="Queue"><table>
    <thead><tr><th class="number">Place</th><th>Experiment</th><th>State</th><th>Owner</th><th class="number">Priority</th><th class="number">Weight</th>
      <th class="number"><span title="Slots that its trials hold">Holds</span></th><th class="number"><span title="Slots that it should have by priority, weight and use">Share</span></th><th class="number"><span title="Slots that its trials could use now">Wants</span></th>
      <th>Trials</th></tr></thead>
    ${entries.map((each) => html`<${Row} key=${each.experiment} entry=${each} change=${change} />`)}
  </table></div>
  <p class="quiet small">Smaller priorities go first. Among equal priorities, people share the slots first, and then each person's experiments by their weight.</p>`;
}

/** @typedef {(entry: Entry, setting: "priority" | "weight", value: number) => Promise<void>} Change */

/** @param {{entry: Entry, change: Change}} props */
function Row({ entry, change }) {
  return html`<tbody data-experiment=${entry.experiment}><tr>
    <td class="number">${entry.position || "–"}</td>
    <td class="name"><a href=${experimentAddress(entry.experiment)}>${entry.experiment} ${entry.name}</a></td><td><${StateWord} state=${entry.state} /></td><td>${entry.owner || "–"}</td>
    <td class="number"><${Setting} entry=${entry} setting="priority" min=${1} max=${99} step=${1} change=${change} /></td>
    <td class="number"><${Setting} entry=${entry} setting="weight" min=${1e-6} max=${1e6} step="any" change=${change} /></td>
    <td class="number">${count(entry.num_held)}</td><td class="number">${count(entry.num_share)}</td><td class="number">${count(entry.num_wanted)}</td>
    <td>${count(entry.num_running)} running, ${count(entry.num_waiting)} waiting</td>
  </tr>
  ${entry.num_waiting > 0 && html`<tr class="why"><td></td><td colspan="9"><div class="line">${entry.reason}${entry.num_waiting > 1 && html`<${WaitingTrials} entry=${entry} />`}</div></td></tr>`}
  </tbody>`;
}

/** A number that who may changes in its place: with Enter, or by leaving it.
 * @param {{entry: Entry, setting: "priority" | "weight", min: number, max: number, step: number | string, change: Change}} props */
function Setting({ entry, setting, min, max, step, change }) {
  const [typed, setTyped] = useState(/** @type {string | null} */ (null)); // null: nobody types
  if (!mayChange(entry.owner)) return number(entry[setting]);
  const save = async (/** @type {any} */ event) => {
    if (!event.target.reportValidity()) return; // the browser says what is wrong
    const value = Number(event.target.value);
    if (value !== entry[setting]) await change(entry, setting, value);
    setTyped(null);
  };
  return html`<input type="number" class=${setting === "weight" ? "wide" : ""} min=${min} max=${max} step=${step} required aria-label=${`${setting[0].toUpperCase()}${setting.slice(1)} of experiment ${entry.experiment}`}
    value=${typed ?? String(entry[setting])} onInput=${(/** @type {any} */ event) => setTyped(event.target.value)} onChange=${save} onBlur=${(/** @type {any} */ event) => (!event.target.validity.valid || typed === String(entry[setting])) && setTyped(null)} />`;
}

/** @param {{entry: Entry}} props */
function WaitingTrials({ entry }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details class="plain" onToggle=${(/** @type {any} */ event) => setOpen(event.target.open)}><summary>All ${plural(entry.num_waiting, "waiting trial")}</summary>
    ${isOpen && html`<ol class="reasons">${entry.waiting.map((each) => html`<li key=${each.trial} value=${each.position}><a href=${jobAddress(`e${entry.experiment}-t${each.trial}`)}>e${entry.experiment}-t${each.trial}</a> ${each.reason}</li>`)}</ol>`}
    ${isOpen && entry.num_waiting > entry.waiting.length && html`<p class="quiet">The first ${count(entry.waiting.length)} of ${plural(entry.num_waiting, "trial")}.</p>`}
  </details>`;
}
