// The way from one pool to another.

import { count } from "./format.js";
import { html } from "./html.js";

/** @typedef {import("./slots.js").PoolView} PoolView */

export const DEFAULT_POOL = "default"; // it is always there

/** @param {{pools: PoolView[], chosen: string, address: (pool: string) => string}} props */
export function Pools({ pools, chosen, address }) {
  if (pools.length < 2) return null;
  return html`<nav class="views" aria-label="Pools">${pools.map(
    (each) => html`<a key=${each.pool} href=${address(each.pool)} aria-current=${each.pool === chosen ? "page" : undefined}>${each.pool} <span class="quiet small">${count(each.num_slots - each.num_free)}/${count(each.num_slots)}</span></a>`,
  )}</nav>`;
}
