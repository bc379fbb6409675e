// What the page shows is written in the address: a link to it shows the same, and Back goes back.

import { computed, signal } from "@preact/signals";

/** With one slash in front: two would begin the name of another host. */
const shown = () => location.pathname.replace(/^\/+/, "/") + location.search;

const here = signal(shown());
const url = computed(() => new URL(here.value, location.origin));

/** As it is where it is no encoded text.
 * @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** What stands after "?". */
export const query = computed(() => url.value.searchParams);

/** @typedef {{name: string, id: string, tab: string}} View */

const LISTS = { "": "jobs", jobs: "jobs", experiments: "experiments", pools: "pool", queue: "queue", models: "models", compare: "compare" };
const ONES = { jobs: "job", experiments: "experiment", trials: "trial", pools: "pool", queue: "queue", models: "model" };

/** The name of a trial's job: e12-t7. Its view is that of the trial. */
export const TRIAL_JOB = /^e(\d+)-t(\d+)$/;

/** What parts of an experiment's address come after its number. */
export const TABS = ["trials", "charts", "configuration", "code", "notes"];

/** The view that a path names, what it is about, and the part of it that is shown.
 * @param {string} path @returns {View} */
export function viewOf(path) {
  const [first = "", ...rest] = path.split("/").filter(Boolean);
  const unknown = { name: "unknown", id: "", tab: "" };
  if (!rest.length) return { name: has(LISTS, first) ?? "unknown", id: "", tab: "" };
  const name = has(ONES, first);
  if (!name) return unknown;
  if (name === "experiment" || name === "trial") {
    const [id, tab = ""] = rest;
    const isKnown = /^[1-9]\d{0,15}$/.test(id) && rest.length <= 2 && (!tab || (name === "experiment" && TABS.includes(tab)));
    return isKnown ? { name, id, tab } : unknown;
  }
  const id = decoded(rest.join("/"));
  return { name: name === "job" && TRIAL_JOB.test(id) ? "trial" : name, id, tab: "" };
}

/** @param {Record<string, string>} names @param {string} name */
const has = (names, name) => (Object.hasOwn(names, name) ? names[name] : undefined);

export const view = computed(() => viewOf(url.value.pathname));

const read = () => (here.value = shown());
addEventListener("popstate", read);

/** @typedef {Record<string, string | number | boolean | null | undefined>} Changes */

/** The address with these parameters changed; an empty one is left out.
 * @param {Changes} changes @param {string} [path] another one starts without parameters */
export function address(changes, path) {
  const next = new URLSearchParams(path === undefined ? query.value : "");
  for (const [name, value] of Object.entries(changes)) {
    if (value === "" || value === null || value === undefined || value === false) next.delete(name);
    else next.set(name, value === true ? "1" : String(value));
  }
  const text = next.toString().replaceAll("%2C", ",").replaceAll("%2F", "/");
  return (path ?? url.value.pathname) + (text ? `?${text}` : "");
}

/** @param {string} job */
export const jobAddress = (job) => `/jobs/${encodeURIComponent(job)}`;

/** @param {number | string} experiment @param {string} [tab] */
export const experimentAddress = (experiment, tab = "") => `/experiments/${experiment}${tab && `/${tab}`}`;

/** @param {number | string} trialId unique at the coordinator */
export const trialAddress = (trialId) => `/trials/${trialId}`;

/** @param {string} pool */
export const poolAddress = (pool) => `/pools/${encodeURIComponent(pool)}`;

/** @param {string} pool */
export const queueAddress = (pool) => `/queue/${encodeURIComponent(pool)}`;

/** @param {string} model */
export const modelAddress = (model) => `/models/${encodeURIComponent(model)}`;

/** Change parameters; `replace` for what is typed or dragged, so that Back does not go through each letter.
 * @param {Changes} changes @param {{replace?: boolean, path?: string}} [how] */
export function go(changes, { replace = false, path } = {}) {
  const to = address(changes, path);
  if (to !== here.value) history[replace ? "replaceState" : "pushState"](null, "", to);
  read();
}

/** Links inside the page change the view without loading it again.
 * @param {MouseEvent} event */
export function follow(event) {
  const link = /** @type {HTMLElement} */ (event.target).closest?.("a[href^='/']");
  if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  const path = location.pathname;
  history.pushState(null, "", link.getAttribute("href"));
  read();
  if (path === location.pathname) return;
  scrollTo(0, 0);
  document.getElementById("main")?.focus({ preventScroll: true });
}
