// The controls above a view: on a small screen one row, with the rest behind a button.

import { useState } from "preact/hooks";
import { html } from "./html.js";

/** @param {{label: string, role?: string, first: any, changed?: number, children?: any}} props  changed: how many of the rest are not as usual */
export function Bar({ label, role = "group", first, changed = 0, children }) {
  const [isOpen, setOpen] = useState(false);
  return html`<div class=${isOpen ? "bar open" : "bar"} role=${role} aria-label=${label}>
    ${first}
    <button class="more" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>Options${changed > 0 && html` <span class="state live">${changed}<span class="unseen"> changed</span></span>`}</button>
    <div class="rest">${children}</div>
  </div>`;
}
