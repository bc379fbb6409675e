// All jobs of the coordinator: a table that sorts, filters and searches at the coordinator and fetches what is seen.
// Rows change in place as jobs go on.

import { useCallback, useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { Bar } from "./bar.js";
import { clock, count, duration, plural, tail } from "./format.js";
import { html } from "./html.js";
import { Listing } from "./listing.js";
import { listen, look } from "./live.js";
import { address, go, jobAddress, query } from "./route.js";
import { Search } from "./search_box.js";
import { Empty, Failed, StateWord, Waiting } from "./states.js";
import { VirtualTable } from "./virtual_rows.js";

const ROW_PX = 40;
const STATES = ["running", "regrouping", "waiting", "finished", "stopped"];

/** @typedef {import("./job_state.js").Summary} Summary */
/** A script that only reports commits no steps.
 * @param {Summary} job */
export const stepText = (job) => (job.generation || job.step ? count(job.step) : "–");
/** @type {{name: string, title: string, isNumber?: boolean, isOptional?: boolean, show: (job: Summary) => any}[]} */
const COLUMNS = [
  { name: "job", title: "Job", show: (job) => html`<a href=${jobAddress(job.job)}>${job.job}</a>` },
  { name: "state", title: "State", show: (job) => html`<${StateWord} state=${job.state} />` },
  { name: "name", title: "Name", show: (job) => html`<span title=${job.name}>${tail(job.name)}</span>` },
  { name: "step", title: "Step", isNumber: true, show: (job) => stepText(job) },
  { name: "num_workers", title: "Workers", isNumber: true, show: (job) => count(job.num_workers) },
  { name: "generation", title: "Generation", isNumber: true, isOptional: true, show: (job) => count(job.generation) },
  { name: "num_deaths", title: "Deaths", isNumber: true, show: (job) => count(job.num_deaths) },
  { name: "num_restarts", title: "Restarts", isNumber: true, isOptional: true, show: (job) => count(job.num_restarts) },
  { name: "created_at", title: "Created", show: (job) => clock(job.created_at) },
  { name: "ended_at", title: "Duration", isNumber: true, isOptional: true, show: (job) => (job.ended_at && job.created_at ? duration(job.ended_at - job.created_at) : "–") },
  { name: "reason", title: "Reason", show: (job) => html`<span class="cut" title=${job.reason}>${job.reason}</span>` },
];
/** Shown unless the address says otherwise: what fits. */
const usual = () => (innerWidth > 640 ? COLUMNS.filter((each) => !each.isOptional).map((each) => each.name) : ["job", "state", "step", "num_deaths"]);

export function Jobs() {
  const listing = useMemo(() => new Listing({ path: "/v1/jobs", rows: "jobs", id: "job" }), []);
  const sort = query.value.get("sort") || "created_at";
  const isUp = query.value.has("up");
  const search = query.value.get("find") ?? "";
  const state = query.value.get("state") ?? "";
  const columns = query.value.get("columns")?.split(",") ?? usual();
  const chosen = (query.value.get("jobs") ?? "").split(",").filter(Boolean);
  const asked = new URLSearchParams({ sort, is_descending: String(!isUp), search, state }).toString();
  const timer = useRef(/** @type {any} */ (null));
  listing.version.value; // drawn again when it changes

  useEffect(() => {
    look([]);
    document.title = "Jobs – Everstep";
  }, []);
  useLayoutEffect(() => listing.ask(asked), [asked]); // before anything is painted
  useEffect(() => {
    const later = () => (timer.current ??= setTimeout(() => ((timer.current = null), listing.renew()), 1000));
    const ends = [
      listen("jobs", (news) => listing.take(news.jobs, news.removed, [sort, "state"]) && later()),
      listen("began", () => listing.renew()),
      listen("reload", (data) => data.is_list && listing.renew()),
    ];
    return () => ends.forEach((end) => end());
  }, [sort]);
  const onNeed = useCallback((/** @type {number} */ first, /** @type {number} */ last) => listing.found.value && listing.need(first, last), [asked, listing.found.value]);

  const found = listing.found.value;
  const shown = COLUMNS.filter((each) => columns.includes(each.name) || each.name === "job");
  const isFiltered = Boolean(search || state);
  return html`<div class="stack">
    <div class="head"><h1>Jobs</h1>${found !== null && html`<span class="quiet" aria-live="polite">${isFiltered ? `${count(found)} of ${plural(listing.total.value, "job")}` : plural(found, "job")}</span>`}
      ${chosen.length > 0 && html`<span class="end"><a class="button main" href=${address({ jobs: chosen.join(",") }, "/compare")}>Compare ${plural(chosen.length, "job")}</a>
        <button class="plain" onClick=${() => go({ jobs: "" }, { replace: true })}>Clear</button></span>`}</div>
    <${Bar} label="Which jobs" first=${html`<${Search} value=${search} placeholder="Search jobs, names and reasons" label="Search jobs" onChange=${(/** @type {string} */ find) => go({ find }, { replace: true })} />`} changed=${Number(Boolean(state)) + Number(query.value.has("columns"))}>
      <label>State
        <select value=${state} onChange=${(/** @type {any} */ event) => go({ state: event.target.value }, { replace: true })}>
          <option value="">all</option>${STATES.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}
        </select></label>
      <${Columns} columns=${columns} />
    <//>
    ${listing.problem.value && html`<${Failed} problem=${listing.problem.value} />`}
    ${found === null
      ? !listing.problem.value && html`<${Waiting} rows=${8} />`
      : found === 0
        ? isFiltered
          ? html`<${Empty} title="No job matches"><p>Change the search or the state, or <a href="/">show all jobs</a>.</p><//>`
          : html`<${Empty} title="No jobs yet"><p>Start a job, and it appears in this list:</p><code>everstep run --coordinator URL --nproc-per-node 2 train.py</code><//>`
        : html`<${VirtualTable} total=${found} height=${ROW_PX} columns=${shown.length + 1} label="Jobs" onNeed=${onNeed}
            head=${html`<tr><th class="box"><span class="unseen">Compare</span></th>${shown.map((each) => html`<${Head} key=${each.name} column=${each} sort=${sort} isUp=${isUp} />`)}</tr>`}
            row=${(/** @type {number} */ i) => html`<${Row} key=${i} job=${listing.rows[i]} index=${i} shown=${shown} chosen=${chosen} />`} />`}
  </div>`;
}

/** @param {{columns: string[]}} props */
function Columns({ columns }) {
  const change = (/** @type {string} */ name, /** @type {boolean} */ isOn) => {
    const next = COLUMNS.map((each) => each.name).filter((each) => (each === name ? isOn : columns.includes(each)));
    go({ columns: String(next) === String(usual()) ? "" : next.join(",") }, { replace: true });
  };
  return html`<details class="menu"><summary>Columns</summary>
    <div class="card">${COLUMNS.slice(1).map(
      (each) => html`<label key=${each.name}><input type="checkbox" checked=${columns.includes(each.name)} onChange=${(/** @type {any} */ event) => change(each.name, event.target.checked)} /> ${each.title}</label>`,
    )}</div>
  </details>`;
}

/** @param {{column: typeof COLUMNS[0], sort: string, isUp: boolean}} props */
function Head({ column, sort, isUp }) {
  const isSorted = column.name === sort;
  const next = { sort: column.name === "created_at" ? "" : column.name, up: isSorted && !isUp };
  return html`<th class=${column.isNumber ? "number" : ""} aria-sort=${isSorted ? (isUp ? "ascending" : "descending") : "none"}>
    <button onClick=${() => go(next, { replace: true })}>${column.title}<span aria-hidden="true">${isSorted ? (isUp ? " ↑" : " ↓") : ""}</span></button>
  </th>`;
}

/** @param {{job: Summary | undefined, index: number, shown: typeof COLUMNS, chosen: string[]}} props */
function Row({ job, index, shown, chosen }) {
  if (!job) return html`<tr aria-rowindex=${index + 2}><td></td>${shown.map((each) => html`<td key=${each.name}><div class="ghost"></div></td>`)}</tr>`;
  const isChosen = chosen.includes(job.job);
  const choose = () => go({ jobs: (isChosen ? chosen.filter((each) => each !== job.job) : [...chosen, job.job]).join(",") }, { replace: true });
  return html`<tr aria-rowindex=${index + 2}>
    <td class="box"><input type="checkbox" aria-label=${`Compare ${job.job}`} checked=${isChosen} onChange=${choose} /></td>
    ${shown.map((each) => html`<td key=${each.name} class=${each.isNumber ? "number" : each.name === "job" ? "name" : ""}>${each.show(job)}</td>`)}
  </tr>`;
}
