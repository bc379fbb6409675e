// A pool: its nodes and slots, and who holds them.

import { useEffect } from "preact/hooks";
import { html } from "./html.js";
import { look } from "./live.js";

/** @param {{id: string, tab: string}} props */
export function View({ id }) {
  useEffect(() => {
    look([]);
    document.title = "Pool – Everstep";
  }, [id]);
  return html`<h1>Pool ${id}</h1>`;
}
