// Jobs and trials side by side: what they were started with, where they stand, and their curves in one plot per metric.
// Only what differs is shown, unless all is asked for. One of them can be the baseline for the others.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { get, jobPath } from "./api.js";
import { Bar } from "./bar.js";
import { Differences } from "./compare_table.js";
import { curve, minus, placer } from "./curve.js";
import { count, number, plural } from "./format.js";
import { html } from "./html.js";
import { listen, look } from "./live.js";
import { POSITIONS } from "./metrics.js";
import { color, dash } from "./palette.js";
import { Plot } from "./plot.js";
import { TRIAL_JOB, address, go, jobAddress, query } from "./route.js";
import { Series, isCut } from "./series.js";
import { Empty, Failed, StateWord, Waiting } from "./states.js";
import { isDark } from "./theme.js";
import { placeText } from "./ticks.js";

const AT_ONCE = 100; // jobs in one call
const MOST_SERIES = 1000; // in one call
const PAUSE_MS = 5000; // between fetches of the numbers while jobs go on

/** @typedef {{summary: import("./job_state.js").Summary, policy: object, config: object, values: any[]}} Compared */

export class Comparison {
  /** @param {string[]} names */
  constructor(names) {
    this.names = names;
    this.jobs = signal(/** @type {Compared[] | null} */ (null));
    this.unknown = signal(/** @type {string[]} */ ([]));
    this.problem = signal(/** @type {Error | null} */ (null));
    /** @type {Map<string, Map<string, Series>>} by metric, then by job */
    this.metrics = new Map();
    this.version = signal(0);
    this.isFetched = false; // once
  }

  async fetch() {
    try {
      /** @type {Compared[]} */
      const jobs = [];
      /** @type {string[]} */
      const unknown = [];
      for (let i = 0; i < this.names.length; i += AT_ONCE) {
        const reply = await get("/v1/compare", { jobs: this.names.slice(i, i + AT_ONCE).join(",") });
        jobs.push(...reply.jobs);
        unknown.push(...reply.unknown);
      }
      this.jobs.value = jobs;
      this.unknown.value = unknown;
      this.problem.value = null;
      await Promise.all(jobs.map(({ summary }) => this.fetchSeries(summary.job)));
      this.isFetched = true;
      this.version.value++;
    } catch (error) {
      this.problem.value = /** @type {Error} */ (error);
    }
  }

  /** @param {string} job */
  async fetchSeries(job) {
    for (let after = 0, isMore = true; isMore; ) {
      const { series } = await get(`${jobPath(job)}/series`, { after, limit: MOST_SERIES, is_own: true });
      this.keepSeries(job, series);
      isMore = series.length === MOST_SERIES;
      after = series.at(-1)?.series;
    }
  }

  /** @param {string} job @param {import("./series.js").SeriesView[]} series */
  keepSeries(job, series) {
    for (const view of series) {
      if (POSITIONS.has(view.name)) continue;
      const byJob = this.metrics.get(view.name) ?? new Map();
      this.metrics.set(view.name, byJob);
      const known = byJob.get(job);
      if (known) known.renew(view);
      else byJob.set(job, new Series(job, view));
    }
  }

  /** @param {{job: string, series: import("./series.js").Points[]}} data */
  take({ job, series }) {
    for (const points of series) this.metrics.get(points.name)?.get(job)?.add(points);
  }
}

export function Compare() {
  const names = query.value.get("jobs") ?? "";
  const list = useMemo(() => names.split(",").filter(Boolean), [names]);
  const state = useMemo(() => new Comparison(list), [list]);
  const isAll = query.value.has("all");
  const base = list.includes(query.value.get("base") ?? "") ? query.value.get("base") ?? "" : "";
  useEffect(() => {
    document.title = "Compare – Everstep";
    look(list.slice(0, AT_ONCE));
    let fetched = Date.now();
    const ends = [
      listen("points", (data) => {
        state.take(data);
        const isDue = Date.now() - fetched > PAUSE_MS || data.series.some(isCut);
        if (isDue && list.includes(data.job)) (fetched = Date.now()), state.fetch();
      }),
      listen("began", () => state.fetch()),
      listen("reload", () => state.fetch()),
    ];
    state.fetch();
    return () => {
      ends.forEach((end) => end());
      look([]);
    };
  }, [state]);
  state.version.value;
  const jobs = state.jobs.value;
  if (!list.length) return html`<${Empty} title="Nothing to compare"><p>Select jobs with their checkboxes in the <a href="/">job list</a>, then click “Compare”. Or type their names here. Trials have names such as e12-t7.</p><${Add} list=${list} /><//>`;
  if (!jobs) return state.problem.value ? html`<${Failed} problem=${state.problem.value} />` : html`<${Waiting} />`;
  return html`<div class="stack">
    <div class="head"><h1>Compare</h1><span class="quiet">${plural(jobs.length, "job")}</span><span class="end"><${Add} list=${list} /></span></div>
    <${Unknown} names=${state.unknown.value} />
    <${Key} jobs=${jobs} list=${list} />
    <${Bar} label="How to compare" changed=${["smooth", "logy", "diff", "from"].filter((each) => query.value.has(each)).length} first=${html`<label>x axis <select value=${query.value.get("x") ?? "step"} onChange=${(/** @type {any} */ event) => go({ x: event.target.value === "step" ? "" : event.target.value, from: "", to: "" }, { replace: true })}>
        <option value="step">step</option><option value="elapsed">time since the start</option></select></label>`}>
      <label>Smoothing <input type="range" min="0" max="0.99" step="0.01" value=${query.value.get("smooth") ?? 0} onInput=${(/** @type {any} */ event) => go({ smooth: Number(event.target.value) || "" }, { replace: true })} /></label>
      <button aria-pressed=${query.value.has("logy")} onClick=${() => go({ logy: !query.value.has("logy") }, { replace: true })}>log y</button>
      ${base && html`<button aria-pressed=${query.value.has("diff")} onClick=${() => go({ diff: !query.value.has("diff") }, { replace: true })}>Difference to ${base}</button>`}
      <button disabled=${!query.value.has("from")} onClick=${() => go({ from: "", to: "" }, { replace: true })}>All</button>
    <//>
    <${Curves} state=${state} jobs=${jobs} isAll=${isAll} base=${base} />
    <div class="section"><h2>${isAll ? "Settings and values" : "What differs"}</h2>
      <button class="plain" aria-pressed=${isAll} onClick=${() => go({ all: !isAll }, { replace: true })}>Show all</button></div>
    <${Differences} jobs=${jobs} isAll=${isAll} base=${base} />
  </div>`;
}

/** @param {{names: string[]}} props */
function Unknown({ names }) {
  const trials = names.filter((name) => TRIAL_JOB.test(name));
  const others = names.filter((name) => !TRIAL_JOB.test(name));
  return html`${others.length > 0 && html`<p class="notice">Unknown to the coordinator: ${others.join(", ")}</p>`}
    ${trials.length > 0 && html`<p class="notice">Not started yet: ${trials.join(", ")}</p>`}`;
}

/** @param {{list: string[]}} props */
function Add({ list }) {
  const add = (/** @type {any} */ event) => {
    event.preventDefault();
    const names = event.target.elements.name.value.split(/[\s,]+/).filter(Boolean);
    event.target.reset();
    if (names.length) go({ jobs: [...new Set([...list, ...names])].join(",") });
  };
  return html`<form class="group" onSubmit=${add}><input type="text" name="name" placeholder="Job or trial, such as e12-t7" aria-label="Job or trial to compare" spellcheck="false" autocomplete="off" /><button>Add</button></form>`;
}

/** @param {{jobs: Compared[], list: string[]}} props */
function Key({ jobs, list }) {
  const dark = isDark.value;
  return html`<ul class="key" aria-label="Lines">${jobs.map(
    ({ summary }, i) => html`<li key=${summary.job}>
      <svg width="28" height="8" aria-hidden="true"><line x1="0" x2="28" y1="4" y2="4" stroke=${color(i, dark)} stroke-width="3" stroke-dasharray=${dash(i).join(" ")} /></svg>
      <a href=${jobAddress(summary.job)}>${summary.job}</a><${StateWord} state=${summary.state} />
      <a href=${address({ jobs: list.filter((each) => each !== summary.job).join(",") })} aria-label=${`Remove ${summary.job}`}>×</a>
    </li>`,
  )}</ul>`;
}

/** @param {{state: Comparison, jobs: Compared[], isAll: boolean, base: string}} props */
function Curves({ state, jobs, isAll, base }) {
  const names = [...state.metrics.keys()].sort();
  if (!state.isFetched) return html`<${Waiting} label="Loading metrics" />`;
  if (!names.length) return html`<${Empty} title="No metrics"><p>${jobs.length > 1 ? "None of these jobs has" : "This job has not"} reported any numbers.</p><//>`;
  const silent = jobs.map(({ summary }) => summary.job).filter((job) => !names.some((name) => state.metrics.get(name)?.has(job)));
  const same = isAll ? [] : names.filter((name) => isSame(/** @type {Map<string, Series>} */ (state.metrics.get(name)), jobs));
  const shown = names.filter((name) => !same.includes(name));
  return html`<div class="stack">
    ${silent.length > 0 && html`<p class="quiet">No metrics from ${silent.join(", ")}.</p>`}
    ${shown.length > 0 && html`<div class="plots">${shown.map((name) => html`<${Overlay} key=${name} name=${name} series=${state.metrics.get(name)} jobs=${jobs} base=${base} />`)}</div>`}
    ${same.length > 0 && html`<p class="quiet">The same in all jobs: ${same.join(", ")}.</p>`}
  </div>`;
}

/** Whether a metric tells the jobs apart: not if all have as many points with the same values as far as the list says.
 * @param {Map<string, Series>} series @param {Compared[]} jobs */
function isSame(series, jobs) {
  const facts = jobs.map(({ summary }) => {
    const view = series.get(summary.job)?.view.value;
    return view && [view.count, view.first_step, view.last_step, view.last, view.least, view.most].join();
  });
  return jobs.length > 1 && new Set(facts).size === 1;
}

/** One metric of all jobs.
 * @param {{name: string, series: Map<string, Series>, jobs: Compared[], base: string}} props */
function Overlay({ name, series, jobs, base }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [isNear, setNear] = useState(false);
  const [isTable, setTable] = useState(false);
  const value = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    const observer = new IntersectionObserver(([entry]) => setNear(entry.isIntersecting), { rootMargin: "300px" });
    if (box.current) observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const mine = jobs.map(({ summary }, index) => ({ index, summary, series: series.get(summary.job) })).filter((each) => each.series);
  useEffect(() => {
    if (!isNear) return undefined;
    const columns = Math.max(100, ((box.current?.clientWidth ?? 400) - 90) / Math.max(1, mine.length / 10));
    mine.forEach((each) => each.series?.want(columns));
    return () => mine.forEach((each) => each.series?.unwant());
  }, [isNear, mine.length]);
  const axis = /** @type {import("./curve.js").Axis} */ (query.value.get("x") === "elapsed" ? "elapsed" : "step");
  const lines = mine.flatMap(({ index, summary, series: each }) => {
    each?.version.value;
    return each?.whole ? [{ label: summary.job, index, isBold: summary.job === base, curve: curve(each.whole, placer(axis, null, summary.created_at)) }] : [];
  });
  const pinned = query.value.has("diff") && lines.find((line) => line.isBold);
  const drawn = pinned ? lines.map((line) => ({ ...line, curve: minus(line.curve, pinned.curve) })) : lines;
  const [from, to] = [Number(query.value.get("from") ?? NaN), Number(query.value.get("to") ?? NaN)];
  const label = `${name}: ${mine.map(({ summary, series: each }) => `${summary.job} last ${number(each?.view.value.last)}`).join(", ")}.`;
  return html`<figure class="card plot" ref=${box}>
    <header><h3 title=${name}>${name}</h3><span class="quiet small" ref=${value}>${" "}</span></header>
    ${isTable
      ? html`<div class="scroll" tabindex="0" role="region" aria-label=${`${name} as a table`}><table class="tight"><thead><tr><th>Job</th><th class="number">Last</th><th class="number">Min</th><th class="number">Max</th><th class="number">Step</th></tr></thead>
          <tbody>${mine.map(({ summary, series: each }) => html`<tr key=${summary.job}><td>${summary.job}</td><td class="number">${number(each?.view.value.last)}</td><td class="number">${number(each?.view.value.least)}</td><td class="number">${number(each?.view.value.most)}</td><td class="number">${count(each?.view.value.last_step ?? 0)}</td></tr>`)}</tbody></table></div>`
      : isNear && lines.length
        ? html`<${Plot} lines=${drawn} axis=${axis} range=${from < to ? [from, to] : null} extent=${null} label=${label} group="compare"
            smoothing=${Number(query.value.get("smooth") ?? 0)} isLogY=${query.value.has("logy") && !pinned}
            onRange=${(/** @type {any} */ range) => go({ from: range?.[0], to: range?.[1] }, { replace: true })}
            onCursor=${(/** @type {any} */ at, /** @type {number} */ x) => {
              const node = /** @type {Text | null | undefined} */ (value.current?.firstChild);
              if (node) node.data = at === null ? " " : `at ${placeText(x, axis)}`;
            }} />`
        : html`<div class="canvas" role="img" aria-label=${label}></div>`}
    <footer><span>${mine.length === jobs.length ? plural(jobs.length, "job") : mine.length === 1 ? `only ${mine[0].summary.job}` : `${mine.length} of ${plural(jobs.length, "job")}`}</span><figcaption class="unseen">${label}</figcaption>
      <button class="plain" aria-pressed=${isTable} onClick=${() => setTable(!isTable)}>Table<span class="unseen"> of ${name}</span></button></footer>
  </figure>`;
}
