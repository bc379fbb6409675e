// How nothing, waiting and failing look: the same everywhere.

import { html } from "./html.js";

/** @param {{title: string, children?: any}} props */
export function Empty({ title, children }) {
  return html`<div class="empty card">
    <svg width="64" height="40" viewBox="0 0 64 40" fill="none" stroke="currentColor" stroke-width="4" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><path d="M4 36V28H18V20H32V12H46V4H60" /></svg>
    <h2>${title}</h2>
    ${children}
  </div>`;
}

/** @param {{problem: Error, children?: any}} props */
export function Failed({ problem, children }) {
  return html`<div class="notice bad" role="alert">${problem.message} ${children}</div>`;
}

/** @param {{rows?: number, label?: string}} props */
export function Waiting({ rows = 6, label = "Loading" }) {
  return html`<div class="card stack" aria-busy="true" aria-label=${label} role="status">
    ${Array.from({ length: rows }, (_, i) => html`<div key=${i} class="ghost" style=${{ width: `${92 - ((i * 17) % 40)}%` }}></div>`)}
  </div>`;
}

const LOOKS = { running: "live", finished: "good", stopped: "bad", waiting: "wait", regrouping: "wait", member: "good", starting: "wait", dead: "bad", lost: "bad",
  ACTIVE: "live", PAUSED: "wait", STOPPING_COMPLETED: "wait", STOPPING_CANCELED: "wait", STOPPING_KILLED: "wait", STOPPING_ERROR: "wait", COMPLETED: "good", ERROR: "bad", QUEUED: "wait", RUNNING: "live", WAITING: "wait" };

/** A state of a job or of a worker: always the word, the color only helps.
 * @param {{state: string}} props */
export function StateWord({ state }) {
  return html`<span class=${`state ${LOOKS[/** @type {keyof LOOKS} */ (state)] ?? ""}`}>${state}</span>`;
}
