// One trial: its job, its hyperparameters and its results.

import { useEffect } from "preact/hooks";
import { html } from "./html.js";
import { look } from "./live.js";

/** @param {{id: string, tab: string}} props */
export function View({ id }) {
  useEffect(() => {
    look([]);
    document.title = "Trial – Everstep";
  }, [id]);
  return html`<h1>Trial ${id}</h1>`;
}
