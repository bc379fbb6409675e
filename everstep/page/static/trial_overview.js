// A trial at a glance: its workers over time, what the search decided at each length, its hyperparameters and
// checkpoints.

import { useMemo } from "preact/hooks";
import { Band } from "./band.js";
import { flatten, text } from "./configuration.js";
import { useFetched } from "./fetched.js";
import { bytes, clock, count, number } from "./format.js";
import { html } from "./html.js";
import { lanes } from "./lanes.js";
import { Register, RegisteredAs } from "./register.js";
import { StateWord } from "./states.js";
import { sizesText, stages } from "./trial_story.js";

/** @typedef {import("./trial_story.js").Trial} Trial */

/** @param {{trial: Trial, experiment: any, state: import("./job_state.js").JobState}} props */
export function Overview({ trial, experiment, state }) {
  return html`<div class="stack">
    <${WorkersOverTime} trial=${trial} state=${state} />
    <div class="side">
      <section aria-labelledby="hp-title"><div class="section"><h2 id="hp-title">Hyperparameters</h2><span class="quiet small">seed ${trial.seed}</span></div><${Hyperparameters} hparams=${trial.hparams} /></section>
      <section aria-labelledby="rungs-title"><div class="section"><h2 id="rungs-title">Search</h2><span class="quiet small">${experiment ? `${experiment.searcher}, ${experiment.smaller_is_better ? "smaller" : "larger"} ${experiment.metric} is better` : ""}</span></div><${Rungs} trial=${trial} unit=${experiment?.unit ?? ""} /></section>
    </div>
    <${Saved} trial=${trial} />
  </div>`;
}

/** @param {{trial: Trial, state: import("./job_state.js").JobState}} props */
function WorkersOverTime({ trial, state }) {
  const marks = state.marks.value;
  const first = marks?.[0]?.time ?? 0;
  const end = trial.ended_at ?? Math.max(Date.now() / 1000, marks?.at(-1)?.time ?? 0);
  const sizes = useMemo(() => lanes(marks ?? [], (mark) => mark.time, end).sizes, [marks]);
  if (trial.started_at === null) return html`<p class="notice">This trial has not started: ${trial.reason}</p>`;
  if (!marks || marks.length < 2) return null;
  const looks = { axis: /** @type {const} */ ("time"), placeMark: (/** @type {any} */ mark) => mark.time, range: null, extent: /** @type {[number, number]} */ ([first, end]) };
  return html`<div><p class="quiet" id="sizes">${sizesText(sizes)}</p><${Band} marks=${marks} lookup=${looks} isDocked=${false} isCount=${true} /></div>`;
}

/** @param {{hparams: Record<string, unknown>}} props */
function Hyperparameters({ hparams }) {
  const rows = flatten(hparams);
  if (!rows.length) return html`<p class="quiet">This experiment has no hyperparameters.</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Hyperparameters"><table class="tight">
    <thead><tr><th>Name</th><th>Value</th></tr></thead>
    <tbody>${rows.map(([name, value]) => html`<tr key=${name}><td>${name}</td><td class="mono wrap">${typeof value === "number" ? number(value) : text(value)}</td></tr>`)}</tbody></table></div>`;
}

/** @param {{trial: Trial, unit: string}} props */
function Rungs({ trial, unit }) {
  const when = `${trial.state} ${trial.length} ${trial.target}`;
  const { data } = useFetched(`/v1/experiments/${trial.experiment}/trials/${trial.trial}/results`, { when });
  const { data: compared } = useFetched(`/v1/experiments/${trial.experiment}/rungs`, { when });
  if (!data) return null;
  const rows = stages(trial, data.results, data.targets, compared?.cohorts ?? []);
  if (!rows.length) return html`<p class="quiet">The search has not given this trial a length yet.</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Search"><table class="tight">
    <thead><tr><th class="number">To</th><th class="number">Result</th><th>Compared</th><th>Decision</th></tr></thead>
    <tbody>${rows.map((each, i) => html`<tr key=${i}><td class="number">${each.length === null ? "the end" : `${count(each.length)} ${unit}`}</td><td class="number">${number(each.metric)}</td>
      <td>${each.compared || "–"}</td><td class="wrap">${each.decision}</td></tr>`)}</tbody></table></div>`;
}

/** @typedef {import("./model.js").Checkpoint & {registered: import("./register.js").Registered[]}} Checkpoint */

/** @param {{trial: Trial}} props */
function Saved({ trial }) {
  const { data, renew } = useFetched(`/v1/experiments/${trial.experiment}/checkpoints?trial=${trial.trial}&limit=1000`, { when: `${trial.state} ${trial.latest_checkpoint} ${trial.best_checkpoint}` });
  if (!data) return null;
  /** @type {Checkpoint[]} */
  const newest = [...data.checkpoints].sort((a, b) => b.step - a.step);
  return html`<section aria-labelledby="saved-title"><div class="section"><h2 id="saved-title">Checkpoints</h2></div>
    ${!newest.length && html`<p class="quiet">This trial has not saved a checkpoint.</p>`}
    ${newest.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Checkpoints"><table class="tight">
      <thead><tr><th class="number">Step</th><th class="number">Metric</th><th>Saved</th><th class="number">Size</th><th>State</th><th>UUID</th><th>Model</th></tr></thead>
      <tbody>${newest.map((each) => html`<tr key=${each.uuid}><td class="number">${count(each.step)}</td><td class="number">${number(each.metric)}</td><td>${clock(each.created_at)}</td><td class="number">${bytes(each.num_bytes)}</td>
        <td>${each.state === "COMPLETED" ? (each.uuid === trial.best_checkpoint ? "best" : each.uuid === trial.latest_checkpoint ? "newest" : "kept") : html`<${StateWord} state=${each.state} />`}</td><td class="mono">${each.uuid}</td>
        <td><span class="buttons"><${RegisteredAs} registered=${each.registered} />${each.state === "COMPLETED" && html`<${Register} uuid=${each.uuid} onDone=${renew} />`}</span></td></tr>`)}</tbody></table></div>`}
  </section>`;
}
