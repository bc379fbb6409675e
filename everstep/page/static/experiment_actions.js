// What people do with an experiment, for the list and for the view of one: who may, in which state, and what is asked
// before something is lost.

import { useEffect, useState } from "preact/hooks";
import { get, mayChange, send } from "./api.js";
import { AskingButton, FormDialog } from "./dialog.js";
import { html } from "./html.js";
import { experimentAddress, go } from "./route.js";
import { labelsOf } from "./written.js";

/** @typedef {import("./experiment_state.js").View} View */
/** @typedef {{name: string, title: string, states: string[], isArchived?: boolean, asks?: string}} Action */

export const ENDED = ["COMPLETED", "CANCELED", "ERROR"];

/** In the order of the buttons. `asks`: what is lost.
 * @type {Action[]} */
export const ACTIONS = [
  { name: "pause", title: "Pause", states: ["ACTIVE"] },
  { name: "activate", title: "Activate", states: ["PAUSED"] },
  { name: "cancel", title: "Cancel", states: ["ACTIVE", "PAUSED"], asks: "Its trials save and end. A canceled experiment does not continue; to stop for a while, pause it." },
  { name: "kill", title: "Kill", states: ["ACTIVE", "PAUSED", "STOPPING_COMPLETED", "STOPPING_CANCELED", "STOPPING_ERROR"], asks: "Its trials end at once and do not save: what they have trained since their last checkpoints is lost." },
  { name: "archive", title: "Archive", states: ENDED, isArchived: false },
  { name: "unarchive", title: "Unarchive", states: ENDED, isArchived: true },
  { name: "delete", title: "Delete", states: ENDED, asks: "Its results, logs and checkpoints are deleted for good. Registered checkpoints stay." },
];

/** What may be done with all of these experiments.
 * @param {{state: string, is_archived: boolean}[]} views @returns {Action[]} */
export const possible = (views) =>
  ACTIONS.filter(({ states, isArchived }) => views.every((view) => states.includes(view.state) && (isArchived === undefined || isArchived === view.is_archived)));

/** @param {number | string} experiment @param {string} action @returns {Promise<View>} */
export const act = (experiment, action) => send("POST", `/v1/experiments/${experiment}/action`, { action });

/** Act on each, also after one has failed.
 * @param {number[]} experiments @param {string} action */
export async function actOnAll(experiments, action) {
  const done = await Promise.allSettled(experiments.map((each) => act(each, action)));
  const failed = done.flatMap((each) => (each.status === "rejected" ? [each.reason.message] : []));
  if (failed.length) throw new Error([...new Set(failed)].join(" "));
}

/** A name that no other request has. Not by randomUUID, which browsers have only behind TLS. */
export function newRequest() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (each) => each.toString(16).padStart(2, "0")).join("");
}

/** What to change, of what was typed; nothing that stays as it is.
 * @param {View} view @param {Record<string, string>} typed */
export function changeOf(view, typed) {
  const { priority, weight, max_slots } = view.scheduling;
  const before = { name: view.name, description: view.description, labels: view.labels, priority, weight, max_slots };
  const after = { name: typed.name, description: typed.description, labels: labelsOf(typed.labels), priority: Number(typed.priority), weight: Number(typed.weight), max_slots: Number(typed.max_slots) };
  return Object.fromEntries(Object.entries(after).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(before[/** @type {keyof typeof before} */ (name)])));
}

/** The buttons of an experiment; none for those who may only look.
 * @param {{view: View, onChange: (view: View | null) => void}} props */
export function Actions({ view, onChange }) {
  const [open, setOpen] = useState("");
  const [problem, setProblem] = useState("");
  if (!mayChange()) return null;
  const isMine = mayChange(view.owner);
  const isOver = ENDED.includes(view.state);
  const run = async (/** @type {string} */ action) => {
    const after = await act(view.experiment, action);
    setProblem("");
    if (action === "delete") go({}, { path: "/experiments" });
    else onChange(after);
  };
  const tried = (/** @type {string} */ action) => run(action).catch((error) => setProblem(error.message));
  const close = () => setOpen("");
  const mine = isMine ? possible([view]) : [];
  return html`<span class="buttons" role="group" aria-label="Actions">
    ${mine.filter((each) => !each.asks).map((each) => html`<button key=${each.name} onClick=${() => tried(each.name)}>${each.title}</button>`)}
    <button onClick=${() => setOpen("fork")}>Fork</button>
    ${isOver && html`<button onClick=${() => setOpen("continue")}>Continue</button>`}
    ${isMine && html`<button onClick=${() => setOpen("edit")}>Edit</button>`}
    ${mine.filter((each) => each.asks).map((each) => html`<${AskingButton} key=${each.name} label=${each.title} title=${`${each.title} experiment ${view.experiment}?`} verb=${each.title} act=${() => run(each.name)}>${each.asks}<//>`)}
    ${problem && html`<span class="notice bad" role="alert">${problem}</span>`}
    ${open === "edit" && html`<${EditDialog} view=${view} onChange=${onChange} onClose=${close} />`}
    ${(open === "fork" || open === "continue") && html`<${ForkDialog} view=${view} isContinued=${open === "continue"} onClose=${close} />`}
  </span>`;
}

/** Actions for several experiments at once.
 * @param {{views: View[], onDone: () => void}} props */
export function ManyActions({ views, onDone }) {
  const [problem, setProblem] = useState("");
  if (!views.length || !views.every((each) => mayChange(each.owner))) return null;
  const numbers = views.map((each) => each.experiment);
  const run = (/** @type {string} */ action) => actOnAll(numbers, action).finally(onDone);
  const tried = (/** @type {string} */ action) => run(action).then(() => setProblem(""), (error) => setProblem(error.message));
  const all = possible(views);
  const which = numbers.length === 1 ? `experiment ${numbers[0]}` : `${numbers.length} experiments`;
  return html`<span class="buttons" role="group" aria-label="Actions for the selected experiments">
    ${!all.length && html`<span class="quiet">No action fits all of them</span>`}
    ${all.map((each) =>
      each.asks
        ? html`<${AskingButton} key=${each.name} label=${each.title} title=${`${each.title} ${which}?`} verb=${each.title} act=${() => run(each.name)}>${each.asks}<//>`
        : html`<button key=${each.name} onClick=${() => tried(each.name)}>${each.title}</button>`,
    )}
    ${problem && html`<span class="notice bad" role="alert">${problem}</span>`}
  </span>`;
}

/** @param {{view: View, onChange: (view: View) => void, onClose: () => void}} props */
function EditDialog({ view, onChange, onClose }) {
  const { priority, weight, max_slots } = view.scheduling;
  const save = async (/** @type {Record<string, string>} */ typed) => {
    const change = changeOf(view, typed);
    if (Object.keys(change).length) onChange(await send("POST", `/v1/experiments/${view.experiment}/change`, change));
  };
  return html`<${FormDialog} title=${`Experiment ${view.experiment}`} verb="Save" save=${save} onClose=${onClose}>
    <label>Name <input type="text" name="name" maxlength="256" value=${view.name} /></label>
    <label>Description <input type="text" name="description" value=${view.description} /></label>
    <label>Labels <input type="text" name="labels" value=${view.labels.join(", ")} placeholder="with commas between them" /></label>
    <label>Priority, from 1 to 99; smaller numbers go first <input type="number" name="priority" min="1" max="99" step="1" required value=${priority} /></label>
    <label>Weight among experiments with the same priority <input type="number" name="weight" min="0.000001" max="1000000" step="any" required value=${weight} /></label>
    <label>Most slots; 0: as many as help <input type="number" name="max_slots" min="0" step="1" required value=${max_slots} /></label>
  <//>`;
}

/** An editor for the experiment's file. What the coordinator finds wrong with it is shown above the buttons.
 * @param {{view: View, isContinued: boolean, onClose: () => void}} props */
function ForkDialog({ view, isContinued, onClose }) {
  const [config, setConfig] = useState(/** @type {{written: string, config: object} | null} */ (null));
  const [problem, setProblem] = useState("");
  const [request] = useState(newRequest); // the same for each try: a lost answer creates no second one
  useEffect(() => {
    get(`/v1/experiments/${view.experiment}/config`).then(setConfig, (error) => setProblem(error.message));
  }, [view.experiment]);
  const save = async (/** @type {Record<string, string>} */ { written = "", is_paused }) => {
    if (!config) throw new Error("The file of the experiment is not here yet.");
    const made = await send("POST", `/v1/experiments/${view.experiment}/fork`, { request, written, is_continued: isContinued, is_paused: Boolean(is_paused) });
    go({}, { path: experimentAddress(made.experiment) });
  };
  const title = `${isContinued ? "Continue" : "Fork"} experiment ${view.experiment}`;
  const hasFile = config && (config.written || Object.keys(config.config).length > 0);
  return html`<${FormDialog} title=${title} verb="Create" save=${save} onClose=${onClose}>
    <p class="quiet">${isContinued ? "A new experiment, whose trials start with the weights of the best trial." : "A new experiment with the same code."} ${hasFile ? "Change its file here." : config && "It was created without a file, so there is nothing to change."}</p>
    ${problem && html`<p class="notice bad" role="alert">${problem}</p>`}
    ${hasFile && html`<label>File <textarea class="mono" name="written" rows="18" spellcheck="false" wrap="off">${config.written || JSON.stringify(config.config, null, 2)}</textarea></label>`}
    <label class="check"><input type="checkbox" name="is_paused" value="1" /> Create it paused</label>
  <//>`;
}
