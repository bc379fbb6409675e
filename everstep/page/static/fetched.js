// What the coordinator answers to a call, fetched again while the view that shows it is open.

import { useCallback, useEffect, useState } from "preact/hooks";
import { get } from "./api.js";

const PAUSE_MS = 2000;

/** The answer to this call; null until it is there. What is shown stays while the coordinator is away.
 * @param {string} path "": none
 * @param {{isKept?: boolean}} [how] isKept: an earlier answer is shown until that to another path is there
 * @returns {{data: any, problem: import("./api.js").Refused | null, renew: () => Promise<void>}} */
export function useFetched(path, { isKept = false } = {}) {
  const [answer, setAnswer] = useState(/** @type {{path: string, data: any} | null} */ (null));
  const [problem, setProblem] = useState(/** @type {import("./api.js").Refused | null} */ (null));
  const renew = useCallback(async () => {
    if (!path) return;
    await get(path).then(
      (data) => (setAnswer({ path, data }), setProblem(null)),
      (error) => setProblem(error),
    );
  }, [path]);
  useEffect(() => {
    renew();
    const timer = setInterval(() => document.hidden || renew(), PAUSE_MS);
    return () => clearInterval(timer);
  }, [renew]);
  return { data: isKept || answer?.path === path ? answer?.data ?? null : null, problem, renew };
}
