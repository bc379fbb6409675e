// Registered models and their versions.

import { useEffect } from "preact/hooks";
import { html } from "./html.js";
import { look } from "./live.js";

/** @param {{id: string, tab: string}} props */
export function View({ id }) {
  useEffect(() => {
    look([]);
    document.title = "Models – Everstep";
  }, [id]);
  return html`<h1>Models ${id}</h1>`;
}
