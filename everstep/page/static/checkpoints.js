// Checkpoints that the job has reported, newest first.

import { useEffect } from "preact/hooks";
import { clock, count, number } from "./format.js";
import { html } from "./html.js";
import { listen } from "./live.js";
import { Empty, Waiting } from "./states.js";

const PAUSE_MS = 5000; // between fetches while the job goes on

/** @param {{state: import("./job_state.js").JobState}} props */
export function Checkpoints({ state }) {
  useEffect(() => {
    let fetched = Date.now();
    return listen("points", (data) => {
      if (data.job !== state.job || Date.now() - fetched < PAUSE_MS) return;
      fetched = Date.now();
      state.fetchAbout().catch(() => null);
    });
  }, [state]);
  const about = state.about.value;
  if (!about) return html`<${Waiting} />`;
  if (!about.checkpoints.length) return html`<${Empty} title="No checkpoints yet"><p>A Trainer reports each checkpoint that it saves. Those of other scripts are in the job's checkpoint folder.</p><//>`;
  const newest = [...about.checkpoints].sort((a, b) => b.time - a.time);
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Checkpoints">
    <table><thead><tr><th class="number">Step</th><th>Saved</th><th>UUID</th><th>Details</th></tr></thead>
    <tbody>${newest.map(
      (each) => html`<tr key=${each.uuid || each.step}><td class="number">${count(each.step)}</td><td>${clock(each.time)}</td><td class="mono">${each.uuid}</td><td class="wrap">${details(each.details)}</td></tr>`,
    )}</tbody></table>
  </div>`;
}

/** @param {Record<string, unknown>} facts */
function details(facts) {
  return Object.entries(facts ?? {})
    .filter(([name]) => name !== "uuid")
    .map(([name, value]) => `${name} ${typeof value === "number" ? number(value) : typeof value === "object" ? JSON.stringify(value) : value}`)
    .join(", ");
}
