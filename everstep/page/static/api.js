// Every call to the coordinator, in one place: the session's cookie goes along by itself; an error is a sentence.

import { signal } from "@preact/signals";

const SESSION = "/v1/session";

/** Whether there is a session: null until it is known. A reply 401 to any call shows the door.
 * @type {import("@preact/signals").Signal<boolean | null>} */
export const isSignedIn = signal(null);

/** Whether a code is being exchanged: without a session, a view need not ask before. */
export const isEntering = signal(false);

/** Who this session is for and what it may do: null until it is known.
 * @type {import("@preact/signals").Signal<{role: string, person: string} | null>} */
export const session = signal(null);

/** Whether this session may change what a person owns. The coordinator checks again.
 * @param {string} [owner] "": nobody in particular */
export function mayChange(owner = "") {
  const { role, person } = session.value ?? { role: "", person: "" };
  return role === "all" || (role === "user" && (!owner || owner === person));
}

/** What the door says. */
export const doorSays = signal("");

export class Refused extends Error {
  /** @param {string} message @param {number} status @param {string} code */
  constructor(message, status, code) {
    super(message);
    this.status = status;
    this.code = code;
  }

  /** Whether the same call may succeed later. */
  get isTemporary() {
    return this.status === 0 || this.status >= 500 || this.status === 429;
  }
}

/** @param {string} path @param {RequestInit} [how] @returns {Promise<any>} */
async function call(path, how = {}) {
  let reply;
  try {
    reply = await fetch(path, how);
  } catch (error) {
    if (how.signal?.aborted) throw error;
    throw new Refused("The coordinator is not responding.", 0, "away");
  }
  const body = await reply.json().catch(() => ({}));
  if (reply.ok) {
    if (path !== SESSION) isSignedIn.value ??= true;
    return body;
  }
  if (reply.status === 401 && path !== SESSION) {
    doorSays.value = body.code === "session-expired" ? "Your session has ended. Sign in again." : "";
    isSignedIn.value = false;
  }
  throw new Refused(sentence(body.detail) || `The coordinator answered with status ${reply.status}.`, reply.status, body.code ?? "");
}

/** @param {unknown} detail */
function sentence(detail) {
  if (typeof detail !== "string" || !detail) return "";
  return detail[0].toUpperCase() + detail.slice(1) + (/[.!?]$/.test(detail) ? "" : ".");
}

/** @param {string} path @param {Record<string, string | number | boolean>} [query] @param {AbortSignal} [signal] */
export function get(path, query = {}, signal) {
  const text = new URLSearchParams(Object.entries(query).map(([name, value]) => [name, String(value)])).toString();
  return call(text ? `${path}?${text}` : path, { signal });
}

/** Change something. Other sites cannot send this header, so the coordinator knows that the page asks.
 * @param {"POST" | "PUT" | "DELETE"} method @param {string} path @param {object} [body] */
export function send(method, path, body) {
  const headers = { "x-everstep": "page", "content-type": "application/json" };
  return call(path, { method, headers, body: body && JSON.stringify(body) });
}

/** @param {string} job */
export const jobPath = (job) => `/v1/jobs/${encodeURIComponent(job)}`;

/** Open a session with the one-time code of the address, or go on with the one there is. The code leaves the address at once: neither
 * the history nor a copied link has it. */
export async function enter() {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (!code) return isSignedIn.value === null ? goOn() : undefined;
  isEntering.value = true;
  history.replaceState(null, "", location.pathname + location.search);
  try {
    await signIn({ code });
  } catch (error) {
    doorSays.value = /** @type {Error} */ (error).message;
    await goOn();
  }
  isEntering.value = false;
}

/** With the session that is open, if there is one. Without an answer, the view says so and tries again. */
async function goOn() {
  await get(SESSION).then(isIn, (error) => (isSignedIn.value = error.status !== 401));
}

/** @param {{code: string} | {token: string}} proof */
export async function signIn(proof) {
  const view = await send("POST", SESSION, proof);
  doorSays.value = "";
  isIn(view);
}

/** @param {{role: string, person: string}} view */
function isIn(view) {
  session.value = view;
  isSignedIn.value = true;
}

export async function signOut() {
  doorSays.value = "";
  isSignedIn.value = false; // first: all views and the stream stop asking
  session.value = null;
  await send("DELETE", SESSION).catch((error) => {
    if (error.status !== 401) doorSays.value = `This session may still be open at the coordinator. ${error.message} Sign in and out again to end it.`;
  });
}
