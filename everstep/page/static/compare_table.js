// The table of a comparison: a row for each setting and value, a column for each job, and how each differs from a pinned
// baseline.

import { flatten, text } from "./configuration.js";
import { clock, number } from "./format.js";
import { html } from "./html.js";
import { go, jobAddress } from "./route.js";

/** @typedef {import("./compare.js").Compared} Compared */

const HYPERPARAMETERS = "hyperparameters.";

/** What is known of a job, by name: its hyperparameters first, then where it stands, then its settings.
 * @param {Compared} job @returns {Map<string, unknown>} */
export function factsOf({ summary, policy, config, values }) {
  const settings = flatten(config);
  /** @type {[string, unknown][]} */
  const rows = [
    ...settings.filter(([name]) => name.startsWith(HYPERPARAMETERS)),
    ["state", summary.state], ["step", summary.step], ["workers", summary.num_workers], ["deaths", summary.num_deaths], ["created", clock(summary.created_at)],
    ...values.flatMap((each) => /** @type {[string, unknown][]} */ ([[`${each.name} (last)`, each.last], [`${each.name} (min)`, each.least], [`${each.name} (max)`, each.most]])),
    ...settings.filter(([name]) => !name.startsWith(HYPERPARAMETERS)),
    ...flatten(policy).map(([name, value]) => /** @type {[string, unknown]} */ ([`policy.${name}`, value])),
  ];
  return new Map(rows);
}

/** The names of what to show: all, or only what is not the same in all.
 * @param {Map<string, unknown>[]} facts @param {boolean} isAll */
export function namesOf(facts, isAll) {
  const names = [...new Set(facts.flatMap((each) => [...each.keys()]))];
  return names.filter((name) => isAll || new Set(facts.map((each) => cellText(each.get(name)))).size > 1);
}

/** @param {unknown} value */
const cellText = (value) => (typeof value === "number" ? number(value) : text(value));

/** How a number differs from the baseline's: "+0.02 (+5%)". Empty where there is nothing to subtract.
 * @param {unknown} value @param {unknown} base */
export function difference(value, base) {
  if (typeof value !== "number" || typeof base !== "number" || !Number.isFinite(value - base)) return "";
  const by = value - base;
  if (by === 0) return "±0";
  const sign = by > 0 ? "+" : "";
  const share = base ? ` (${sign}${number(Number(((by / Math.abs(base)) * 100).toPrecision(2)))}%)` : "";
  return `${sign}${number(Number(by.toPrecision(4)))}${share}`;
}

/** @param {{jobs: Compared[], isAll: boolean, base: string}} props */
export function Differences({ jobs, isAll, base }) {
  const sorted = [...jobs].sort((a, b) => Number(b.summary.job === base) - Number(a.summary.job === base));
  const facts = sorted.map(factsOf);
  const rows = namesOf(facts, isAll);
  if (!rows.length) return html`<p class="quiet">${jobs.length > 1 ? "Nothing differs." : "Add another job to compare with: type its name above, or select its checkbox in the job list."}</p>`;
  const isPinned = sorted[0].summary.job === base;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Differences"><table class="tight compared">
    <thead><tr><th>Setting or value</th>${sorted.map(({ summary: { job } }) => html`<th key=${job} class=${job === base ? "base" : ""}><a href=${jobAddress(job)}>${job}</a> <${Pin} job=${job} base=${base} /></th>`)}</tr></thead>
    <tbody>${rows.map((name) => html`<tr key=${name}><th scope="row">${name}</th>${facts.map(
      (each, i) => html`<td key=${i} class=${isPinned && i === 0 ? "mono wrap base" : "mono wrap"}>${cellText(each.get(name))}${isPinned && i > 0 && html`<${Difference} value=${each.get(name)} base=${facts[0].get(name)} />`}</td>`,
    )}</tr>`)}</tbody>
  </table></div>`;
}

/** @param {{value: unknown, base: unknown}} props */
function Difference({ value, base }) {
  const told = difference(value, base);
  return told && html` <span class="difference">${told}</span>`;
}

/** @param {{job: string, base: string}} props */
function Pin({ job, base }) {
  const isBase = job === base;
  return html`<button class="plain" aria-pressed=${isBase} title=${isBase ? "The others are compared with this one" : "Compare the others with this one"} onClick=${() => go({ base: isBase ? "" : job, diff: "" }, { replace: true })}>${isBase ? "Baseline" : "Pin"}<span class="unseen">${isBase ? ` is ${job}` : ` ${job} as the baseline`}</span></button>`;
}
