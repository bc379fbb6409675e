// A view whose script comes when it is opened: it is built as a file of its own.

import { useEffect, useState } from "preact/hooks";
import { html } from "./html.js";
import { Waiting } from "./states.js";

/** Those that came already are shown at once.
 * @type {Map<() => Promise<{View: any}>, any>} */
const known = new Map();

/** @param {{load: () => Promise<{View: any}>, id: string, tab: string}} props  id: what the view is about, from the address */
export function Later({ load, id, tab }) {
  const [, setView] = useState(() => known.get(load));
  const [hasFailed, setFailed] = useState(false);
  useEffect(() => {
    if (known.has(load)) return;
    load().then(
      (module) => (known.set(load, module.View), setView(() => module.View)),
      () => setFailed(true),
    );
  }, [load]);
  const View = known.get(load);
  if (View) return html`<${View} id=${id} tab=${tab} />`;
  // A browser never tries a failed import again.
  if (hasFailed) return html`<div class="notice bad" role="alert">This part of the page did not load. <button onClick=${() => location.reload()}>Load again</button></div>`;
  return html`<${Waiting} />`;
}
