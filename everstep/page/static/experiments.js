// All experiments of the coordinator: a table that sorts, filters and searches there, with any metric or searched
// hyperparameter as a column. Rows change in place as experiments go on.

import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { get, mayChange } from "./api.js";
import { Bar } from "./bar.js";
import { ManyActions } from "./experiment_actions.js";
import { COLUMNS, choices, columnsOf, isExtra, rowsOf, usual } from "./experiment_columns.js";
import { count, plural } from "./format.js";
import { html } from "./html.js";
import { Listing } from "./listing.js";
import { listen, look } from "./live.js";
import { go, query } from "./route.js";
import { Search } from "./search_box.js";
import { Empty, Failed, Waiting } from "./states.js";
import { VirtualTable } from "./virtual_rows.js";

/** @typedef {import("./experiment_columns.js").Row} Row */
/** @typedef {import("./experiment_columns.js").Column} Column */
/** @typedef {{metrics: string[], hyperparameters: string[], labels: string[], owners: string[]}} Known */

const ROW_PX = 40;
const RENEW_MS = 1000; // at most once per this time, if rows have moved
const MOST_CHOICES = 200; // of columns, shown at once
const STATES = { active: "ACTIVE", paused: "PAUSED", stopping: "STOPPING_COMPLETED,STOPPING_CANCELED,STOPPING_KILLED,STOPPING_ERROR", completed: "COMPLETED", canceled: "CANCELED", error: "ERROR" };
const FILTERS = ["state", "label", "owner", "archived"];

const replace = { replace: true };
const chosen = () => (query.value.get("select") ?? "").split(",").filter(Boolean).map(Number);

export function View() {
  const listing = useMemo(() => /** @type {Listing<Row>} */ (new Listing({ path: "/v1/experiments", rows: "experiments", id: "experiment", read: rowsOf })), []);
  const [known, setKnown] = useState(/** @type {Known | null} */ (null));
  const sort = query.value.get("sort") || "experiment";
  const isUp = query.value.has("up");
  const search = query.value.get("find") ?? "";
  const names = query.value.get("columns")?.split(",") ?? usual(innerWidth);
  const columns = columnsOf(names);
  const asked = new URLSearchParams({
    sort,
    is_descending: String(!isUp),
    search,
    state: STATES[/** @type {keyof typeof STATES} */ (query.value.get("state") ?? "")] ?? "",
    label: query.value.get("label") ?? "",
    owner: query.value.get("owner") ?? "",
    is_archived: String(query.value.has("archived")),
    columns: names.filter(isExtra).join(","),
  }).toString();
  const timer = useRef(/** @type {any} */ (null));
  listing.version.value; // drawn again when it changes

  useEffect(() => {
    look(["experiments/"]);
    document.title = "Experiments – Everstep";
    get("/v1/experiment-columns").then(setKnown, () => null); // without it, less can be chosen
    return () => look([]);
  }, []);
  useLayoutEffect(() => listing.ask(asked), [asked]); // before anything is painted
  useEffect(() => {
    const later = () => (timer.current ??= setTimeout(() => ((timer.current = null), listing.renew()), RENEW_MS));
    const keys = [sort, "state", "is_archived", ...(names.some(isExtra) || sort === "best" ? ["last_event"] : [])];
    const ends = [
      listen("experiments", (news) => listing.take(news.experiments, news.removed, keys) && later()),
      listen("began", () => listing.renew()),
      listen("reload", (data) => data.topics.includes("experiments/") && listing.renew()),
    ];
    return () => ends.forEach((end) => end());
  }, [asked]);
  const onNeed = useCallback((/** @type {number} */ first, /** @type {number} */ last) => listing.found.value && listing.need(first, last), [asked, listing.found.value]);

  const found = listing.found.value;
  const problem = listing.problem.value;
  const isFiltered = Boolean(search) || FILTERS.some((each) => query.value.has(each));
  const selected = listing.rows.filter((row) => row && chosen().includes(row.experiment));
  return html`<div class="stack">
    <div class="head"><h1>Experiments</h1>${found !== null && html`<span class="quiet" aria-live="polite">${isFiltered ? `${count(found)} found` : plural(found, "experiment")}</span>`}
      ${chosen().length > 0 && html`<span class="end"><span class="quiet">${count(chosen().length)} selected</span>
        <${ManyActions} views=${selected} onDone=${() => listing.renew()} />
        <button class="plain" onClick=${() => go({ select: "" }, replace)}>Clear</button></span>`}</div>
    <${Bar} label="Which experiments" changed=${FILTERS.filter((each) => query.value.has(each)).length + Number(query.value.has("columns"))}
        first=${html`<${Search} value=${search} placeholder="Search names, labels and descriptions" label="Search experiments" onChange=${(/** @type {string} */ find) => go({ find }, replace)} />`}>
      <${Choice} label="State" name="state" all="all" options=${Object.keys(STATES)} />
      <${Choice} label="Label" name="label" all="any" options=${known?.labels ?? []} />
      <${Choice} label="Owner" name="owner" all="anyone" options=${known?.owners ?? []} />
      <label><input type="checkbox" checked=${query.value.has("archived")} onChange=${(/** @type {any} */ event) => go({ archived: event.target.checked }, replace)} /> Archived too</label>
      <${ColumnMenu} names=${names} known=${known} />
    <//>
    ${problem && html`<${Failed} problem=${problem} />`}
    ${found === null ? !problem && html`<${Waiting} rows=${8} />` : found === 0 ? html`<${Nothing} isFiltered=${isFiltered} />` : html`<${VirtualTable} total=${found} height=${ROW_PX} columns=${columns.length + 1} label="Experiments" onNeed=${onNeed}
      head=${html`<tr><th class="box"><span class="unseen">Select</span></th>${columns.map((each) => html`<${Head} key=${each.name} column=${each} sort=${sort} isUp=${isUp} />`)}</tr>`}
      row=${(/** @type {number} */ i) => html`<${TableRow} key=${i} row=${listing.rows[i]} index=${i} columns=${columns} />`} />`}
  </div>`;
}

/** @param {{isFiltered: boolean}} props */
function Nothing({ isFiltered }) {
  if (isFiltered) return html`<${Empty} title="No experiment matches"><p>Change the search or the filters, or <a href="/experiments">show all experiments</a>.</p><//>`;
  return html`<${Empty} title="No experiments yet"><p>${mayChange() ? "Create one from a file and a folder with code, and it appears in this list:" : "Experiments appear in this list when someone creates them:"}</p>
    <code>everstep e create experiment.yaml . --coordinator ${location.origin} --token-file FILE</code><//>`;
}

/** @param {{label: string, name: string, all: string, options: string[]}} props */
function Choice({ label, name, all, options }) {
  const value = query.value.get(name) ?? "";
  const shown = value && !options.includes(value) ? [value, ...options] : options;
  if (!shown.length) return null;
  return html`<label>${label} <select value=${value} onChange=${(/** @type {any} */ event) => go({ [name]: event.target.value }, replace)}>
    <option value="">${all}</option>${shown.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>`;
}

/** @param {{names: string[], known: Known | null}} props */
function ColumnMenu({ names, known }) {
  const [search, setSearch] = useState("");
  const extra = choices(known ?? { metrics: [], hyperparameters: [] }, search);
  const change = (/** @type {string} */ name, /** @type {boolean} */ isOn) => {
    const next = isOn ? [...names, name] : names.filter((each) => each !== name);
    go({ columns: String(next) === String(usual(innerWidth)) ? "" : next.join(",") }, replace);
  };
  const box = (/** @type {{name: string, title: string}} */ { name, title }) => html`<label key=${name}><input type="checkbox" checked=${names.includes(name)} onChange=${(/** @type {any} */ event) => change(name, event.target.checked)} /> ${title}</label>`;
  return html`<details class="menu"><summary>Columns</summary>
    <div class="card choices">
      ${COLUMNS.filter((each) => each.name !== "experiment").map(box)}
      ${known && known.metrics.length + known.hyperparameters.length > 0 && html`<input type="search" aria-label="Find metrics and hyperparameters" placeholder="Find metrics and hyperparameters" value=${search} onInput=${(/** @type {any} */ event) => setSearch(event.target.value)} />`}
      ${["Hyperparameters", "Metrics"].map((kind) => {
        const mine = extra.filter((each) => each.kind === kind);
        return mine.length > 0 && html`<fieldset key=${kind}><legend>${kind} of the best trial</legend>${mine.slice(0, MOST_CHOICES).map(box)}${mine.length > MOST_CHOICES && html`<p class="quiet small">${count(mine.length - MOST_CHOICES)} more: use the search.</p>`}</fieldset>`;
      })}
    </div>
  </details>`;
}

/** @param {{column: Column, sort: string, isUp: boolean}} props */
function Head({ column, sort, isUp }) {
  const kind = column.isNumber ? "number" : "";
  if (column.isFixed) return html`<th class=${kind}>${column.title}</th>`;
  const isSorted = column.name === sort;
  const next = { sort: column.name === "experiment" ? "" : column.name, up: isSorted && !isUp };
  return html`<th class=${kind} aria-sort=${isSorted ? (isUp ? "ascending" : "descending") : "none"}>
    <button onClick=${() => go(next, replace)}>${column.title}<span aria-hidden="true">${isSorted ? (isUp ? " ↑" : " ↓") : ""}</span></button>
  </th>`;
}

/** @param {{row: Row | undefined, index: number, columns: Column[]}} props */
function TableRow({ row, index, columns }) {
  if (!row) return html`<tr aria-rowindex=${index + 2}><td></td>${columns.map((each) => html`<td key=${each.name}><div class="ghost"></div></td>`)}</tr>`;
  const all = chosen();
  const isChosen = all.includes(row.experiment);
  const choose = () => go({ select: (isChosen ? all.filter((each) => each !== row.experiment) : [...all, row.experiment]).join(",") }, replace);
  return html`<tr aria-rowindex=${index + 2} class=${row.is_archived ? "archived" : undefined}>
    <td class="box"><input type="checkbox" aria-label=${`Select experiment ${row.experiment}`} checked=${isChosen} onChange=${choose} /></td>
    ${columns.map((each) => html`<td key=${each.name} class=${each.isNumber ? "number" : each.name === "name" ? "name" : ""}>${each.show(row)}</td>`)}
  </tr>`;
}
