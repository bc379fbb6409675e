// A trial: its hyperparameters, what the search decided about it, its workers as it grew and shrank, and the views of its
// job.

import { useEffect, useLayoutEffect } from "preact/hooks";
import { mayChange, send } from "./api.js";
import { AskingButton } from "./dialog.js";
import { useFetched } from "./fetched.js";
import { clock, count, duration, number } from "./format.js";
import { html } from "./html.js";
import { Job, JobView, KEPT, VIEWS, useJob } from "./job.js";
import { listen } from "./live.js";
import { TRIAL_JOB, address, experimentAddress, query } from "./route.js";
import { Empty, Failed, StateWord, Waiting } from "./states.js";
import { Overview } from "./trial_overview.js";
import { isOver } from "./trial_story.js";

const PAUSE_MS = 300;

/** @typedef {import("./trial_story.js").Trial} TrialView */

/** @param {{id: string, tab: string}} props  id: unique at the coordinator, or the name of the trial's job */
export function View({ id }) {
  const [, experiment, trial] = TRIAL_JOB.exec(id) ?? [];
  const { data, problem, renew } = useFetched(experiment ? `/v1/experiments/${experiment}/trials/${trial}` : `/v1/trials/${id}`);
  if (data) return html`<${Trial} key=${data.job} trial=${data} problem=${problem} renew=${renew} />`;
  if (!problem) return html`<${Waiting} />`;
  // A record of a job that is over knows no experiments.
  if (experiment && problem.status === 404) return html`<${Job} job=${id} />`;
  return problem.status === 404
    ? html`<${Empty} title="No such trial"><p>The coordinator does not know a trial ${id}. <a href="/experiments">Show all experiments</a></p><//>`
    : html`<${Failed} problem=${problem} />`;
}

/** @param {{trial: TrialView, problem: Error | null, renew: () => Promise<void>}} props */
function Trial({ trial, problem, renew }) {
  const hasJob = trial.started_at !== null; // made with its first slot
  const state = useJob(trial.job, { isThere: hasJob, topics: [`experiments/${trial.experiment}`] });
  useLayoutEffect(() => {
    document.title = `${trial.job} – Everstep`;
  }, [trial.job]);
  const { data: experiment } = useFetched(`/v1/experiments/${trial.experiment}`, { when: trial.state });
  useEffect(() => followTrial(trial, renew), [trial.experiment, trial.trial, renew]);
  const chosen = query.value.get("view") ?? "";
  const views = { "": "Overview", ...(hasJob ? { metrics: "Metrics", ...Object.fromEntries(Object.entries(VIEWS).filter(([name]) => name)) } : {}) };
  return html`<div class=${chosen ? "stack part" : "stack"}>
    <${Head} trial=${trial} experiment=${experiment} renew=${renew} />
    ${problem && html`<${Failed} problem=${problem} />`}
    <nav class="views" aria-label="Views of the trial">${Object.entries(views).map(
      ([name, title]) => html`<a key=${name} href=${address({ ...Object.fromEntries(KEPT.map((each) => [each, query.value.get(each)])), view: name }, location.pathname)} aria-current=${name === chosen ? "page" : undefined}>${title}</a>`,
    )}</nav>
    ${chosen && hasJob ? html`<${JobView} name=${chosen === "metrics" ? "" : chosen} state=${state} />` : html`<${Overview} trial=${trial} experiment=${experiment} state=${state} />`}
  </div>`;
}

/** Ask for the trial again when the stream tells of it; not more often than it can be read.
 * @param {TrialView} trial @param {() => Promise<void>} renew */
function followTrial({ experiment, trial }, renew) {
  /** @type {any} */
  let timer = null;
  const end = listen("experiment", (news) => {
    const isMine = news.experiment === experiment && (!news.trials || news.trials.trials.includes(trial));
    if (isMine) timer ??= setTimeout(() => ((timer = null), renew()), PAUSE_MS);
  });
  return () => (clearTimeout(timer), end());
}

/** @param {{trial: TrialView, experiment: any, renew: () => Promise<void>}} props */
function Head({ trial, experiment, renew }) {
  const end = trial.ended_at ?? Date.now() / 1000;
  const unit = experiment?.unit ?? "";
  const kill = () => send("POST", `/v1/experiments/${trial.experiment}/trials/${trial.trial}/kill`).then(renew);
  const facts = [
    [`Best${experiment?.metric ? ` ${experiment.metric}` : ""}`, trial.best === null ? "–" : `${number(trial.best)} at ${count(trial.best_length)}`],
    ["Last", number(trial.latest)],
    ["Trained", `${count(trial.length)}${trial.target === null ? "" : ` of ${count(trial.target)}`} ${unit}`],
    ["Slots", count(trial.num_slots)],
    ["Restarts", count(trial.num_restarts)],
    ...(trial.started_at ? [["Started", clock(trial.started_at)], [trial.ended_at ? "Duration" : "Since its start", duration(end - trial.started_at)]] : [["Created", clock(trial.created_at)]]),
  ];
  return html`<div class="head"><h1>Trial ${trial.trial}</h1><${StateWord} state=${trial.state} />
      <span>of <a href=${experimentAddress(trial.experiment)}>experiment ${trial.experiment}${experiment?.name && `, ${experiment.name}`}</a></span>
      <span class="end"><a class="button" href=${address({ jobs: trial.job }, "/compare")}>Compare</a>${!isOver(trial) && mayChange(experiment?.owner) && html`<${AskingButton} label="Kill" about=${`trial ${trial.trial}`} title=${`Kill trial ${trial.trial}?`} verb="Kill" act=${kill}>It ends at once and does not save: what it has trained since its last checkpoint is lost. The search continues without it.<//>`}</span></div>
    <p class="quiet" id="reason" aria-live="polite">${trial.reason}</p>
    <dl class="facts">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}
