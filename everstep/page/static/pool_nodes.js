// The nodes of a pool with their slots: who holds them, since when and why; and what people may do with a node.

import { useState } from "preact/hooks";
import { bytes, clock, count, duration, plural } from "./format.js";
import { html } from "./html.js";
import { jobAddress } from "./route.js";
import { agentState, holder, numBusy, places, stretches } from "./slots.js";
import { StateWord } from "./states.js";

const AT_ONCE = 50; // nodes

/** @param {{pool: string, agents: import("./slots.js").PoolAgent[], onChange: () => void}} props */
export function Nodes({ pool, agents, onChange }) {
  const [most, setMost] = useState(AT_ONCE);
  const now = Date.now() / 1000;
  return html`<div class="scroll nodes" tabindex="0" role="region" aria-label="Nodes and slots"><table>
      <thead><tr><th>Slot</th><th>Trial</th><th>Owner</th><th>Since</th><th>State</th><th>Reason</th></tr></thead>
      ${agents.slice(0, most).map((agent) => html`<${Node} key=${agent.agent} pool=${pool} agent=${agent} now=${now} onChange=${onChange} />`)}
    </table></div>
    ${agents.length > most && html`<p><button onClick=${() => setMost(most + 4 * AT_ONCE)}>Show more</button> <span class="quiet">${count(most)} of ${plural(agents.length, "node")} are shown.</span></p>`}`;
}

/** @param {{pool: string, agent: import("./slots.js").PoolAgent, now: number, onChange: () => void}} props */
function Node({ pool, agent, now, onChange }) {
  const state = agentState(agent);
  return html`<tbody>
    <tr class="node"><th scope="rowgroup" colspan="6"><div class="line">
      <span class="name">${agent.agent}</span><${StateWord} state=${state} />
      <span class="quiet">${count(numBusy(agent))} of ${plural(agent.slots.length, "slot")} in use</span>
      <span class="quiet" title=${environment(agent)}>${agent.kind}</span>
      ${(agent.state_reason || !agent.is_present) && html`<span class="wrap">${agent.state_reason || "Its agent has not reported lately."}</span>`}
    </div></th></tr>
    ${stretches(agent.slots).map((each) => html`<${SlotRow} key=${each.slot} stretch=${each} now=${now} />`)}
  </tbody>`;
}

/** @param {{stretch: import("./slots.js").Stretch, now: number}} props */
function SlotRow({ stretch, now }) {
  if (!stretch.assignment) return html`<tr><td class="number">${places(stretch)}</td><td class="quiet" colspan="5">free</td></tr>`;
  const name = holder(stretch);
  return html`<tr>
    <td class="number">${places(stretch)}</td><td><a href=${jobAddress(name)}>${name}</a></td><td>${stretch.owner || "–"}</td>
    <td title=${clock(stretch.since)}>${duration(now - stretch.since)}</td><td><${StateWord} state=${WORDS[stretch.state] ?? stretch.state} /></td><td class="wrap">${stretch.reason}</td>
  </tr>`;
}

/** Of an assignment. @type {Record<string, string>} */
const WORDS = { given: "in use", parking: "leaving", killing: "ending" };

/** @param {import("./slots.js").PoolAgent} agent */
function environment({ environment: it }) {
  const memory = it.slot_memory_bytes ? `${bytes(it.slot_memory_bytes)} and ${plural(it.slot_cpus, "CPU")} per slot` : "";
  return [it.image, it.python && `Python ${it.python}`, it.torch && `torch ${it.torch}`, memory].filter(Boolean).join(", ");
}
