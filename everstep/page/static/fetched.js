// What the coordinator answers to calls, for as long as a view shows it: followed by the stream, or asked for again when
// something says that it has changed. What is shown stays while the coordinator is away.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { get } from "./api.js";
import { listen, watch } from "./live.js";

/** @typedef {import("./api.js").Refused} Refused */

/** The answer to this call; null until it is there.
 * @param {string} path "": none
 * @param {{when?: unknown, every_ms?: number, isKept?: boolean}} [how] when: ask again if it has changed; isKept: an earlier answer is shown until that to another path is there
 * @returns {{data: any, problem: Refused | null, renew: () => Promise<void>}} */
export function useFetched(path, { when, every_ms = 0, isKept = false } = {}) {
  const [answer, setAnswer] = useState(/** @type {{path: string, data: any} | null} */ (null));
  const [problem, setProblem] = useState(/** @type {Refused | null} */ (null));
  const renew = useCallback(async () => {
    if (!path) return;
    await get(path).then(
      (data) => (setAnswer({ path, data }), setProblem(null)),
      (error) => setProblem(error),
    );
  }, [path]);
  useEffect(() => void renew(), [renew, when]);
  useEffect(() => {
    const ends = ["began", "reload"].map((event) => listen(event, renew));
    const timer = every_ms ? setInterval(() => document.hidden || renew(), every_ms) : null;
    return () => (ends.forEach((end) => end()), timer !== null && clearInterval(timer));
  }, [renew, every_ms]);
  return { data: isKept || answer?.path === path ? answer?.data ?? null : null, problem, renew };
}

/** The answers to these calls, by name, with the increments of the stream. One that comes while they are loaded is
 * applied to what is loaded: an answer may be older.
 * @template {Record<string, any>} T
 * @param {Record<string, string>} paths @param {string[]} topics @param {Record<string, (data: T, news: any) => T>} take by event
 * @returns {{data: T | null, problem: Refused | null, renew: () => Promise<void>}} */
export function useFollowed(paths, topics, take) {
  const [data, setData] = useState(/** @type {T | null} */ (null));
  const [problem, setProblem] = useState(/** @type {Refused | null} */ (null));
  const waiting = useRef(/** @type {((data: T) => T)[] | null} */ (null)); // while loading
  const asked = JSON.stringify([paths, topics]);
  const load = useCallback(async () => {
    /** @type {((data: T) => T)[]} */
    const mine = (waiting.current = []);
    try {
      const found = await Promise.all(Object.values(paths).map((path) => get(path)));
      if (waiting.current !== mine) return; // loaded again meanwhile
      waiting.current = null;
      const loaded = /** @type {T} */ (Object.fromEntries(Object.keys(paths).map((name, i) => [name, found[i]])));
      setData(mine.reduce((made, change) => change(made), loaded));
      setProblem(null);
    } catch (error) {
      if (waiting.current === mine) waiting.current = null;
      setProblem(/** @type {Refused} */ (error));
    }
  }, [asked]);
  useEffect(() => {
    setData(null);
    const taking = Object.entries(take).map(([event, change]) => [
      event,
      (/** @type {any} */ news) => {
        waiting.current?.push((made) => change(made, news));
        setData((made) => made && change(made, news));
      },
    ]);
    const end = watch({ topics, load, take: Object.fromEntries(taking) });
    return () => ((waiting.current = null), end());
  }, [asked]);
  return { data, problem, renew: load };
}
