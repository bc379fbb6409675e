// What the coordinator answers to a call, fetched again while the view that shows it is open.

import { useCallback, useEffect, useState } from "preact/hooks";
import { get } from "./api.js";

const PAUSE_MS = 2000;

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
    renew();
    const timer = setInterval(() => document.hidden || renew(), PAUSE_MS);
    return () => clearInterval(timer);
  }, [renew]);
  return { data: answer?.path === path ? answer.data : null, problem, renew };
}
