// All trials of an experiment: a table of any length that is sorted and filtered here, at once. What is asked for stands
// in the address.

import { useMemo } from "preact/hooks";
import { AxisFilters } from "./axis_filters.js";
import { Bar } from "./bar.js";
import { clock, count, duration, plural } from "./format.js";
import { html } from "./html.js";
import { address, go, query } from "./route.js";
import { key, readOnly, valueText, writeOnly } from "./scale.js";
import { Search } from "./search_box.js";
import { Empty, StateWord } from "./states.js";
import { kept, sorted } from "./trial_rows.js";
import { VirtualTable } from "./virtual_rows.js";

/** @typedef {import("./trial_rows.js").Row} Row */
/** @typedef {import("./trial_rows.js").Axis} Axis */
/** @typedef {{name: string, title: string, isNumber: boolean, isOptional?: boolean, of: (row: Row) => unknown, show?: (row: Row) => any}} Column */

const ROW_PX = 40;

/** @param {{name: string, metric: string, unit: string, hparams: string[], at: number | null, trialHref: (trial: number) => string | undefined}} about @returns {Column[]} */
function columnsOf({ metric, unit, hparams, at, trialHref }) {
  const plain = (/** @type {keyof Row} */ name) => (/** @type {Row} */ row) => row[name];
  return [
    { name: "trial", title: "Trial", isNumber: false, of: plain("trial"), show: (row) => html`<a href=${trialHref(row.trial)}>${row.trial}</a>` },
    { name: "state", title: "State", isNumber: false, of: plain("state"), show: (row) => html`<${StateWord} state=${row.state} />` },
    { name: "best", title: `Best ${metric}`, isNumber: true, of: plain("best"), show: (row) => html`<span title=${`at ${count(row.best_length)} ${unit}`}>${valueText(row.best)}</span>` },
    { name: "last", title: "Last", isNumber: true, of: plain("latest") },
    ...(at === null ? [] : [{ name: "at", title: `At ${count(at)} ${unit}`, isNumber: true, of: plain("at") }]),
    { name: "length", title: unit[0].toUpperCase() + unit.slice(1), isNumber: true, of: plain("length"), show: (row) => count(row.length) },
    ...hparams.map((name) => ({ name: `hp.${name}`, title: name, isNumber: true, of: (/** @type {Row} */ row) => row.hparams[name] })),
    { name: "num_slots", title: "Slots", isNumber: true, isOptional: true, of: plain("num_slots") },
    { name: "num_restarts", title: "Restarts", isNumber: true, isOptional: true, of: plain("num_restarts") },
    { name: "bracket", title: "Bracket", isNumber: true, isOptional: true, of: (row) => row.bracket + 1 },
    { name: "started_at", title: "Started", isNumber: false, isOptional: true, of: plain("started_at"), show: (row) => clock(row.started_at ?? 0) },
    { name: "duration", title: "Duration", isNumber: true, isOptional: true, of: (row) => (row.started_at ? (row.ended_at ?? Date.now() / 1000) - row.started_at : null), show: (row) => (row.started_at ? duration((row.ended_at ?? Date.now() / 1000) - row.started_at) : "–") },
    { name: "reason", title: "Reason", isNumber: false, of: plain("reason"), show: (row) => html`<span class="cut" title=${row.reason}>${row.reason}</span>` },
  ];
}

/** @param {{experiment: number, rows: Row[], axes: Axis[], metric: string, unit: string, isSmallerBetter: boolean, hparams: string[], at: number | null, onAt: (at: number | null) => void, trialHref: (trial: number) => string | undefined}} props
 * axes: what one may filter by */
export function Trials({ experiment, rows, axes, metric, unit, isSmallerBetter, hparams, at, onAt, trialHref }) {
  const asked = query.value;
  const sort = asked.get("sort") ?? "best";
  const isUp = asked.has("sort") ? asked.has("up") : isSmallerBetter;
  const [state, find, written] = [asked.get("state") ?? "", asked.get("find") ?? "", asked.get("only")];
  const filters = useMemo(() => readOnly(written), [written]);
  const columns = useMemo(() => columnsOf({ name: "", metric, unit, hparams, at, trialHref }), [metric, unit, hparams, at, trialHref]);
  const usual = columns.filter((each) => !each.isOptional && (innerWidth > 640 || ["trial", "state", "best", "at"].includes(each.name) || each.name.startsWith("hp."))).map((each) => each.name);
  const names = asked.get("columns") ? readNames(asked.get("columns") ?? "") : usual;
  const shown = columns.filter((each) => each.name === "trial" || each.name === "at" || names.includes(each.name));
  const named = useMemo(() => new Map(axes.map((each) => [each.scale.name, each])), [axes]);
  const found = useMemo(() => kept(rows, named, filters, { state, find }), [rows, named, filters, state, find]);
  const column = columns.find((each) => each.name === sort) ?? columns[2];
  const order = useMemo(() => sorted(found, column.of, isUp), [found, column, isUp]);
  const states = useMemo(() => [...new Set(rows.map((row) => row.state))].sort(), [rows]);
  const isFiltered = Boolean(state || find || Object.keys(filters).length);
  const chosen = (asked.get("jobs") ?? "").split(",").filter(Boolean);
  return html`<div class="stack">
    <${Bar} label="Which trials" first=${html`<${Search} value=${find} placeholder="Search trials, values and reasons" label="Search trials" onChange=${(/** @type {string} */ text) => go({ find: text }, { replace: true })} />`} changed=${[state, at !== null, asked.get("columns"), Object.keys(filters).length].filter(Boolean).length}>
      <label>State <select value=${state} onChange=${(/** @type {any} */ event) => go({ state: event.target.value }, { replace: true })}>
        <option value="">all</option>${states.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>
      <label>At ${unit} <input type="text" inputmode="numeric" class="short" value=${at ?? ""} onChange=${(/** @type {any} */ event) => onAt(wholeOf(event.target.value))} /></label>
      <${Columns} columns=${columns} names=${names} usual=${usual} />
      ${chosen.length > 0 && html`<a class="button main" href=${address({ jobs: chosen.join(",") }, "/compare")}>Compare ${plural(chosen.length, "trial")}</a><button class="plain" onClick=${() => go({ jobs: "" }, { replace: true })}>Clear</button>`}
      <span class="quiet small" aria-live="polite">${isFiltered ? `${count(found.length)} of ${plural(rows.length, "trial")}` : plural(rows.length, "trial")}</span>
    <//>
    <${AxisFilters} axes=${axes} filters=${filters} onFilter=${onFilter} />
    ${!order.length
      ? html`<${Empty} title=${isFiltered ? "No trial matches" : "No trials yet"}><p>${isFiltered ? html`Change the filters, or <a href=${address({ state: "", find: "", only: "" })}>show all trials</a>.` : "The search creates them when the experiment starts."}</p><//>`
      : html`<${VirtualTable} total=${order.length} height=${ROW_PX} columns=${shown.length + 1} label="Trials" onNeed=${nothing}
          head=${html`<tr><th class="box"><span class="unseen">Compare</span></th>${shown.map((each) => html`<${Head} key=${each.name} column=${each} isSorted=${each.name === column.name} isUp=${isUp} />`)}</tr>`}
          row=${(/** @type {number} */ i) => html`<tr key=${order[i].trial} aria-rowindex=${i + 2}><td class="box"><${Choice} name=${`e${experiment}-t${order[i].trial}`} chosen=${chosen} /></td>${shown.map((each) => html`<td key=${each.name} class=${each.isNumber ? "number" : each.name === "trial" ? "name" : ""}>${each.show ? each.show(order[i]) : valueText(each.of(order[i]))}</td>`)}</tr>`} />`}
  </div>`;
}

const nothing = () => null;

/** @param {{name: string, chosen: string[]}} props */
function Choice({ name, chosen }) {
  const isChosen = chosen.includes(name);
  const choose = () => go({ jobs: (isChosen ? chosen.filter((each) => each !== name) : [...chosen, name]).join(",") }, { replace: true });
  return html`<input type="checkbox" aria-label=${`Compare ${name}`} checked=${isChosen} onChange=${choose} />`;
}

/** @param {string} name @param {import("./scale.js").Only | null} only */
export function onFilter(name, only) {
  const { [name]: _, ...others } = readOnly(query.value.get("only"));
  go({ only: writeOnly(only ? { ...others, [name]: only } : others) }, { replace: true });
}

/** @param {string} given */
function wholeOf(given) {
  const value = Number(given.trim().replaceAll(",", ""));
  return given.trim() && Number.isFinite(value) && value >= 0 ? value : null;
}

/** Names may have commas. @param {string} written @returns {string[]} */
function readNames(written) {
  try {
    const read = JSON.parse(written);
    return Array.isArray(read) ? read.map(key) : [];
  } catch {
    return [];
  }
}

/** @param {{column: Column, isSorted: boolean, isUp: boolean}} props */
function Head({ column, isSorted, isUp }) {
  const next = { sort: column.name, up: isSorted ? !isUp : !column.isNumber };
  return html`<th class=${column.isNumber ? "number" : ""} aria-sort=${isSorted ? (isUp ? "ascending" : "descending") : "none"}>
    <button onClick=${() => go(next, { replace: true })}>${column.title}<span aria-hidden="true">${isSorted ? (isUp ? " ↑" : " ↓") : ""}</span></button></th>`;
}

/** @param {{columns: Column[], names: string[], usual: string[]}} props */
function Columns({ columns, names, usual }) {
  const change = (/** @type {string} */ name, /** @type {boolean} */ isOn) => {
    const next = columns.map((each) => each.name).filter((each) => (each === name ? isOn : names.includes(each)));
    go({ columns: String(next) === String(usual) ? "" : JSON.stringify(next) }, { replace: true });
  };
  return html`<details class="menu"><summary>Columns</summary><div class="card">${columns.slice(1).map(
    (each) => html`<label key=${each.name}><input type="checkbox" checked=${names.includes(each.name)} onChange=${(/** @type {any} */ event) => change(each.name, event.target.checked)} /> ${each.title}</label>`,
  )}</div></details>`;
}
