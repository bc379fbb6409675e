// What the coordinator says of its pools, fetched again as it changes; and the way from one pool to another.

import { useCallback, useEffect, useState } from "preact/hooks";
import { get } from "./api.js";
import { count } from "./format.js";
import { html } from "./html.js";
import { look } from "./live.js";

const PAUSE_MS = 2000;

/** @typedef {import("./slots.js").PoolView} PoolView */

/** The answer to this call, as long as the view is open.
 * @template T
 * @param {string} path "": none
 * @returns {{data: T | null, problem: Error | null, renew: () => Promise<void>}} */
export function useFetched(path) {
  const [answer, setAnswer] = useState(/** @type {{path: string, data: T} | null} */ (null));
  const [problem, setProblem] = useState(/** @type {Error | null} */ (null));
  const renew = useCallback(() => {
    if (!path) return Promise.resolve(undefined);
    return get(path).then(
      (data) => (setAnswer({ path, data }), setProblem(null)),
      (error) => setProblem(error),
    );
  }, [path]);
  useEffect(() => {
    look([]);
    renew();
    const timer = setInterval(() => document.hidden || renew(), PAUSE_MS);
    return () => clearInterval(timer);
  }, [renew]);
  return { data: answer?.path === path ? answer.data : null, problem, renew };
}

/** @param {{pools: PoolView[], chosen: string, address: (pool: string) => string}} props */
export function Pools({ pools, chosen, address }) {
  if (pools.length < 2) return null;
  return html`<nav class="views" aria-label="Pools">${pools.map(
    (each) => html`<a key=${each.pool} href=${address(each.pool)} aria-current=${each.pool === chosen ? "page" : undefined}>${each.pool} <span class="quiet small">${count(each.num_slots - each.num_free)}/${count(each.num_slots)}</span></a>`,
  )}</nav>`;
}

/** The pool that the address names, or the first one.
 * @param {PoolView[] | undefined} pools @param {string} id */
export const chosenPool = (pools, id) => (id ? pools?.find((each) => each.pool === id) : pools?.find((each) => each.pool === "default") ?? pools?.[0]);
