// One model: what people wrote on it, and its versions, each a checkpoint that is kept.

import { useEffect, useState } from "preact/hooks";
import { mayChange, send } from "./api.js";
import { AskingButton, FormDialog } from "./dialog.js";
import { useFetched } from "./fetched.js";
import { bytes, clock, count, number, plural } from "./format.js";
import { html } from "./html.js";
import { RENEW_MS } from "./models.js";
import { go, jobAddress, modelAddress } from "./route.js";
import { Empty, Failed, StateWord, Waiting } from "./states.js";
import { Labels, WrittenFields, WrittenText, labelsOf, metadataChange } from "./written.js";

const MOST = 1000; // of a call

/** @typedef {import("./models.js").ModelView} ModelView */
/** @typedef {{uuid: string, uri: string, step: number, job: string, experiment: number, trial: number, metric: number | string | null, state: string, num_bytes: number, created_at: number}} Checkpoint */
/** @typedef {{model: number, version: number, checkpoint: Checkpoint, name: string, comment: string, notes: string, labels: string[], metadata: Record<string, unknown>, owner: string, created_at: number}} Version */

/** @param {string} name */
export const modelPath = (name) => `/v1/models/${encodeURIComponent(name)}`;

/** @param {{name: string}} props */
export function Model({ name }) {
  const { data: model, problem, renew } = useFetched(modelPath(name), { every_ms: RENEW_MS });
  const { data: versions, renew: renewVersions } = useFetched(`${modelPath(name)}/versions?is_descending=true&limit=${MOST}`, { every_ms: RENEW_MS });
  useEffect(() => {
    document.title = `${name} – Everstep`;
  }, [name]);
  if (!model && problem?.status === 404) return html`<${Empty} title="No such model"><p>The coordinator has no model “${name}”. <a href="/models">Show all models</a></p><//>`;
  if (!model) return problem ? html`<${Failed} problem=${problem} />` : html`<${Waiting} />`;
  const renewAll = () => Promise.all([renew(), renewVersions()]);
  return html`<div class="stack">
    <${Head} model=${model} renew=${renew} />
    ${problem && html`<${Failed} problem=${problem} />`}
    <${WrittenText} written=${model} label="Metadata of the model" />
    <div class="section"><h2>Versions</h2><span class="quiet small">${plural(model.num_versions, "version")}</span></div>
    ${!versions ? html`<${Waiting} rows=${3} />` : versions.versions.length ? html`<${Versions} model=${model} versions=${versions.versions} renew=${renewAll} />` : html`<${Empty} title="No versions yet"><p>Open a trial and register one of its checkpoints, or do it in a terminal:</p><code>everstep model register-version ${model.name} UUID</code><//>`}
    ${versions && versions.num_found > versions.versions.length && html`<p class="quiet">The newest ${count(versions.versions.length)} of ${plural(versions.num_found, "version")}.</p>`}
  </div>`;
}

/** @param {{model: ModelView, renew: () => Promise<void>}} props */
function Head({ model, renew }) {
  const [isChanging, setChanging] = useState(false);
  const [problem, setProblem] = useState("");
  const change = (/** @type {object} */ what) => send("POST", `${modelPath(String(model.model))}/change`, what);
  const save = async (/** @type {Record<string, string>} */ typed) => {
    await change({ name: typed.name.trim(), description: typed.description, notes: typed.notes, labels: labelsOf(typed.labels), ...metadataChange(model.metadata, typed.metadata) });
    if (typed.name.trim() !== model.name) return go({}, { path: modelAddress(typed.name.trim()), replace: true });
    await renew();
  };
  const remove = async () => {
    await send("POST", `${modelPath(String(model.model))}/delete`);
    go({}, { path: "/models" });
  };
  return html`<div class="head"><h1>${model.name}</h1>${model.is_archived && html`<${StateWord} state="archived" />`}<${Labels} labels=${model.labels} />
      ${mayChange(model.owner) && html`<span class="end"><button onClick=${() => setChanging(true)}>Change</button>
        <button onClick=${() => change({ is_archived: !model.is_archived }).then(renew, (error) => setProblem(error.message))}>${model.is_archived ? "Unarchive" : "Archive"}</button>
        <${AskingButton} label="Delete" about=${model.name} title=${`Delete ${model.name}?`} verb="Delete" act=${remove}>Its ${plural(model.num_versions, "version")} and what is written on them are lost. Their checkpoints are then kept only as their experiments say.<//></span>`}</div>
    ${problem && html`<p class="notice bad" role="alert">${problem}</p>`}
    ${model.description && html`<p>${model.description}</p>`}
    <p class="quiet small">${model.owner && `By ${model.owner}. `}Created ${clock(model.created_at)}, changed ${clock(model.changed_at)}.</p>
    ${isChanging && html`<${FormDialog} title=${`Change ${model.name}`} verb="Save" save=${save} onClose=${() => setChanging(false)}>
      <${WrittenFields} written=${model}><label>Name <input type="text" name="name" required value=${model.name} /></label>
        <label>Description <input type="text" name="description" value=${model.description} /></label><//><//>`}`;
}

/** @param {{model: ModelView, versions: Version[], renew: () => Promise<unknown>}} props */
function Versions({ model, versions, renew }) {
  const hasButtons = mayChange(model.owner);
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Versions"><table>
    <thead><tr><th class="number">Version</th><th>Name</th><th>Labels</th><th>Trained by</th><th class="number">Step</th><th class="number">Metric</th><th class="number">Size</th><th>Registered</th><th>Checkpoint</th>${hasButtons && html`<th><span class="unseen">Change</span></th>`}</tr></thead>
    ${versions.map((each) => html`<${VersionRows} key=${each.version} model=${model} version=${each} hasButtons=${hasButtons} renew=${renew} />`)}</table></div>`;
}

/** @param {{model: ModelView, version: Version, hasButtons: boolean, renew: () => Promise<unknown>}} props */
function VersionRows({ model, version, hasButtons, renew }) {
  const [isChanging, setChanging] = useState(false);
  const { checkpoint } = version;
  const path = `${modelPath(String(model.model))}/versions/${version.version}`;
  const save = async (/** @type {Record<string, string>} */ typed) => {
    await send("POST", `${path}/change`, { name: typed.name.trim(), comment: typed.comment, notes: typed.notes, labels: labelsOf(typed.labels), ...metadataChange(version.metadata, typed.metadata) });
    await renew();
  };
  const remove = () => send("POST", `${path}/delete`).then(renew);
  const isWritten = version.comment || version.notes || Object.keys(version.metadata).length > 0;
  return html`<tbody data-version=${version.version}><tr>
      <td class="number">${version.version}</td><td class="name">${version.name || "–"}</td><td><${Labels} labels=${version.labels} /></td>
      <td>${checkpoint.job ? html`<a href=${jobAddress(checkpoint.job)}>${checkpoint.job}</a>` : "–"}</td><td class="number">${count(checkpoint.step)}</td><td class="number">${number(checkpoint.metric)}</td><td class="number">${bytes(checkpoint.num_bytes)}</td>
      <td>${clock(version.created_at)}${version.owner && ` by ${version.owner}`}</td><td class="mono" title=${checkpoint.uri}>${checkpoint.uuid}${checkpoint.state !== "COMPLETED" && html` <${StateWord} state=${checkpoint.state} />`}</td>
      ${hasButtons && html`<td><span class="buttons"><button onClick=${() => setChanging(true)}>Change<span class="unseen"> version ${version.version}</span></button>
        <${AskingButton} label="Delete" about=${`version ${version.version}`} title=${`Delete version ${version.version} of ${model.name}?`} verb="Delete" act=${remove}>What is written on it is lost. Its checkpoint is then kept only as its experiment says. The number ${version.version} is not used again.<//></span></td>`}
    </tr>
    ${isWritten && html`<tr class="why"><td></td><td colspan=${hasButtons ? 9 : 8}><div class="line">${version.comment && html`<p>${version.comment}</p>`}<${WrittenText} written=${version} label=${`Metadata of version ${version.version}`} /></div></td></tr>`}
    ${isChanging && html`<${FormDialog} title=${`Change version ${version.version}`} verb="Save" save=${save} onClose=${() => setChanging(false)}>
      <${WrittenFields} written=${version}><label>Name <input type="text" name="name" value=${version.name} /></label>
        <label>Comment <input type="text" name="comment" value=${version.comment} /></label><//><//>`}
  </tbody>`;
}
