// The registry: all models, or one of them with its versions.

import { useEffect, useState } from "preact/hooks";
import { mayChange, send } from "./api.js";
import { Bar } from "./bar.js";
import { FormDialog } from "./dialog.js";
import { useFetched } from "./fetched.js";
import { clock, count, plural } from "./format.js";
import { html } from "./html.js";
import { look } from "./live.js";
import { Model } from "./model.js";
import { address, go, modelAddress, query } from "./route.js";
import { Empty, Failed, StateWord, Waiting } from "./states.js";
import { Labels } from "./written.js";

const PAGE = 100;
const MOST = 1000; // of a call
export const RENEW_MS = 10_000; // people change models, now and then

/** @typedef {{model: number, name: string, description: string, notes: string, labels: string[], metadata: Record<string, unknown>, owner: string, is_archived: boolean, num_versions: number, last_version: number, created_at: number, changed_at: number}} ModelView */

const COLUMNS = [
  { name: "name", title: "Model" },
  { name: "description", title: "Description" },
  { name: "num_versions", title: "Versions", isNumber: true },
  { name: "", title: "Labels" },
  { name: "", title: "Owner" },
  { name: "changed_at", title: "Changed" },
];

/** @param {{id: string, tab: string}} props */
export function View({ id }) {
  useEffect(() => look([]), []);
  return id ? html`<${Model} key=${id} name=${id} />` : html`<${Models} />`;
}

function Models() {
  useEffect(() => {
    document.title = "Models – Everstep";
  }, []);
  const [most, setMost] = useState(PAGE);
  const [isNew, setNew] = useState(false);
  const parameters = query.value;
  const [search, label, sort] = [parameters.get("find") ?? "", parameters.get("label") ?? "", parameters.get("sort") ?? "name"];
  const [isDown, isArchived] = [parameters.has("down"), parameters.has("archived")];
  const asked = new URLSearchParams({ limit: String(most), search, label, sort, is_descending: String(isDown), is_archived: String(isArchived) });
  const { data, problem, renew } = useFetched(`/v1/models?${asked}`, { isKept: true, every_ms: RENEW_MS });
  const { data: labels } = useFetched("/v1/model-labels", { every_ms: RENEW_MS });
  const isFiltered = Boolean(search || label);
  return html`<div class="stack">
    <div class="head"><h1>Models</h1>${data && html`<span class="quiet" aria-live="polite">${plural(data.num_found, "model")}</span>`}
      ${mayChange() && html`<span class="end"><button onClick=${() => setNew(true)}>New model</button></span>`}</div>
    <${Bar} label="Which models" changed=${Number(Boolean(label)) + Number(isArchived)} first=${html`<input type="search" class="grow" placeholder="Search models, descriptions and labels" aria-label="Search models" value=${search}
        onInput=${(/** @type {any} */ event) => go({ find: event.target.value }, { replace: true })} />`}>
      <label>Label <select value=${label} onChange=${(/** @type {any} */ event) => go({ label: event.target.value }, { replace: true })}>
        <option value="">all</option>${(labels?.labels ?? []).map((/** @type {string} */ each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>
      <label><input type="checkbox" checked=${isArchived} onChange=${(/** @type {any} */ event) => go({ archived: event.target.checked }, { replace: true })} /> Archived, too</label>
    <//>
    ${problem && html`<${Failed} problem=${problem} />`}
    ${!data
      ? !problem && html`<${Waiting} />`
      : data.models.length
        ? html`<${Table} models=${data.models} sort=${sort} isDown=${isDown} />`
        : isFiltered
          ? html`<${Empty} title="No model matches"><p>Change the search or the label, or <a href="/models">show all models</a>.</p><//>`
          : html`<${Empty} title="No models yet"><p>Open a trial and register one of its checkpoints, or do it in a terminal. Checkpoints of models are never deleted.</p><code>everstep model create NAME${"\n"}everstep model register-version NAME UUID</code><//>`}
    ${data && data.num_found > data.models.length && html`<p>${most < MOST && html`<button onClick=${() => setMost(Math.min(MOST, most + 4 * PAGE))}>Show more</button>`} <span class="quiet">${count(data.models.length)} of ${plural(data.num_found, "model")} are shown.</span></p>`}
    ${isNew && html`<${NewModel} onClose=${() => (setNew(false), renew())} />`}
  </div>`;
}

/** @param {{models: ModelView[], sort: string, isDown: boolean}} props */
function Table({ models, sort, isDown }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Models"><table>
    <thead><tr>${COLUMNS.map(({ name, title, isNumber }) => {
      if (!name) return html`<th key=${title}>${title}</th>`;
      const isSorted = name === sort;
      return html`<th key=${title} class=${isNumber ? "number" : ""} aria-sort=${isSorted ? (isDown ? "descending" : "ascending") : "none"}>
        <button onClick=${() => go({ sort: name === "name" ? "" : name, down: isSorted && !isDown }, { replace: true })}>${title}<span aria-hidden="true">${isSorted ? (isDown ? " ↓" : " ↑") : ""}</span></button></th>`;
    })}</tr></thead>
    <tbody>${models.map((each) => html`<tr key=${each.model}>
      <td class="name"><a href=${modelAddress(each.name)}>${each.name}</a>${each.is_archived && html` <${StateWord} state="archived" />`}</td>
      <td><span class="cut" title=${each.description}>${each.description}</span></td><td class="number">${count(each.num_versions)}</td>
      <td><${Labels} labels=${each.labels} /></td><td>${each.owner || "–"}</td><td>${clock(each.changed_at)}</td></tr>`)}</tbody></table></div>`;
}

/** @param {{onClose: () => void}} props */
function NewModel({ onClose }) {
  const save = async (/** @type {Record<string, string>} */ { name, description }) => {
    await send("POST", "/v1/models", { request: crypto.randomUUID(), name: name.trim(), description });
    go({}, { path: modelAddress(name.trim()) });
  };
  return html`<${FormDialog} title="New model" verb="Create" save=${save} onClose=${onClose}>
    <label>Name <input type="text" name="name" required maxlength="256" autocomplete="off" /></label>
    <label>Description <input type="text" name="description" autocomplete="off" /></label><//>`;
}
