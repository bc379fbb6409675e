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

/** Say what this tab looks at: names of jobs, and other topics, such as "experiments/", "experiments/12", "pools/default"
 * and "queues/default".
 * @param {string[]} all */
export function look(all) {
  topics = all;
  if (isSignedIn.value) connect({ topics });
}

/** Keep what a view has loaded up to date while it is shown: load now, take increments, and load again after a gap.
 * @param {{topics: string[], load: () => void, take?: Record<string, (data: any) => void>}} how  take: by event
 * @returns {() => void} ends it */
export function watch({ topics, load, take = {} }) {
  look(topics);
  const ends = [
    ...Object.entries(take).map(([event, act]) => listen(event, act)),
    listen("began", load),
    listen("reload", (data) => topics.some((each) => data.topics.includes(each) || data.jobs.includes(each)) && load()),
  ];
  load();
  return () => {
    ends.forEach((end) => end());
    look([]);
  };
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
  return (/** @type {any} */ message) => (message.topics ? stream.read(receive, message.topics) : stream.forget(receive));
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
  if (isIn) connect({ topics });
  else if (send) send({});
});
addEventListener("pagehide", () => send?.({}));
addEventListener("pageshow", (event) => event.persisted && send?.({ topics }));
document.addEventListener("visibilitychange", () => {
  if (isPlanned) deliver(); // whatever was planned may never come
});
