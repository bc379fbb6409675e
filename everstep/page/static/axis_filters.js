// Filters by keyboard: a menu for each axis with its range or its choices, and all filters that are set in words.

import { html } from "./html.js";
import { onlyText } from "./scale.js";

/** @typedef {import("./trial_rows.js").Axis} Axis */
/** @typedef {import("./scale.js").Only} Only */

/** @param {{axes: Axis[], filters: Record<string, Only>, onFilter: (name: string, only: Only | null) => void}} props */
export function AxisFilters({ axes, filters, onFilter }) {
  return html`<div class="filters" role="group" aria-label="Keep trials by">
    ${axes.map(({ scale }) => {
      const only = filters[scale.name];
      return html`<details key=${scale.name} class="menu small">
        <summary class=${only ? "set" : ""}>${scale.name}${only && html`: ${onlyText(only)}`}</summary>
        <div class="card"><${Menu} scale=${scale} only=${only} onFilter=${onFilter} /></div>
      </details>`;
    })}
    ${Object.keys(filters).length > 0 && html`<button class="plain" onClick=${() => Object.keys(filters).forEach((name) => onFilter(name, null))}>Clear all</button>`}
  </div>`;
}

/** @param {{scale: import("./scale.js").Scale, only: Only | undefined, onFilter: (name: string, only: Only | null) => void}} props */
function Menu({ scale, only, onFilter }) {
  const listed = scale.kind === "choice" ? scale.choices : scale.odd;
  const isIn = (/** @type {string} */ each) => !only || Boolean(only.keys?.includes(each));
  const range = only ? only.range : /** @type {[number, number]} */ ([scale.low, scale.high]);
  const change = (/** @type {[number, number] | undefined} */ between, /** @type {string[]} */ keys) => {
    const isAll = keys.length === listed.length && (scale.kind === "choice" || (between && between[0] <= scale.low && between[1] >= scale.high));
    onFilter(scale.name, isAll ? null : { ...(between && scale.kind !== "choice" && { range: between }), ...(keys.length > 0 && { keys }) });
  };
  const keys = listed.filter(isIn);
  const end = (/** @type {0 | 1} */ index) => (/** @type {any} */ event) => {
    const given = Number(event.target.value);
    if (event.target.value.trim() === "" || !Number.isFinite(given)) return;
    const next = /** @type {[number, number]} */ ([...(range ?? [scale.low, scale.high])]);
    next[index] = given;
    change(next, keys);
  };
  return html`
    ${scale.kind !== "choice" && html`<label>From <input type="text" inputmode="decimal" value=${range ? String(range[0]) : ""} onChange=${end(0)} /></label>
      <label>To <input type="text" inputmode="decimal" value=${range ? String(range[1]) : ""} onChange=${end(1)} /></label>`}
    ${listed.map((each) => html`<label key=${each}><input type="checkbox" checked=${isIn(each)} onChange=${(/** @type {any} */ event) => change(range, event.target.checked ? [...keys, each] : keys.filter((other) => other !== each))} /> ${each}</label>`)}
    <button disabled=${!only} onClick=${() => onFilter(scale.name, null)}>All</button>`;
}
