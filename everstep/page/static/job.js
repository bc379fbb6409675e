// A job: what it is doing, in one line, and its views.

import { useLayoutEffect, useMemo } from "preact/hooks";
import { Checkpoints } from "./checkpoints.js";
import { Configuration } from "./configuration.js";
import { clock, count, duration, tail } from "./format.js";
import { html } from "./html.js";
import { JobState } from "./job_state.js";
import { stepText } from "./jobs.js";
import { isHeard, isJobOver, look } from "./live.js";
import { Logs } from "./logs.js";
import { Metrics, Sections, Toolbar, useLooks } from "./metrics.js";
import { loadPlots } from "./plot.js";
import { address, query } from "./route.js";
import { Empty, Failed, StateWord, Waiting } from "./states.js";
import { Workers } from "./workers.js";

export const VIEWS = { "": "Metrics", logs: "Logs", workers: "Workers", checkpoints: "Checkpoints", system: "System", configuration: "Configuration" };
export const KEPT = ["x", "smooth", "logx", "logy"]; // of the address, from view to view

/** @param {{job: string}} props */
export function Job({ job }) {
  const state = useJob(job);
  useLayoutEffect(() => {
    document.title = `${job} – Everstep`;
  }, [job]);
  const isOver = state.isOver.value;
  const problem = state.problem.value;
  const summary = state.summary.value;
  const chosen = query.value.get("view") ?? "";
  if (!summary && problem) {
    return problem.status === 404
      ? html`<${Empty} title="No such job"><p>The coordinator does not know “${job}”. <a href="/">Show all jobs</a></p><//>`
      : html`<${Failed} problem=${problem}>The page retries automatically.<//>`;
  }
  return html`<div class=${chosen ? "stack part" : "stack"}>
    ${isOver && isHeard.value === false && html`<p class="notice" role="status">The job is over. <span class="mono">everstep page ${job}</span> shows its record.</p>`}
    <${Head} job=${job} summary=${summary} />
    <nav class="views" aria-label="Views of the job">${Object.entries(VIEWS).map(
      ([name, title]) => html`<a key=${name} href=${address({ ...Object.fromEntries(KEPT.map((each) => [each, query.value.get(each)])), view: name }, location.pathname)} aria-current=${name === chosen ? "page" : undefined}>${title}</a>`,
    )}</nav>
    <${JobView} name=${chosen} state=${state} />
  </div>`;
}

/** What the page knows of a job, followed for as long as the view is open.
 * @param {string} job @param {{isThere?: boolean, topics?: string[]}} [how] isThere: false: not yet; topics: to follow besides */
export function useJob(job, { isThere = true, topics = [] } = {}) {
  const state = useMemo(() => new JobState(job), [job]);
  useLayoutEffect(() => {
    look(isThere ? [job, ...topics] : topics);
    if (isThere) {
      state.open();
      loadPlots(); // while the data come
    }
    return () => {
      state.close();
      look([]);
    };
  }, [state, isThere, String(topics)]);

  const isOver = state.isOver.value;
  useLayoutEffect(() => {
    isJobOver.value = isOver;
    return () => void (isJobOver.value = false);
  }, [isOver]);
  return state;
}

/** One of the views of a job.
 * @param {{name: string, state: JobState}} props */
export function JobView({ name, state }) {
  if (name === "logs") return html`<${Logs} state=${state} />`;
  if (name === "workers") return html`<${Workers} state=${state} />`;
  if (name === "checkpoints") return html`<${Checkpoints} state=${state} />`;
  if (name === "system") return html`<${System} state=${state} />`;
  if (name === "configuration") return html`<${Configuration} state=${state} />`;
  return html`<${Metrics} state=${state} />`;
}

/** @param {{job: string, summary: import("./job_state.js").Summary | null}} props */
function Head({ job, summary }) {
  if (!summary) return html`<div class="head"><h1>${job}</h1></div><div class="ghost" style=${{ width: "320px" }}></div>`;
  const end = summary.ended_at ?? Date.now() / 1000;
  const facts = [
    ["Step", stepText(summary)],
    ["Workers", count(summary.num_workers)],
    ["Generation", count(summary.generation)],
    ["Deaths", count(summary.num_deaths)],
    ["Restarts", count(summary.num_restarts)],
    ...(summary.created_at ? [["Created", clock(summary.created_at)], [summary.ended_at ? "Duration" : "Running for", duration(end - summary.created_at)]] : []),
  ];
  return html`<div class="head"><h1>${job}</h1><${StateWord} state=${summary.state} />${summary.name && summary.name !== job && html`<span class="quiet" title=${summary.name}>${tail(summary.name)}</span>`}</div>
    <p class="quiet" id="reason" aria-live="polite">${summary.reason}</p>
    <dl class="facts">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** How busy nodes and workers are: the series that agents report.
 * @param {{state: JobState}} props */
function System({ state }) {
  const all = state.series.value;
  const mine = useMemo(() => (all ?? []).filter((each) => each.name.startsWith("system/")), [all]);
  const lookup = useLooks(state, mine, null, "system");
  const find = (query.value.get("find") ?? "").toLowerCase();
  if (!all) return html`<${Waiting} />`;
  if (!mine.length) return html`<${Empty} title="No system metrics"><p>Agents sample their nodes and workers every <code>system_metrics_s</code> seconds; 0 turns this off.</p><//>`;
  const shown = mine.filter((each) => each.name.toLowerCase().includes(find));
  return html`<div class="stack">
    <${Toolbar} lookup=${lookup} shown=${shown.length} total=${mine.length} isSystem=${true} />
    <${Sections} series=${shown} lookup=${lookup} />
  </div>`;
}
