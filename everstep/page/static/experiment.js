// One experiment: what it is doing, its trials and its search.

import { useLayoutEffect, useMemo } from "preact/hooks";
import { BestChart } from "./best_chart.js";
import { CodeFiles } from "./code_files.js";
import { Names, flatten } from "./configuration.js";
import { Actions } from "./experiment_actions.js";
import { ExperimentState } from "./experiment_state.js";
import { clock, count, duration, number, plural } from "./format.js";
import { Hyperparameters } from "./hyperparameters.js";
import { html } from "./html.js";
import { isHeard, isJobOver } from "./live.js";
import { LearningCurves } from "./learning_curves.js";
import { Markdown } from "./markdown.js";
import { address, experimentAddress, go, query, trialAddress } from "./route.js";
import { Register } from "./register.js";
import { Rungs } from "./rungs.js";
import { Empty, Failed, StateWord, Waiting } from "./states.js";
import { resultsAt, resultsInTime } from "./trial_columns.js";
import { Trials } from "./trials.js";

/** @typedef {import("./experiment_state.js").View} ExperimentView */

const TITLES = { "": "Overview", trials: "Trials", charts: "Hyperparameters", configuration: "Configuration", code: "Code", notes: "Notes" };
const KEPT = ["only"]; // of the address, from tab to tab

/** @param {{id: string, tab: string}} props */
export function View({ id, tab }) {
  const state = useMemo(() => new ExperimentState(id), [id]);
  useLayoutEffect(() => {
    state.open();
    return () => state.close();
  }, [state]);
  const hasAt = query.value.has("at");
  useLayoutEffect(() => {
    const { columns, curves, rungs, use, config, files } = state;
    state.show({ "": [columns, curves, rungs, use], trials: hasAt ? [columns, curves] : [columns], charts: [columns], configuration: [config], code: [files] }[tab] ?? []);
  }, [state, tab, hasAt]);
  const isOver = state.isOver.value;
  useLayoutEffect(() => {
    isJobOver.value = isOver;
    return () => void (isJobOver.value = false);
  }, [isOver]);
  const view = state.view.value.value;
  const problem = state.view.problem.value;
  useLayoutEffect(() => void (document.title = `${view?.name || `Experiment ${id}`} – Everstep`), [view?.name, id]);
  if (!view && problem) {
    return problem.status === 404
      ? html`<${Empty} title="No such experiment"><p>The coordinator does not know experiment ${id}. <a href="/experiments">Show all experiments</a></p><//>`
      : html`<${Failed} problem=${problem}>The page retries automatically.<//>`;
  }
  if (!view) return html`<${Waiting} />`;
  return html`<div class=${tab ? "stack part" : "stack"}>
    ${isOver && isHeard.value === false && html`<p class="notice" role="status">The experiment is over. You are seeing the last data received.</p>`}
    <${Head} view=${view} onChange=${() => state.view.renew()} />
    <nav class="views" aria-label="Views of the experiment">${Object.entries(TITLES).map(
      ([name, title]) => html`<a key=${name} href=${address(Object.fromEntries(KEPT.map((each) => [each, query.value.get(each)])), experimentAddress(id, name))} aria-current=${name === tab ? "page" : undefined}>${title}</a>`,
    )}</nav>
    <${Tab} tab=${tab} state=${state} view=${view} />
  </div>`;
}

/** @param {{view: ExperimentView, onChange: () => void}} props */
function Head({ view, onChange }) {
  const { experiment, name, best, num_trials: trials, scheduling } = view;
  const end = view.ended_at ?? Date.now() / 1000;
  const total = Object.values(trials).reduce((sum, each) => sum + each, 0);
  const facts = [
    [`Best ${view.metric}`, best ? html`${number(best.metric)} <span class="quiet small">trial ${best.trial} at ${count(best.length)} ${view.unit}</span>${best.checkpoint && html` <${Register} uuid=${best.checkpoint} onDone=${() => go({}, { path: "/models" })} />`}` : "–"],
    ["Trials", html`${count(total)} <span class="quiet small">${Object.entries(trials).map(([state, amount]) => `${count(amount)} ${state}`).join(", ")}</span>`],
    ["Slots", count(view.num_slots)],
    ["Search", view.searcher],
    ["Priority", html`${scheduling.priority} <span class="quiet small">in pool ${scheduling.pool}</span>`],
    ...(view.owner ? [["Owner", view.owner]] : []),
    ["Created", clock(view.created_at)],
    ...(view.started_at ? [[view.ended_at ? "Duration" : "Running for", duration(end - view.started_at)]] : []),
  ];
  const share = Math.min(1, Math.max(0, view.progress));
  const percent = Math.floor(share * 100);
  return html`<div class="head"><h1>${name || `Experiment ${experiment}`}</h1><${StateWord} state=${view.state} />
      ${name && html`<span class="quiet">Experiment ${experiment}</span>`}${view.is_archived && html`<span class="state">archived</span>`}
      ${view.labels.map((each) => html`<span key=${each} class="label">${each}</span>`)}
      <span class="end"><${Actions} view=${view} onChange=${onChange} /></span></div>
    <p class="quiet" id="reason" aria-live="polite">${view.reason}</p>
    <div class="progress" role="progressbar" aria-label="Progress of the search" aria-valuenow=${percent} aria-valuemin="0" aria-valuemax="100"><div style=${{ width: `${share * 100}%` }}></div><span>${percent}%</span></div>
    <dl class="facts">${facts.map(([title, value]) => html`<div key=${title}><dt>${title}</dt><dd>${value}</dd></div>`)}
      ${view.forked_from > 0 && html`<div><dt>Forked from</dt><dd><a href=${experimentAddress(view.forked_from)}>experiment ${view.forked_from}</a></dd></div>`}</dl>`;
}

/** @param {{tab: string, state: ExperimentState, view: ExperimentView}} props */
function Tab({ tab, state, view }) {
  if (tab === "configuration") return html`<${Configuration} state=${state} />`;
  if (tab === "notes") return html`<${Notes} view=${view} />`;
  if (tab === "code") return html`<${CodeFiles} id=${state.id} part=${state.files} />`;
  const rows = state.rows.value;
  const problem = state.columns.problem.value;
  if (!rows) return problem ? html`<${Failed} problem=${problem}>The page retries automatically.<//>` : html`<${Waiting} />`;
  const trialHref = hrefs(state);
  if (tab === "trials") return html`<${AllTrials} state=${state} view=${view} trialHref=${trialHref} />`;
  if (tab === "charts") {
    const columns = /** @type {import("./trial_columns.js").Columns} */ (state.columns.value.value);
    return html`<${Hyperparameters} columns=${columns} rows=${rows} axes=${state.axes.value} trialHref=${trialHref} />`;
  }
  return html`<${Overview} state=${state} view=${view} trialHref=${trialHref} />`;
}

/** @type {WeakMap<ExperimentState, (trial: number) => string | undefined>} */
const known = new WeakMap();

/** The same function for the same experiment. @param {ExperimentState} state */
function hrefs(state) {
  const made = known.get(state) ?? ((/** @type {number} */ trial) => {
    const id = state.ids.peek().get(trial);
    return id === undefined ? undefined : trialAddress(id);
  });
  known.set(state, made);
  return made;
}

/** @param {{state: ExperimentState, view: ExperimentView, trialHref: (trial: number) => string | undefined}} props */
function Overview({ state, view, trialHref }) {
  const told = state.curves.value.value;
  const use = state.use.value.value;
  const curves = state.trialCurves.value;
  const rungs = state.rungs.value.value;
  const start = view.started_at ?? view.created_at;
  const last = told?.times.reduce((most, each) => Math.max(most, each[each.length - 1] ?? 0), 0) ?? 0;
  const end = Math.max(view.ended_at ?? last, start) - start;
  const [inTime, inSlots] = useMemo(() => (told ? [resultsInTime(told, start, null), use ? resultsInTime(told, start, use) : null] : [null, null]), [told, start, use]);
  const used = use?.slot_seconds[use.slot_seconds.length - 1] ?? 0;
  const problem = state.curves.problem.value ?? state.rungs.problem.value;
  const common = { metric: view.metric, unit: view.unit, isSmallerBetter: view.smaller_is_better, trialHref };
  if (!told) return problem ? html`<${Failed} problem=${problem}>The page retries automatically.<//>` : html`<${Waiting} />`;
  if (!told.trials.length && !told.num_left_out) {
    return html`<${Empty} title="No results yet"><p>${state.isOver.value ? "No trial of this experiment reported a validation." : "Curves appear with the first validation of a trial."} <a href=${experimentAddress(state.id, "trials")}>Show the trials</a></p><//>`;
  }
  return html`<div class="stack">
    <h2 class="unseen">Results</h2>
    ${told.thinned && html`<p class="notice">${told.thinned}</p>`}
    ${curves && html`<${LearningCurves} ...${common} curves=${curves} numTrials=${state.rows.value?.length ?? curves.length} />`}
    <div class="plots wide">
      ${inTime && html`<${BestChart} ...${common} results=${inTime} end=${end} what="time" />`}
      ${inSlots && html`<${BestChart} ...${common} results=${inSlots} end=${used} what="slots" />`}
    </div>
    ${rungs && rungs.cohorts.length > 0 && html`<${Rungs} ...${common} view=${rungs} />`}
  </div>`;
}

/** @param {{state: ExperimentState, view: ExperimentView, trialHref: (trial: number) => string | undefined}} props */
function AllTrials({ state, view, trialHref }) {
  const asked = query.value.get("at");
  const at = asked !== null && asked.trim() !== "" && Number.isFinite(Number(asked)) ? Number(asked) : null;
  const told = state.curves.value.value;
  const plain = state.rows.value ?? [];
  const rows = useMemo(() => {
    if (at === null || !told) return plain;
    const found = resultsAt(told, at);
    return plain.map((row) => ({ ...row, at: found.get(row.trial) }));
  }, [plain, told, at]);
  const axes = state.axes.value;
  const hparams = useMemo(() => axes.map(({ scale }) => scale.name), [axes.map(({ scale }) => scale.name).join("\n")]);
  return html`${at !== null && told?.thinned && html`<p class="notice">${told.thinned}</p>`}
    <${Trials} experiment=${view.experiment} rows=${rows} axes=${axes} metric=${view.metric} unit=${view.unit} isSmallerBetter=${view.smaller_is_better} hparams=${hparams} at=${at}
      onAt=${(/** @type {number | null} */ value) => go({ at: value }, { replace: true })} trialHref=${trialHref} />`;
}

/** @param {{state: ExperimentState}} props */
function Configuration({ state }) {
  const about = state.config.value.value;
  const problem = state.config.problem.value;
  if (!about) return problem ? html`<${Failed} problem=${problem} />` : html`<${Waiting} />`;
  const rows = flatten(about.config);
  return html`<div class="stack">
    ${about.written && html`<div><div class="section"><h2>As it was written</h2></div><pre class="card code" tabindex="0" aria-label="The experiment's file"><code>${about.written}</code></pre></div>`}
    ${rows.length > 0 && html`<div><div class="section"><h2>All settings</h2><span class="quiet small">${plural(rows.length, "setting")}</span></div><${Names} rows=${rows} label="Configuration of the experiment" /></div>`}
    ${!about.written && !rows.length && html`<${Empty} title="No configuration"><p>This experiment was created without a file.</p><//>`}
  </div>`;
}

/** @param {{view: ExperimentView}} props */
function Notes({ view }) {
  if (!view.notes.trim() && !view.description) return html`<${Empty} title="No notes"><p>Write some with:</p><code>everstep experiment set notes ${view.experiment} TEXT</code><//>`;
  return html`<div class="stack">${view.description && html`<p>${view.description}</p>`}${view.notes.trim() && html`<article class="card" aria-label="Notes"><${Markdown} source=${view.notes} /></article>`}</div>`;
}
