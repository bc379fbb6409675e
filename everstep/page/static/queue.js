// A pool's queue: the order of the trials that wait, and why each one waits.

import { useEffect } from "preact/hooks";
import { html } from "./html.js";
import { look } from "./live.js";

/** @param {{id: string, tab: string}} props */
export function View({ id }) {
  useEffect(() => {
    look([]);
    document.title = "Queue – Everstep";
  }, [id]);
  return html`<h1>Queue ${id}</h1>`;
}
