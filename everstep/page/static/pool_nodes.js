// The nodes of a pool with their slots: who holds them, since when and why; and what people may do with a node.

import { useState } from "preact/hooks";
import { mayChange, send } from "./api.js";
import { bytes, clock, count, duration, plural } from "./format.js";
import { html } from "./html.js";
import { jobAddress } from "./route.js";
import { agentState, holder, numBusy, places, stretches, why } from "./slots.js";
import { StateWord } from "./states.js";

const AT_ONCE = 50; // nodes

/** @param {{pool: string, agents: import("./slots.js").PoolAgent[], renew: () => Promise<void>}} props */
export function Nodes({ pool, agents, renew }) {
  const [most, setMost] = useState(AT_ONCE);
  const now = Date.now() / 1000;
  return html`<div class="scroll nodes" tabindex="0" role="region" aria-label="Nodes and slots"><table>
      <thead><tr><th>Slot</th><th>Trial</th><th>Owner</th><th>Since</th><th>State</th><th>Reason</th></tr></thead>
      ${agents.slice(0, most).map((agent) => html`<${Node} key=${agent.agent} pool=${pool} agent=${agent} now=${now} renew=${renew} />`)}
    </table></div>
    ${agents.length > most && html`<p><button onClick=${() => setMost(most + 4 * AT_ONCE)}>Show more</button> <span class="quiet">${count(most)} of ${plural(agents.length, "node")} are shown.</span></p>`}`;
}

/** @param {{pool: string, agent: import("./slots.js").PoolAgent, now: number, renew: () => Promise<void>}} props */
function Node({ pool, agent, now, renew }) {
  const state = agentState(agent);
  const [isChanging, setChanging] = useState(false);
  const hasButtons = mayChange();
  return html`<tbody>
    <tr class="node"><th scope="rowgroup" colspan="6"><div class="line">
      <span class="name">${agent.agent}</span><${StateWord} state=${state} />
      <span class="quiet">${count(numBusy(agent))} of ${plural(agent.slots.length, "slot")} in use</span>
      <span class="quiet" title=${environment(agent)}>${agent.kind}</span>
      ${hasButtons && html`<button class="plain" aria-expanded=${isChanging} onClick=${() => setChanging(!isChanging)}>Change<span class="unseen"> ${agent.agent}</span></button>`}
      ${(agent.state_reason || !agent.is_present) && html`<span class="wrap">${agent.state_reason || "Its agent has not reported lately."}</span>`}
    </div>${hasButtons && isChanging && html`<${AgentForm} pool=${pool} agent=${agent} onDone=${() => (setChanging(false), renew())} />`}</th></tr>
    ${stretches(agent.slots).map((each) => html`<${SlotRow} key=${each.slot} stretch=${each} now=${now} />`)}
  </tbody>`;
}

/** @param {{stretch: import("./slots.js").Stretch, now: number}} props */
function SlotRow({ stretch, now }) {
  if (!stretch.assignment) return html`<tr><td>${places(stretch)}</td><td class="quiet" colspan="5">free</td></tr>`;
  const name = holder(stretch);
  return html`<tr>
    <td>${places(stretch)}</td><td><a href=${jobAddress(name)}>${name}</a></td><td>${stretch.owner || "–"}</td>
    <td title=${clock(stretch.since)}>${duration(now - stretch.since)}</td><td><${StateWord} state=${WORDS[stretch.state] ?? stretch.state} /></td><td class="wrap">${why(stretch)}</td>
  </tr>`;
}

/** What each state means for the trials of a node. @type {Record<string, {verb: string, meaning: string}>} */
const CHANGES = {
  enabled: { verb: "Enable", meaning: "It gets trials again." },
  draining: { verb: "Drain", meaning: "Its trials save, leave and continue on other slots. It gets no new ones." },
  disabled: { verb: "Disable", meaning: "Its trials stay until they end. It gets no new ones." },
};

/** @param {{pool: string, agent: import("./slots.js").PoolAgent, onDone: () => void}} props */
function AgentForm({ pool, agent, onDone }) {
  const [reason, setReason] = useState("");
  const [problem, setProblem] = useState("");
  const [isBusy, setBusy] = useState(false);
  const put = async (/** @type {string} */ state) => {
    setBusy(true);
    await send("POST", `/v1/pools/${encodeURIComponent(pool)}/agents`, { state, agents: [agent.agent], reason }).then(onDone, (error) => setProblem(error.message));
    setBusy(false);
  };
  return html`<div class="line form" role="group" aria-label=${`Change ${agent.agent}`}>
    <label class="field">Reason <input type="text" maxlength="2000" placeholder="for others to read" value=${reason} onInput=${(/** @type {any} */ event) => setReason(event.target.value)} /></label>
    ${Object.entries(CHANGES).map(([state, { verb, meaning }]) => state !== agent.state && html`<button key=${state} disabled=${isBusy} title=${meaning} onClick=${() => put(state)}>${verb}</button>`)}
    <span class="quiet small">${Object.entries(CHANGES).filter(([state]) => state !== agent.state).map(([, { verb, meaning }]) => `${verb}: ${meaning}`).join(" ")}</span>
    ${problem && html`<p class="notice bad" role="alert">${problem}</p>`}
  </div>`;
}

/** Of an assignment. @type {Record<string, string>} */
const WORDS = { given: "in use", parking: "leaving", killing: "ending" };

/** @param {import("./slots.js").PoolAgent} agent */
function environment({ environment: it }) {
  const memory = it.slot_memory_bytes ? `${bytes(it.slot_memory_bytes)} and ${plural(it.slot_cpus, "CPU")} per slot` : "";
  return [it.image, it.python && `Python ${it.python}`, it.torch && `torch ${it.torch}`, memory].filter(Boolean).join(", ");
}
