// What the stream tells, delivered to the views: all that arrived since the last animation frame in one go, so that the
// page is drawn at most once per frame however much comes.

import { batch, signal } from "@preact/signals";
import { isSignedIn } from "./api.js";
import { Stream } from "./stream.js";

/** Whether the coordinator is heard: null until it is known. Views go on showing what they have meanwhile.
 * @type {import("@preact/signals").Signal<boolean | null>} */
export const isHeard = signal(null);

/** Whether this tab shows a job that is over: its coordinator may be gone for good.
 * @type {import("@preact/signals").Signal<boolean>} */
export const isJobOver = signal(false);

const HIDDEN_MS = 500; // a hidden tab has no frames

/** @type {Map<string, Set<(data: any) => void>>} */
const listeners = new Map();
/** @type {{event: string, data: any}[]} */
let arrived = [];
let isPlanned = false;
/** @type {string[]} */
let topics = [];
/** @type {((message: object) => void) | null} */
let send = null;

/** @param {string} event @param {(data: any) => void} listener @returns {() => void} ends it */
export function listen(event, listener) {
  const all = listeners.get(event) ?? new Set();
  listeners.set(event, all.add(listener));
  return () => all.delete(listener);
}

/** Say which jobs this tab looks at.
 * @param {string[]} jobs */
export function look(jobs) {
  topics = jobs;
  if (isSignedIn.value) connect({ jobs });
}

/** @param {object} message */
function connect(message) {
  send ??= open();
  send(message);
}

function open() {
  if (typeof SharedWorker !== "undefined") {
    const worker = new SharedWorker(new URL("./stream_worker.js", import.meta.url), { type: "module", name: "everstep" });
    worker.port.onmessage = ({ data }) => receive(data);
    return (/** @type {object} */ message) => worker.port.postMessage(message);
  }
  const stream = new Stream();
  return (/** @type {any} */ message) => (message.jobs ? stream.read(receive, message.jobs) : stream.forget(receive));
}

/** @param {{event: string, data: any}} told */
function receive(told) {
  arrived.push(told);
  if (isPlanned) return;
  isPlanned = true;
  if (document.hidden) setTimeout(deliver, HIDDEN_MS);
  else requestAnimationFrame(deliver);
}

function deliver() {
  isPlanned = false;
  const told = arrived;
  arrived = [];
  batch(() => {
    for (const { event, data } of told) {
      if (event === "state") isHeard.value = data.isOpen;
      else if (event === "signed-out") isSignedIn.value = false;
      else for (const listener of [...(listeners.get(event) ?? [])]) listener(data);
    }
  });
}

isSignedIn.subscribe((isIn) => {
  if (isIn) connect({ jobs: topics });
  else if (send) send({});
});
addEventListener("pagehide", () => send?.({}));
addEventListener("pageshow", (event) => event.persisted && send?.({ jobs: topics }));
document.addEventListener("visibilitychange", () => {
  if (isPlanned) deliver(); // whatever was planned may never come
});
