// What people write on a model or a version: labels, metadata and notes; shown, and changed in a dialog.

import { flatten, text } from "./configuration.js";
import { number } from "./format.js";
import { html } from "./html.js";
import { Markdown } from "./markdown.js";

/** @typedef {{name: string, labels: string[], metadata: Record<string, unknown>, notes: string}} Written */

/** @param {{labels: string[]}} props */
export const Labels = ({ labels }) => html`<span class="labels">${labels.map((each) => html`<span key=${each} class="state">${each}</span> `)}</span>`;

/** @param {{written: Written, label: string}} props */
export function WrittenText({ written, label }) {
  const rows = flatten(written.metadata);
  return html`${written.notes && html`<${Markdown} source=${written.notes} />`}
    ${rows.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table class="tight">
      <thead><tr><th>Metadata</th><th>Value</th></tr></thead>
      <tbody>${rows.map(([name, value]) => html`<tr key=${name}><td>${name}</td><td class="mono wrap">${typeof value === "number" ? number(value) : text(value)}</td></tr>`)}</tbody></table></div>`}`;
}

/** The fields of a dialog that both have.
 * @param {{written: Written, children?: any}} props */
export function WrittenFields({ written, children }) {
  return html`${children}
    <label>Labels <input type="text" name="labels" value=${written.labels.join(", ")} placeholder="with commas between them" /></label>
    <label>Notes, in Markdown <textarea name="notes" rows="6">${written.notes}</textarea></label>
    <label>Metadata, as JSON <textarea class="mono" name="metadata" rows="6" spellcheck="false">${JSON.stringify(written.metadata, null, 2)}</textarea></label>`;
}

/** @param {string} typed */
export const labelsOf = (typed) => [...new Set(typed.split(",").map((each) => each.trim()).filter(Boolean))];

/** What to set and what to remove, so that the metadata are as they were typed.
 * @param {Record<string, unknown>} before @param {string} typed */
export function metadataChange(before, typed) {
  let after;
  try {
    after = JSON.parse(typed.trim() || "{}");
  } catch (error) {
    throw new Error(`The metadata are not JSON: ${/** @type {Error} */ (error).message}`);
  }
  if (after === null || typeof after !== "object" || Array.isArray(after)) throw new Error('The metadata are names with values, such as {"stage": "production"}.');
  const isSame = (/** @type {string} */ name) => JSON.stringify(before[name]) === JSON.stringify(after[name]);
  return {
    set_metadata: Object.fromEntries(Object.entries(after).filter(([name]) => !isSame(name))),
    remove_metadata: Object.keys(before).filter((name) => !(name in after)),
  };
}
