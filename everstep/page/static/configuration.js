// What the job was started with: its configuration and its policy, as names and values.

import { html } from "./html.js";
import { Empty, Waiting } from "./states.js";

/** @param {{state: import("./job_state.js").JobState}} props */
export function Configuration({ state }) {
  const about = state.about.value;
  if (!about) return html`<${Waiting} />`;
  const [config, policy] = [flatten(about.config), flatten(about.policy)];
  if (!config.length && !policy.length) return html`<${Empty} title="No configuration"><p>This job was created without one.</p><//>`;
  return html`<div>${config.length > 0 && html`<div class="section"><h2>Job</h2></div><${Names} rows=${config} label="Configuration of the job" />`}
    ${policy.length > 0 && html`<div class="section"><h2>Policy</h2></div><${Names} rows=${policy} label="Policy of the job" />`}</div>`;
}

/** @param {{rows: [string, unknown][], label: string}} props */
export function Names({ rows, label }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table class="tight">
    <thead><tr><th>Setting</th><th>Value</th></tr></thead>
    <tbody>${rows.map(([name, value]) => html`<tr key=${name}><td>${name}</td><td class="wrap mono">${text(value)}</td></tr>`)}</tbody>
  </table></div>`;
}

/** @param {unknown} value */
export const text = (value) => (value === null || value === undefined ? "–" : typeof value === "string" ? value : JSON.stringify(value));

/** Nested names joined with dots.
 * @param {unknown} value @param {string} [prefix] @returns {[string, unknown][]} */
export function flatten(value, prefix = "") {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return prefix ? [[prefix, value]] : [];
  return Object.entries(value).flatMap(([name, each]) => flatten(each, prefix ? `${prefix}.${name}` : name));
}
