// Register a checkpoint as a version of a model: a button wherever a checkpoint is shown, and what it is registered as.

import { useState } from "preact/hooks";
import { mayChange, get, send } from "./api.js";
import { FormDialog } from "./dialog.js";
import { useFetched } from "./fetched.js";
import { html } from "./html.js";
import { modelPath } from "./model.js";
import { modelAddress } from "./route.js";
import { labelsOf } from "./written.js";

const MOST = 1000; // of a call

/** @typedef {{model: number, name: string, version: number}} Registered */

/** @param {{registered: Registered[]}} props */
export const RegisteredAs = ({ registered }) => html`${registered.map((each, i) => html`${i > 0 && ", "}<a key=${`${each.model} ${each.version}`} href=${modelAddress(each.name)}>${each.name} ${each.version}</a>`)}`;

/** @param {{uuid: string, onDone: () => unknown}} props */
export function Register({ uuid, onDone }) {
  const [isOpen, setOpen] = useState(false);
  if (!mayChange()) return null;
  return html`<button onClick=${() => setOpen(true)}>Register<span class="unseen"> checkpoint ${uuid}</span></button>
    ${isOpen && html`<${RegisterDialog} uuid=${uuid} onClose=${() => setOpen(false)} onDone=${onDone} />`}`;
}

/** @param {{uuid: string, onClose: () => void, onDone: () => unknown}} props */
function RegisterDialog({ uuid, onClose, onDone }) {
  const { data } = useFetched(`/v1/models?limit=${MOST}`);
  const save = async (/** @type {Record<string, string>} */ { model, name, comment, labels }) => {
    await known(model.trim());
    await send("POST", `${modelPath(model.trim())}/versions`, { checkpoint: uuid, name: name.trim(), comment, labels: labelsOf(labels) });
    await onDone();
  };
  return html`<${FormDialog} title="Register a checkpoint" verb="Register" save=${save} onClose=${onClose}>
    <p class="quiet">The next version of a model. Its checkpoint is kept for as long as it is one.</p>
    <p class="mono">${uuid}</p>
    <label>Model <input type="text" name="model" list="models" required maxlength="256" autocomplete="off" placeholder="one that is there, or a new name" /></label>
    <datalist id="models">${(data?.models ?? []).map((/** @type {any} */ each) => html`<option key=${each.model} value=${each.name} />`)}</datalist>
    <label>Name of the version <input type="text" name="name" autocomplete="off" /></label>
    <label>Comment <input type="text" name="comment" autocomplete="off" /></label>
    <label>Labels <input type="text" name="labels" autocomplete="off" placeholder="with commas between them" /></label><//>`;
}

/** A model of this name is there, or made.
 * @param {string} name */
async function known(name) {
  const { models } = await get("/v1/models", { search: name, limit: MOST, is_archived: true });
  if (models.some((/** @type {any} */ each) => each.name === name)) return;
  await send("POST", "/v1/models", { request: crypto.randomUUID(), name });
}
