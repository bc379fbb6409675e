// The columns of the list of experiments: those that each experiment has, and metrics and hyperparameters of the best
// trials, which the reader chooses. Pure.

import { clock, count, duration, number } from "./format.js";
import { html } from "./html.js";
import { experimentAddress } from "./route.js";
import { StateWord } from "./states.js";
import { Labels } from "./written.js";
import { text } from "./configuration.js";

/** @typedef {import("./experiment_state.js").View & {values?: Record<string, unknown>}} Row */
/** @typedef {{name: string, title: string, isNumber?: boolean, isOptional?: boolean, isFixed?: boolean, show: (row: Row) => any}} Column  isFixed: cannot be sorted by */

const METRIC = "metric:";
const HYPERPARAMETER = "hp:";

/** @param {Row} row */
export const numTrials = (row) => Object.values(row.num_trials).reduce((sum, each) => sum + each, 0);

/** "12 of 40 over".
 * @param {Row} row */
export function trialsText(row) {
  const over = ["COMPLETED", "CANCELED", "ERROR"].reduce((sum, state) => sum + (row.num_trials[state] ?? 0), 0);
  const all = numTrials(row);
  return over === all ? count(all) : `${count(over)} of ${count(all)}`;
}

/** @type {Column[]} */
export const COLUMNS = [
  { name: "experiment", title: "ID", isNumber: true, show: (row) => html`<a href=${experimentAddress(row.experiment)}>${row.experiment}</a>` },
  { name: "name", title: "Name", show: (row) => html`<a class="cut" href=${experimentAddress(row.experiment)} title=${row.name}>${row.name || "–"}</a>` },
  { name: "state", title: "State", show: (row) => html`<${StateWord} state=${row.state} />` },
  { name: "progress", title: "Progress", isNumber: true, show: (row) => html`<span class="share"><progress max="1" value=${row.progress} aria-label=${`Progress of experiment ${row.experiment}`}></progress> ${Math.floor(row.progress * 100)}%</span>` },
  { name: "best", title: "Best", isNumber: true, show: (row) => html`<span title=${row.best ? `${row.metric} of trial ${row.best.trial} at ${count(row.best.length)} ${row.unit}` : row.metric}>${row.best ? number(row.best.metric) : "–"}</span>` },
  { name: "metric", title: "Metric", isOptional: true, isFixed: true, show: (row) => row.metric },
  { name: "num_trials", title: "Trials", isNumber: true, show: trialsText },
  { name: "num_slots", title: "Slots", isNumber: true, isFixed: true, show: (row) => count(row.num_slots) },
  { name: "owner", title: "Owner", show: (row) => row.owner || "–" },
  { name: "labels", title: "Labels", isFixed: true, show: (row) => html`<${Labels} labels=${row.labels} />` },
  { name: "priority", title: "Priority", isNumber: true, isOptional: true, show: (row) => row.scheduling.priority },
  { name: "pool", title: "Pool", isOptional: true, isFixed: true, show: (row) => row.scheduling.pool },
  { name: "searcher", title: "Searcher", isOptional: true, isFixed: true, show: (row) => row.searcher },
  { name: "created_at", title: "Created", show: (row) => clock(row.created_at) },
  { name: "started_at", title: "Started", isOptional: true, show: (row) => (row.started_at ? clock(row.started_at) : "–") },
  { name: "ended_at", title: "Duration", isNumber: true, isOptional: true, isFixed: true, show: (row) => (row.started_at && row.ended_at ? duration(row.ended_at - row.started_at) : "–") },
  { name: "reason", title: "Reason", isOptional: true, isFixed: true, show: (row) => html`<span class="cut" title=${row.reason}>${row.reason}</span>` },
];

/** @param {number} width of the window */
export const usual = (width) => (width > 640 ? COLUMNS.filter((each) => !each.isOptional).map((each) => each.name) : ["name", "state", "progress", "best"]);

/** Whether the coordinator must be asked for its values.
 * @param {string} name */
export const isExtra = (name) => name.startsWith(METRIC) || name.startsWith(HYPERPARAMETER);

/** The columns of these names, those of the list first. What nobody knows is left out.
 * @param {string[]} names @returns {Column[]} */
export const columnsOf = (names) => [...COLUMNS.filter((each) => names.includes(each.name)), ...names.filter(isExtra).map(extraColumn)];

/** @param {string} name @returns {Column} */
function extraColumn(name) {
  const title = name.slice(name.indexOf(":") + 1);
  const show = (/** @type {Row} */ row) => shown(row.values?.[name]);
  return { name, title, isNumber: true, show };
}

/** @param {unknown} value */
export const shown = (value) => (typeof value === "number" || value === "nan" || value === "inf" || value === "-inf" ? number(value) : text(value));

/** What a reader may choose: names that the address can hold.
 * @param {{metrics: string[], hyperparameters: string[]}} found @param {string} search @returns {{title: string, name: string, kind: string}[]} */
export function choices({ metrics, hyperparameters }, search) {
  const all = [
    ...hyperparameters.map((each) => ({ title: each, name: `${HYPERPARAMETER}${each}`, kind: "Hyperparameters" })),
    ...metrics.map((each) => ({ title: each, name: `${METRIC}${each}`, kind: "Metrics" })),
  ];
  const wanted = search.toLowerCase();
  return all.filter(({ title }) => !title.includes(",") && title.toLowerCase().includes(wanted));
}

/** Rows with the values of the columns asked for, from a reply.
 * @param {{experiments: Row[], values: Record<string, unknown[]>}} reply @returns {Row[]} */
export function rowsOf({ experiments, values }) {
  const names = Object.keys(values);
  return experiments.map((row, i) => ({ ...row, values: Object.fromEntries(names.map((name) => [name, values[name][i]])) }));
}
