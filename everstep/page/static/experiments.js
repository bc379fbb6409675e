// All experiments of the coordinator.

import { useEffect } from "preact/hooks";
import { html } from "./html.js";
import { look } from "./live.js";

/** @param {{id: string, tab: string}} props */
export function View({ id }) {
  useEffect(() => {
    look([]);
    document.title = "Experiments – Everstep";
  }, [id]);
  return html`<h1>Experiments ${id}</h1>`;
}
