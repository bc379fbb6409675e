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

/** The view, and the job it is about. */
export const view = computed(() => {
  const [first, ...rest] = url.value.pathname.split("/").filter(Boolean);
  if (first === "jobs" && rest.length) return { name: "job", job: decoded(rest.join("/")) };
  if (first === "compare") return { name: "compare", job: "" };
  return { name: first && first !== "jobs" ? "unknown" : "jobs", job: "" };
});

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
