// What the page knows of one job: fetched once, then kept up to date by the stream. Nothing is fetched again while
// increments arrive; after a gap only what changed meanwhile.

import { batch, computed, signal } from "@preact/signals";
import { get, jobPath } from "./api.js";
import { listen } from "./live.js";
import { Series, isCut } from "./series.js";

/** @typedef {{number: number, time: number, step: number, kind: string, generation: number, worker: string, rank: number, reason: string, size: number, joined: string[], parted: string[]}} Mark */
/** @typedef {{job: string, name: string, state: string, reason: string, created_at: number, ended_at: number | null, num_workers: number, step: number, generation: number, num_deaths: number, num_restarts: number}} Summary */
/** @typedef {{worker: string, status: string, reason: string, agent: string, pid: number, step: number, generation: number, rank: number, died_as: number}} Worker */
/** @typedef {{agent: string, address: string, num_workers: number, is_present: boolean, node_rank: number, reason: string}} Node */

const RETRY_MS = 2000;
const MOST_MARKS = 1000; // of a call

export class JobState {
  /** @param {string} job */
  constructor(job) {
    this.job = job;
    /** @type {import("@preact/signals").Signal<Summary | null>} */
    this.summary = signal(null);
    /** @type {import("@preact/signals").Signal<{policy: object, config: object, checkpoints: any[]} | null>} */
    this.about = signal(null);
    /** @type {import("@preact/signals").Signal<Worker[] | null>} */
    this.workers = signal(null);
    /** @type {import("@preact/signals").Signal<Node[]>} */
    this.nodes = signal([]);
    /** @type {import("@preact/signals").Signal<Mark[] | null>} */
    this.marks = signal(null);
    /** @type {import("@preact/signals").Signal<Series[] | null>} */
    this.series = signal(null);
    /** @type {Mark[]} that came before any were fetched */
    this.earlyMarks = [];
    this.newLines = signal(0); // log lines that the stream has told of
    /** @type {import("@preact/signals").Signal<import("./api.js").Refused | null>} */
    this.problem = signal(null);
    this.isOver = computed(() => ["finished", "stopped"].includes(this.summary.value?.state ?? ""));
    /** @type {Map<number, Series>} */
    this.byNumber = new Map();
    /** @type {(() => void)[]} */
    this.ends = [];
    /** @type {any} */
    this.timer = null;
  }

  open() {
    /** @param {(data: any) => void} take */
    const mine = (take) => (/** @type {any} */ data) => data.job === this.job && take(data);
    this.ends = [
      listen("job", mine((data) => this.takeJob(data))),
      listen("band", mine((data) => this.takeMarks(data.marks))),
      listen("points", mine((data) => this.takePoints(data.series))),
      listen("logs", mine((data) => (this.newLines.value += data.num_lines))),
      listen("began", () => this.refresh()),
      listen("reload", (data) => data.jobs.includes(this.job) && this.refresh()),
    ];
    this.refresh();
    return this;
  }

  close() {
    clearTimeout(this.timer);
    for (const end of this.ends) end();
    this.ends = [];
    for (const series of this.byNumber.values()) series.unwant();
  }

  /** Fetch what may have changed without an increment; what is shown stays until the answer is there. */
  async refresh() {
    clearTimeout(this.timer);
    try {
      await Promise.all([this.fetchSeries(), this.fetchAbout(), this.fetchMarks(), this.fetchView()]); // plots take longest
      this.problem.value = null;
      this.newLines.value++; // the log's view asks by itself what is new
    } catch (error) {
      this.failed(/** @type {import("./api.js").Refused} */ (error));
    }
  }

  /** @param {import("./api.js").Refused} refused */
  failed(refused) {
    this.problem.value = refused;
    clearTimeout(this.timer);
    if (refused.isTemporary && this.ends.length) this.timer = setTimeout(() => this.refresh(), RETRY_MS);
  }

  async fetchAbout() {
    const about = await get(`${jobPath(this.job)}/about`);
    batch(() => {
      this.summary.value = about.summary;
      this.about.value = about;
    });
  }

  async fetchView() {
    const view = await get(jobPath(this.job));
    batch(() => {
      this.workers.value = view.workers;
      this.nodes.value = view.nodes;
    });
  }

  async fetchMarks() {
    let after = lastInRow(this.marks.value ?? []);
    /** @type {Mark[]} */
    const fetched = [];
    for (;;) {
      const page = await get(`${jobPath(this.job)}/band`, { after, limit: MOST_MARKS });
      fetched.push(...page.marks);
      if (page.marks.length < MOST_MARKS || page.last === after) break;
      after = page.last;
    }
    this.keepMarks([...fetched, ...this.earlyMarks]);
    this.earlyMarks = [];
  }

  async fetchSeries() {
    let after = 0;
    for (;;) {
      const page = await get(`${jobPath(this.job)}/series`, { after, limit: 1000 });
      for (const view of page.series) {
        const known = this.byNumber.get(view.series);
        if (known) known.renew(view);
        else this.byNumber.set(view.series, new Series(this.job, view));
      }
      if (page.series.length < 1000) break;
      after = page.series[page.series.length - 1].series;
    }
    this.publishSeries();
  }

  publishSeries() {
    const sorted = [...this.byNumber.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
    const old = this.series.value;
    if (old && old.length === sorted.length && old.every((each, i) => each === sorted[i])) return;
    this.series.value = sorted;
  }

  /** @param {{summary: Summary | null, workers: Worker[] | null, nodes: Node[] | null}} data */
  takeJob(data) {
    const hadEnded = this.isOver.value;
    if (data.summary) this.summary.value = data.summary;
    if (data.nodes) this.nodes.value = data.nodes;
    if (data.workers === null) this.fetchView().catch((error) => this.failed(error));
    else if (data.workers?.length && this.workers.value) {
      const changed = new Map(data.workers.map((each) => [each.worker, each]));
      const kept = this.workers.value.map((each) => changed.get(each.worker) ?? each);
      const names = new Set(kept.map((each) => each.worker));
      this.workers.value = [...kept, ...data.workers.filter((each) => !names.has(each.worker))];
    }
    if (!hadEnded && this.isOver.value) this.fetchAbout().catch((error) => this.failed(error));
  }

  /** @param {Mark[]} marks */
  takeMarks(marks) {
    if (!this.marks.value) return void this.earlyMarks.push(...marks);
    this.keepMarks(marks);
    if (lastInRow(this.marks.value) < (this.marks.value.at(-1)?.number ?? 0)) this.fetchMarks().catch((error) => this.failed(error));
  }

  /** @param {Mark[]} marks */
  keepMarks(marks) {
    const known = this.marks.value ?? [];
    const numbers = new Set(known.map((mark) => mark.number));
    const news = marks.filter((mark) => !numbers.has(mark.number) && numbers.add(mark.number));
    if (news.length || !this.marks.value) this.marks.value = [...known, ...news].sort((a, b) => a.number - b.number);
  }

  /** @param {import("./series.js").Points[]} all */
  takePoints(all) {
    if (!this.series.value) return;
    let isNew = false;
    for (const points of all) {
      const known = this.byNumber.get(points.series);
      if (known) known.add(points);
      else isNew = true;
    }
    if (isNew || all.some(isCut)) this.fetchSeries().catch((error) => this.failed(error));
  }
}

/** The number of the last mark before a hole: they are counted from 1.
 * @param {Mark[]} marks sorted */
function lastInRow(marks) {
  const hole = marks.findIndex((mark, i) => mark.number !== i + 1);
  return hole < 0 ? marks.length : hole;
}
