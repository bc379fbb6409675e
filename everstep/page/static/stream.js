// The one stream of a browser: an EventSource for all that its tabs look at. Runs in a SharedWorker, or in the page
// where there is none. Opens again by itself, from the last increment it saw.

const PAUSES_MS = [250, 500, 1000, 2000]; // between attempts while the coordinator is away
const SETTLE_MS = 20; // several tabs and views change their topics together
const EVENTS = ["hello", "reload", "jobs", "job", "band", "points", "logs", "experiments", "experiment", "pool", "queue", "bye"];

/** @typedef {{event: string, data: any}} Told */

export class Stream {
  constructor() {
    /** @type {Map<(told: Told) => void, string[]>} */
    this.readers = new Map();
    /** @type {Set<(told: Told) => void>} that have not been told to load: they know nothing of what came before */
    this.newcomers = new Set();
    /** @type {EventSource | null} */
    this.source = null;
    this.topics = "";
    this.last = "";
    this.failures = 0;
    this.isOpen = /** @type {boolean | null} */ (null); // until it is known
    /** @type {any} */
    this.timer = null;
  }

  /** @param {(told: Told) => void} reader @param {string[]} topics that it looks at */
  read(reader, topics) {
    const isNew = !this.readers.has(reader);
    this.readers.set(reader, topics);
    if (isNew) {
      this.newcomers.add(reader);
      reader({ event: "state", data: { isOpen: this.isOpen } });
    }
    this.openSoon(SETTLE_MS);
  }

  /** @param {(told: Told) => void} reader */
  forget(reader) {
    this.readers.delete(reader);
    this.newcomers.delete(reader);
    if (this.readers.size) return;
    this.close();
    this.isOpen = null;
  }

  /** @param {number} pause_ms */
  openSoon(pause_ms) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.open(), pause_ms);
  }

  open() {
    const all = [...new Set([...this.readers.values()].flat())].sort();
    const topics = all.join(",");
    if (this.source && topics === this.topics) return this.isOpen ? this.begin({}) : undefined;
    if (!this.readers.size) return;
    this.source?.close();
    this.topics = topics;
    if (!this.last) this.newcomers = new Set(this.readers.keys()); // nothing to continue from: all load again
    const jobs = all.filter((each) => !each.includes("/")).join(",");
    const others = all.filter((each) => each.includes("/")).join(",");
    const query = new URLSearchParams({ ...(jobs && { jobs }), ...(others && { topics: others }), ...(this.last && { after: this.last }) });
    const source = new EventSource(`/v1/stream?${query}`);
    this.source = source;
    for (const event of EVENTS) {
      source.addEventListener(event, (message) => {
        if (message.lastEventId) this.last = message.lastEventId;
        this.failures = 0;
        const data = JSON.parse(message.data);
        if (event !== "hello") return this.tell({ event, data });
        this.say(true);
        this.begin(data);
      });
    }
    source.onerror = () => this.failed(source);
  }

  /** From here on readers hear of every change: those that are new load what was before.
   * @param {any} data */
  begin(data) {
    for (const reader of this.newcomers) reader({ event: "began", data });
    this.newcomers.clear();
  }

  /** @param {EventSource} source */
  async failed(source) {
    if (source !== this.source) return;
    const isRefused = source.readyState === 2; // an answer that is no stream; otherwise the connection broke
    this.close();
    this.say(false);
    if (isRefused) {
      const reply = await fetch("/v1/session").catch(() => null);
      if (reply?.status === 401) return this.tell({ event: "signed-out", data: {} });
    }
    this.openSoon(PAUSES_MS[Math.min(this.failures++, PAUSES_MS.length - 1)]);
  }

  close() {
    this.source?.close();
    this.source = null;
  }

  /** @param {boolean} isOpen */
  say(isOpen) {
    if (this.isOpen === isOpen) return;
    this.isOpen = isOpen;
    this.tell({ event: "state", data: { isOpen } });
  }

  /** @param {Told} told */
  tell(told) {
    for (const reader of this.readers.keys()) reader(told);
  }
}
