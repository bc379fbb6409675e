// One experiment: what it is doing, its trials and its search.

import { useEffect } from "preact/hooks";
import { html } from "./html.js";
import { look } from "./live.js";

/** @param {{id: string, tab: string}} props */
export function View({ id }) {
  useEffect(() => {
    look([]);
    document.title = "Experiment – Everstep";
  }, [id]);
  return html`<h1>Experiment ${id}</h1>`;
}
