// A list that the coordinator sorts and filters, and that is fetched in pages as rows come into sight. Rows change in
// place as they go on.

import { signal } from "@preact/signals";
import { get } from "./api.js";

const PAGE = 100;

/** What was fetched, by place in the list as it is sorted and filtered now.
 * @template {Record<string, any>} Row */
export class Listing {
  /** @param {{path: string, rows: string, id: string, read?: (reply: any) => Row[]}} how  rows, id: names in a reply, and in a row */
  constructor({ path, rows, id, read = (reply) => reply[rows] }) {
    this.path = path;
    this.id = id;
    this.read = read;
    /** @type {(Row | undefined)[]} */
    this.rows = [];
    this.found = signal(/** @type {number | null} */ (null));
    this.total = signal(0);
    this.problem = signal(/** @type {Error | null} */ (null));
    this.version = signal(0);
    this.asked = "";
    /** @type {Set<number>} */
    this.pages = new Set();
    this.seen = [0, 1]; // rows, from and up to
  }

  /** @param {string} asked a query without start and limit */
  ask(asked) {
    this.asked = asked;
    this.renew();
  }

  /** Fetch again what is seen; the rows shown stay until the answer is there. */
  renew() {
    this.pages = new Set();
    this.need(this.seen[0], this.seen[1]);
  }

  /** @param {number} first @param {number} last */
  need(first, last) {
    this.seen = [first, last];
    for (let page = Math.floor(first / PAGE); page <= Math.floor(Math.max(0, last - 1) / PAGE); page++) this.fetch(page);
  }

  /** @param {number} page */
  async fetch(page) {
    if (this.pages.has(page)) return;
    this.pages.add(page);
    const asked = this.asked;
    try {
      const reply = await get(this.path, { ...Object.fromEntries(new URLSearchParams(asked)), start: page * PAGE, limit: PAGE });
      if (asked !== this.asked) return;
      this.read(reply).forEach((row, i) => (this.rows[page * PAGE + i] = row));
      this.rows.length = Math.min(this.rows.length, reply.num_found);
      this.found.value = reply.num_found;
      this.total.value = reply.num_jobs ?? reply.num_found;
      this.problem.value = null;
      this.version.value++;
    } catch (error) {
      this.pages.delete(page);
      this.problem.value = /** @type {Error} */ (error);
    }
  }

  /** Rows that changed: in place. One that is new, or moves by the order asked for, takes a fetch.
   * @param {Row[]} changed @param {unknown[]} removed @param {string[]} keys that decide which rows are shown, and where */
  take(changed, removed, keys) {
    const news = new Map(changed.map((row) => [row[this.id], row]));
    let isMoved = removed.length > 0;
    this.rows.forEach((known, i) => {
      const row = known && news.get(known[this.id]);
      if (!row) return;
      news.delete(row[this.id]);
      isMoved ||= keys.some((key) => known[key] !== row[key]);
      this.rows[i] = { ...known, ...row };
    });
    this.version.value++;
    return isMoved || news.size > 0;
  }
}
