// The log of a job, opened at its end: earlier lines come as one scrolls up, later ones by the stream. The coordinator
// searches. What is shown is bounded: pages at the far side make room, and are read again when one scrolls there.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import { get, jobPath } from "./api.js";
import { Bar } from "./bar.js";
import { clock, plural } from "./format.js";
import { html } from "./html.js";
import { go, query } from "./route.js";

const PAGE = 1000; // lines in one go
const MOST = 4000; // lines in the document
const NEAR_PX = 600; // from where on more is read
const AWAY_PX = 40; // from the end: no longer following
const SETTLE_MS = 150;
const RETRY_MS = 2000; // while the coordinator is away
const LEVELS = { debug: 10, info: 20, warning: 30, error: 40, critical: 50 };

/** @typedef {{worker: string, node: string, rank: number, line: number, time: number, level: number, stream: string, text: string, is_context: boolean}} Line */
/** @typedef {{start: string, lines: Line[]}} Page  lines from a cursor on; an empty cursor is the beginning of the log */

/** A stretch of the log without gaps. */
export class Reading {
  /** @param {string} job @param {Record<string, string | number>} asked */
  constructor(job, asked) {
    this.job = job;
    this.asked = asked;
    /** @type {Page[]} */
    this.pages = [];
    this.version = signal(0);
    this.problem = signal(/** @type {Error | null} */ (null));
    this.notes = signal(/** @type {string[]} */ ([]));
    this.next = ""; // what comes after the last page
    this.isOpen = false; // the end was read once
    this.hasEnd = true; // the last page reaches the end of the log, or is about to
    this.isFollowing = true; // someone looks at the end
    this.isBusy = signal(false);
    this.isOver = false;
    this.hasNews = false;
    /** @type {any} */
    this.timer = null;
    /** @type {WeakMap<Line, any>} */
    this.drawn = new WeakMap();
  }

  get hasStart() {
    return this.isOpen && !this.pages[0]?.start;
  }

  get size() {
    return this.pages.reduce((sum, page) => sum + page.lines.length, 0);
  }

  /** Context may be on two pages.
   * @returns {Line[]} */
  get lines() {
    const all = this.pages.flatMap((page) => page.lines);
    if (!this.asked.context) return all;
    const found = new Set(all.filter((line) => !line.is_context).map(nameOf));
    const seen = new Set();
    return all.filter((line) => !(line.is_context && found.has(nameOf(line))) && !seen.has(nameOf(line)) && seen.add(nameOf(line)));
  }

  /** A line is drawn once: what is the same node again costs nothing.
   * @param {Line} line @param {string} text */
  draw(line, text) {
    const known = this.drawn.get(line) ?? html`<${LogLine} key=${nameOf(line)} line=${line} text=${text} />`;
    this.drawn.set(line, known);
    return known;
  }

  /** Read the end, or what came after it. */
  news() {
    this.hasNews = true;
    return this.work(async () => {
      if (!this.isOpen) await this.open();
      while (this.hasNews && this.hasEnd && !this.isOver) {
        if (!this.isFollowing && this.size + PAGE > MOST) this.hasEnd = false; // someone reads further up: nothing moves there
        else await this.forward();
      }
      this.version.value++;
    });
  }

  async open() {
    this.hasNews = false;
    const reply = await this.fetch({ tail: PAGE });
    if (!reply) return;
    [this.isOpen, this.hasEnd, this.next] = [true, true, reply.next];
    this.pages = [{ start: reply.previous, lines: reply.lines }];
    this.version.value++;
    while (!this.isOver && !this.hasStart && this.size < PAGE) await this.back(PAGE - this.size); // a search takes its time
  }

  /** Forget what was read, and read the end. */
  toEnd() {
    return this.hasEnd ? undefined : this.work(() => this.open());
  }

  earlier() {
    if (!this.isOpen || this.hasStart) return undefined;
    return this.work(async () => {
      const size = this.size;
      do await this.back();
      while (!this.isOver && !this.hasStart && this.size === size);
      this.trim("end");
    });
  }

  later() {
    if (!this.isOpen || this.hasEnd) return undefined;
    return this.work(async () => {
      this.hasEnd = await this.forward();
    });
  }

  async back(tail = PAGE) {
    const reply = await this.fetch({ tail, cursor: this.pages[0].start });
    if (!reply) return;
    this.pages = [{ start: reply.previous, lines: reply.lines }, ...this.pages];
    this.version.value++;
  }

  /** @returns {Promise<boolean>} whether that is the end */
  async forward() {
    this.hasNews = false;
    const reply = await this.fetch({ limit: PAGE, cursor: this.next });
    if (!reply) return false;
    const last = this.pages[this.pages.length - 1];
    if (last.lines.length + reply.lines.length <= PAGE) last.lines.push(...reply.lines);
    else this.pages.push({ start: this.next, lines: reply.lines });
    this.next = reply.next;
    this.hasNews ||= !reply.is_end;
    this.trim("start");
    return reply.is_end;
  }

  /** Whole pages, so that each end stays a place to read on from.
   * @param {"start" | "end"} side */
  trim(side) {
    while (this.pages.length > 2 && this.size > MOST) {
      if (side === "start") this.pages.shift();
      else [this.next, this.hasEnd] = [/** @type {Page} */ (this.pages.pop()).start, false];
    }
    this.version.value++;
  }

  /** @param {object} place @returns {Promise<any>} nothing if it failed, or is no longer wanted */
  async fetch(place) {
    const reply = await get(`${jobPath(this.job)}/logs`, { ...this.asked, ...place });
    if (this.isOver) return null;
    this.notes.value = reply.notes ?? [];
    this.problem.value = null;
    return reply;
  }

  /** One thing at a time; then what came meanwhile. @param {() => Promise<void>} act @returns {Promise<void>} */
  async work(act) {
    if (this.isBusy.value) return;
    this.isBusy.value = true;
    try {
      await act();
      this.isBusy.value = false;
      if (this.hasNews && this.hasEnd && !this.isOver) await this.news();
    } catch (error) {
      this.isBusy.value = false;
      if (this.isOver) return;
      this.problem.value = /** @type {Error} */ (error);
      this.hasNews = true; // what was not read is not known
      if (/** @type {import("./api.js").Refused} */ (error).isTemporary) this.timer ??= setTimeout(() => ((this.timer = null), this.isOver || this.work(act)), RETRY_MS);
    }
  }
}

/** @param {Line} line */
const nameOf = (line) => `${line.worker}:${line.line}:${line.stream}`;

/** @param {{state: import("./job_state.js").JobState}} props */
export function Logs({ state }) {
  const [read, set] = [(/** @type {string} */ name) => query.value.get(name) ?? "", (/** @type {any} */ changes) => go(changes, { replace: true })];
  const [text, worker, level, isRegex, context] = [read("find"), read("worker"), read("level"), query.value.has("regex"), Number(read("context") || 0)];
  const isFollowing = !query.value.has("stay");
  const asked = JSON.stringify({ worker, level: LEVELS[/** @type {keyof LEVELS} */ (level)] ?? 0, context: text ? context : 0, ...(text && { [isRegex ? "regex" : "text"]: text }) });
  const reading = useMemo(() => new Reading(state.job, JSON.parse(asked)), [state, asked]);
  const news = state.newLines.value;
  reading.version.value;
  reading.isFollowing = isFollowing;
  useEffect(() => {
    reading.news();
  }, [reading, news]);
  useEffect(() => () => void (reading.isOver = true), [reading]);
  useEffect(() => {
    if (isFollowing) reading.toEnd();
  }, [reading, isFollowing]);

  const isFiltered = Boolean(text || worker || level);
  const workers = (state.workers.value ?? []).map((each) => each.worker);
  return html`<div class="stack">
    <${Bar} label="Search" role="search" changed=${[worker, level, isRegex].filter(Boolean).length}
      first=${html`<${Search} text=${text} isRegex=${isRegex} onText=${(/** @type {string} */ find) => set({ find })} />
        <button aria-pressed=${isFollowing} onClick=${() => set({ stay: isFollowing })}>Follow</button>`}>
      <button aria-pressed=${isRegex} title="Search by regular expression" onClick=${() => set({ regex: !isRegex })}>.*<span class="unseen"> regular expression</span></button>
      <label>Worker <select value=${worker} onChange=${(/** @type {any} */ event) => set({ worker: event.target.value })}>
        <option value="">all</option>${workers.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>
      <label>Level <select value=${level} onChange=${(/** @type {any} */ event) => set({ level: event.target.value })}>
        <option value="">all</option>${Object.keys(LEVELS).map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>
      <label>Context <select value=${context} disabled=${!text} onChange=${(/** @type {any} */ event) => set({ context: Number(event.target.value) || "" })}>
        ${[0, 2, 5, 10].map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>
    <//>
    ${reading.problem.value && html`<div class="notice bad" role="alert">${reading.problem.value.message}</div>`}
    ${reading.notes.value.map((note) => html`<p key=${note} class="notice">${note[0].toUpperCase() + note.slice(1)}.</p>`)}
    <${Lines} key=${asked} reading=${reading} text=${text} isFiltered=${isFiltered} isRegex=${isRegex} isFollowing=${isFollowing} isOver=${state.isOver.value} onFollow=${(/** @type {boolean} */ is) => set({ stay: !is })} />
  </div>`;
}

/** @param {{text: string, isRegex: boolean, onText: (text: string) => void}} props */
function Search({ text, isRegex, onText }) {
  const [typed, setTyped] = useState(text);
  const timer = useRef(/** @type {any} */ (null));
  return html`<input type="search" class="grow" placeholder=${isRegex ? "Search by regular expression" : "Search the log"} aria-label="Search the log" value=${typed}
    onInput=${(/** @type {any} */ event) => {
      const value = event.target.value;
      setTyped(value);
      clearTimeout(timer.current);
      timer.current = setTimeout(() => onText(value), SETTLE_MS);
    }} />`;
}

/** @param {{reading: Reading, text: string, isFiltered: boolean, isRegex: boolean, isFollowing: boolean, isOver: boolean, onFollow: (is: boolean) => void}} props */
function Lines({ reading, text, isFiltered, isRegex, isFollowing, isOver, onFollow }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const before = useRef({ top: 0, anchor: /** @type {HTMLElement | null} */ (null), anchorTop: 0 });
  const version = reading.version.value;
  const lines = reading.lines;
  const isBusy = reading.isBusy.value;

  // Lines come and go above what is read: it stays where it is.
  useLayoutEffect(() => {
    const [element, last] = [box.current, before.current];
    if (!element) return;
    if (!isFollowing && last.anchor) {
      if (element.contains(last.anchor)) element.scrollTop += last.anchor.offsetTop - last.anchorTop;
      keep(element, last);
    } else {
      element.scrollTop = element.scrollHeight;
      Object.assign(last, { top: element.scrollTop, anchor: null });
    }
  }, [version, isFollowing, reading]);

  const onScroll = () => {
    const [element, last] = [box.current, before.current];
    if (!element) return;
    const left = element.scrollHeight - element.clientHeight - element.scrollTop;
    const moved = element.scrollTop - last.top;
    keep(element, last);
    if (isFollowing && moved < 0 && left > AWAY_PX) onFollow(false);
    if (!isFollowing && moved > 0 && left < 2 && reading.hasEnd) onFollow(true);
    if (moved < 0 && element.scrollTop < NEAR_PX) reading.earlier();
    if (moved > 0 && left < NEAR_PX) reading.later();
  };
  const isEmpty = reading.isOpen && !lines.length && !isBusy;
  return html`<div class="card log" ref=${box} tabindex="0" role="log" aria-live="off" aria-label="Log lines" aria-busy=${isBusy} onScroll=${onScroll}>
      ${lines.length > 0 && (reading.hasStart
        ? html`<p class="hint">${isFiltered ? "No earlier line matches." : "The log begins here."}</p>`
        : html`<p class="hint"><button onClick=${() => reading.earlier()} disabled=${isBusy}>Earlier lines</button></p>`)}
      ${lines.map((line) => reading.draw(line, isRegex ? "" : text))}
      ${isEmpty && html`<p class="hint">${isFiltered ? "No line matches." : isOver ? "This job printed nothing." : "No output yet. New lines appear here automatically."}</p>`}
      ${!lines.length && isBusy && html`<p class="hint">${isFiltered ? "Searching…" : "Reading…"}</p>`}
      ${reading.isOpen && !reading.hasEnd && html`<p class="hint"><button onClick=${() => reading.later()} disabled=${isBusy}>Later lines</button></p>`}
    </div>
    <p class="quiet small" id="found" aria-live="polite">${version ? amount(reading, lines, isFiltered) : ""}</p>`;
}

/** Remember where the first line that is seen stands.
 * @param {HTMLElement} element @param {{top: number, anchor: HTMLElement | null, anchorTop: number}} last */
function keep(element, last) {
  const lines = /** @type {HTMLElement[]} */ ([...element.querySelectorAll(".line")]);
  const anchor = lines.find((each) => each.offsetTop + each.offsetHeight > element.scrollTop) ?? null;
  Object.assign(last, { top: element.scrollTop, anchor, anchorTop: anchor?.offsetTop ?? 0 });
}

/** How much of the log is shown, in words: a part is never taken for the whole.
 * @param {Reading} reading @param {Line[]} lines @param {boolean} isSearch */
function amount(reading, lines, isSearch) {
  const shown = isSearch ? lines.filter((each) => !each.is_context).length : lines.length;
  const what = isSearch ? `${plural(shown, "line")} found` : plural(shown, "line");
  if (reading.hasStart && reading.hasEnd) return what;
  if (reading.hasEnd) return reading.isBusy.value && isSearch ? `${what} so far` : `The last ${what}. Scroll up for earlier ones.`;
  return `${what}${reading.hasStart ? " from the beginning" : ""}. Scroll down for later ones, or click “Follow” to go to the end.`;
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
