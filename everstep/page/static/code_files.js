// The files of an experiment's code, and the text of one of them.

import { useEffect, useMemo } from "preact/hooks";
import { bytes, plural } from "./format.js";
import { html } from "./html.js";
import { Part } from "./part.js";
import { address, query } from "./route.js";
import { Empty, Failed, Waiting } from "./states.js";

/** @typedef {{code: string, files: {name: string, num_bytes: number, kind: string}[], num_left_out: number}} FileList */

/** @param {{id: string, part: Part<FileList>}} props */
export function CodeFiles({ id, part }) {
  const found = part.value.value;
  const problem = part.problem.value;
  const chosen = query.value.get("file") ?? "";
  if (!found) return problem ? html`<${Failed} problem=${problem} />` : html`<${Waiting} />`;
  if (!found.files.length) return html`<${Empty} title="No code"><p>This experiment was created without a folder of code.</p><//>`;
  return html`<div class="code-files">
    <nav class="card" aria-label="Files">
      <p class="small quiet">${plural(found.files.length, "file")}${found.num_left_out > 0 && `, ${found.num_left_out} more not listed`}</p>
      <ul>${found.files.map(
        (each) => html`<li key=${each.name}>${each.kind === "file" ? html`<a href=${address({ file: each.name })} aria-current=${each.name === chosen ? "page" : undefined}>${each.name}</a>` : each.name}<span class="quiet small">${each.kind === "file" ? bytes(each.num_bytes) : each.kind}</span></li>`,
      )}</ul>
    </nav>
    ${chosen ? html`<${File} key=${chosen} id=${id} name=${chosen} />` : html`<p class="quiet card">Choose a file.</p>`}
  </div>`;
}

/** @param {{id: string, name: string}} props */
function File({ id, name }) {
  const part = useMemo(() => /** @type {Part<{name: string, num_bytes: number, text: string, is_cut: boolean}>} */ (new Part(`/v1/experiments/${id}/file`, { name })), [id, name]);
  useEffect(() => {
    part.want();
    return () => part.unwant();
  }, [part]);
  const found = part.value.value;
  const problem = part.problem.value;
  if (!found) return problem ? html`<${Failed} problem=${problem} />` : html`<${Waiting} />`;
  return html`<section aria-label=${name}>
    <div class="section"><h2 class="mono">${name}</h2><span class="quiet small">${bytes(found.num_bytes)}${found.is_cut && ", only the beginning is shown"}</span></div>
    <pre class="card code" tabindex="0"><code>${found.text}</code></pre>
  </section>`;
}
