// Workers and nodes as they are now.

import { count, plural } from "./format.js";
import { html } from "./html.js";
import { byName } from "./lanes.js";
import { StateWord, Empty, Waiting } from "./states.js";

const GONE = new Set(["dead", "lost", "left", "sent"]);

/** @param {{state: import("./job_state.js").JobState}} props */
export function Workers({ state }) {
  const workers = state.workers.value;
  const nodes = state.nodes.value;
  if (!workers) return html`<${Waiting} />`;
  if (!workers.length && !nodes.length) return html`<${Empty} title="No workers yet"><p>They appear here as their agents start them.</p><//>`;
  const sorted = [...workers].sort((a, b) => Number(GONE.has(a.status)) - Number(GONE.has(b.status)) || a.rank - b.rank || byName(a.worker, b.worker));
  const present = workers.filter((each) => !GONE.has(each.status)).length;
  return html`<div>
    <div class="section"><h2>Workers</h2><span class="quiet small">${plural(present, "worker")} now, ${count(workers.length - present)} gone</span></div>
    <div class="scroll" tabindex="0" role="region" aria-label="Workers">
      <table><thead><tr><th>Worker</th><th>Status</th><th class="number">Rank</th><th class="number">Step</th><th class="number">Generation</th><th>Node</th><th class="number">Process</th><th>Reason</th></tr></thead>
      <tbody>${sorted.map(
        (each) => html`<tr key=${each.worker}>
          <td class="name">${each.worker}${each.rank === 0 && html` <span class="state">leads</span>`}</td><td><${StateWord} state=${each.status} /></td>
          <td class="number">${each.rank >= 0 ? each.rank : "–"}</td><td class="number">${count(each.step)}</td><td class="number">${each.generation}</td>
          <td>${each.agent}</td><td class="number">${each.pid || "–"}</td><td class="wrap">${each.reason}</td>
        </tr>`,
      )}</tbody></table>
    </div>
    ${nodes.length > 0 && html`<div class="section"><h2>Nodes</h2><span class="quiet small">${plural(nodes.filter((each) => each.is_present).length, "node")} present</span></div>
    <div class="scroll" tabindex="0" role="region" aria-label="Nodes">
      <table><thead><tr><th>Node</th><th>Present</th><th class="number">Rank</th><th>Address</th><th class="number">Workers</th><th>Reason</th></tr></thead>
      <tbody>${nodes.map(
        (each) => html`<tr key=${each.agent}>
          <td class="name">${each.agent}</td><td>${each.is_present ? "yes" : "no"}</td><td class="number">${each.node_rank >= 0 ? each.node_rank : "–"}</td>
          <td class="mono">${each.address}</td><td class="number">${each.num_workers}</td><td class="wrap">${each.reason}</td>
        </tr>`,
      )}</tbody></table>
    </div>`}
  </div>`;
}
