// The log of a job: search at the coordinator, follow by the stream. What is shown is bounded; older lines make room.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
import { signal } from "./vendor/signals.js";
import { get, jobPath } from "./api.js";
import { clock, count, plural } from "./format.js";
import { html } from "./html.js";
import { go, query } from "./route.js";

const MOST = 3000; // lines in the document
const PAGE = 5000;
const SETTLE_MS = 150;
const LEVELS = { debug: 10, info: 20, warning: 30, error: 40, critical: 50 };

/** @typedef {{worker: string, node: string, rank: number, line: number, time: number, level: number, stream: string, text: string, is_context: boolean}} Line */

class Reading {
  /** @param {string} job @param {Record<string, string | number>} asked */
  constructor(job, asked) {
    this.job = job;
    this.asked = asked;
    /** @type {Line[]} */
    this.lines = [];
    this.version = signal(0);
    this.problem = signal(/** @type {Error | null} */ (null));
    this.notes = signal(/** @type {string[]} */ ([]));
    this.isEnd = signal(false);
    this.dropped = 0;
    this.cursor = "";
    this.isBusy = false;
    this.isOver = false;
    this.isAskedAgain = false;
    /** @type {WeakMap<Line, any>} */
    this.drawn = new WeakMap();
  }

  /** A line is drawn once: what is the same node again costs nothing.
   * @param {Line} line @param {string} text */
  draw(line, text) {
    const known = this.drawn.get(line) ?? html`<${LogLine} key=${`${line.worker}:${line.line}:${line.stream}`} line=${line} text=${text} />`;
    this.drawn.set(line, known);
    return known;
  }

  /** Read on to the end of what is kept; a search without end stops at what the page shows. */
  async more() {
    this.isAskedAgain = true;
    if (this.isBusy) return;
    this.isBusy = true;
    while (this.isAskedAgain && !this.isOver) {
      this.isAskedAgain = false;
      try {
        const reply = await get(`${jobPath(this.job)}/logs`, { ...this.asked, cursor: this.cursor, limit: PAGE });
        if (this.isOver) return;
        this.cursor = reply.next;
        this.lines.push(...reply.lines);
        if (this.lines.length > MOST) this.dropped += this.lines.splice(0, this.lines.length - MOST).length;
        this.notes.value = reply.notes ?? [];
        this.isEnd.value = reply.is_end;
        this.problem.value = null;
        this.version.value++;
        if (!reply.is_end) this.isAskedAgain = true;
      } catch (error) {
        this.problem.value = /** @type {Error} */ (error);
      }
    }
    this.isBusy = false;
  }
}

/** @param {{state: import("./job_state.js").JobState}} props */
export function Logs({ state }) {
  const [get_, set] = [(/** @type {string} */ name) => query.value.get(name) ?? "", (/** @type {any} */ changes) => go(changes, { replace: true })];
  const [text, worker, level, isRegex, context] = [get_("find"), get_("worker"), get_("level"), query.value.has("regex"), Number(get_("context") || 0)];
  const isFollowing = !query.value.has("stay");
  const asked = JSON.stringify({ worker, level: LEVELS[/** @type {keyof LEVELS} */ (level)] ?? 0, context: text ? context : 0, ...(text && { [isRegex ? "regex" : "text"]: text }) });
  const reading = useMemo(() => new Reading(state.job, JSON.parse(asked)), [state, asked]);
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [typed, setTyped] = useState(text);
  const timer = useRef(/** @type {any} */ (null));
  const news = state.newLines.value;
  const version = reading.version.value;
  useEffect(() => {
    reading.more();
  }, [reading, news]);
  useEffect(() => () => void (reading.isOver = true), [reading]);
  useLayoutEffect(() => {
    if (isFollowing && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [version, isFollowing, reading]);

  const workers = (state.workers.value ?? []).map((each) => each.worker);
  const lines = reading.lines;
  const found = lines.filter((each) => !each.is_context).length;
  return html`<div class="stack">
    <div class="bar" role="search">
      <input type="search" class="grow" placeholder=${isRegex ? "Search by regular expression" : "Search the log"} aria-label="Search the log" value=${typed}
        onInput=${(/** @type {any} */ event) => {
          const value = event.target.value;
          setTyped(value);
          clearTimeout(timer.current);
          timer.current = setTimeout(() => set({ find: value }), SETTLE_MS);
        }} />
      <button aria-pressed=${isRegex} title="Search by regular expression" onClick=${() => set({ regex: !isRegex })}>.*<span class="unseen"> regular expression</span></button>
      <label>Worker <select value=${worker} onChange=${(/** @type {any} */ event) => set({ worker: event.target.value })}>
        <option value="">all</option>${workers.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>
      <label>Level <select value=${level} onChange=${(/** @type {any} */ event) => set({ level: event.target.value })}>
        <option value="">all</option>${Object.keys(LEVELS).map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>
      ${text && html`<label>Context <select value=${context} onChange=${(/** @type {any} */ event) => set({ context: Number(event.target.value) || "" })}>
        ${[0, 2, 5, 10].map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>`}
      <button aria-pressed=${isFollowing} onClick=${() => set({ stay: isFollowing })}>Follow</button>
      <span class="quiet small" id="found" aria-live="polite">${!version ? "" : text ? `${count(found)} found` : plural(lines.length + reading.dropped, "line")}</span>
    </div>
    ${reading.problem.value && html`<div class="notice bad" role="alert">${reading.problem.value.message}</div>`}
    ${reading.notes.value.map((note) => html`<p key=${note} class="notice">${note}</p>`)}
    <div class="card log" ref=${box} tabindex="0" role="log" aria-live="off" aria-label="Log lines" onWheel=${(/** @type {WheelEvent} */ event) => event.deltaY < 0 && isFollowing && set({ stay: true })}>
      ${reading.dropped > 0 && html`<p class="hint">The newest ${count(MOST)} lines. Search to find others.</p>`}
      ${lines.map((line) => reading.draw(line, isRegex ? "" : text))}
      ${version > 0 && !lines.length && html`<p class="hint">${text ? "No line matches." : state.isOver.value ? "This job printed nothing." : "Nothing printed yet. New lines appear here by themselves."}</p>`}
      ${!version && !reading.problem.value && html`<p class="hint">Reading…</p>`}
    </div>
  </div>`;
}

/** @param {{line: Line, text: string}} props */
function LogLine({ line, text }) {
  const look = line.level >= 40 ? "error" : line.level >= 30 ? "warning" : "";
  return html`<div class=${`line ${look} ${line.is_context ? "context" : ""}`}>
    <span>${clock(line.time)}</span><span title=${`${line.worker} on ${line.node}`}>${line.worker}</span><code>${look && html`<span class="unseen">${look}: </span>`}${marked(line.text, text)}</code>
  </div>`;
}

/** The text with what was searched for marked; all of it as text nodes.
 * @param {string} line @param {string} text */
function marked(line, text) {
  if (!text) return line;
  const parts = [];
  let at = 0;
  for (let hit = line.indexOf(text); hit >= 0 && parts.length < 100; hit = line.indexOf(text, at)) {
    parts.push(line.slice(at, hit), html`<mark>${line.slice(hit, hit + text.length)}</mark>`);
    at = hit + text.length;
  }
  return [...parts, line.slice(at)];
}
