// A part of what a view shows: fetched when it is first wanted. What the stream tells is put into it, or it is fetched
// again; not more often than the coordinator and the browser can bear.

import { signal } from "@preact/signals";
import { get } from "./api.js";

const LEAST_PAUSE_MS = 1000; // between fetches …
const SHARE = 5; // … and this many times what the last one took
const RETRY_MS = 2000;

/** @template T */
export class Part {
  /** @param {string} path @param {Record<string, string | number | boolean>} [query] */
  constructor(path, query = {}) {
    this.path = path;
    this.query = query;
    this.value = signal(/** @type {T | null} */ (null));
    this.problem = signal(/** @type {import("./api.js").Refused | null} */ (null));
    this.isWanted = false;
    this.isStale = true;
    this.isFetching = false;
    this.pause_ms = LEAST_PAUSE_MS;
    this.fetched = 0;
    /** @type {((value: T) => T)[]} that came while a fetch was under way: its answer may be older */
    this.changes = [];
    /** @type {any} */
    this.timer = null;
  }

  want() {
    this.isWanted = true;
    if (this.isStale || this.problem.value) this.fetch();
  }

  unwant() {
    this.isWanted = false;
    clearTimeout(this.timer);
    this.timer = null;
  }

  /** What the stream tells of it: nothing need be fetched.
   * @param {(value: T) => T} apply changes nothing if the value has it already */
  change(apply) {
    if (!this.isWanted) this.isStale = true;
    else if (this.isFetching) this.changes.push(apply);
    else if (this.value.value !== null) this.value.value = apply(this.value.value);
  }

  /** Something has changed: fetched again as soon as it is due. */
  renew() {
    this.isStale = true;
    if (!this.isWanted || this.isFetching || this.timer) return;
    this.later(Math.max(0, this.fetched + this.pause_ms - Date.now()));
  }

  /** @param {number} pause_ms */
  later(pause_ms) {
    this.timer = setTimeout(() => {
      this.timer = null;
      if (this.isWanted) this.fetch();
    }, pause_ms);
  }

  async fetch() {
    if (this.isFetching) return;
    clearTimeout(this.timer);
    this.timer = null;
    this.isFetching = true;
    this.isStale = false;
    const began = Date.now();
    try {
      const found = await get(this.path, this.query);
      this.value.value = this.changes.reduce((value, apply) => apply(value), found);
      this.problem.value = null;
    } catch (error) {
      const refused = /** @type {import("./api.js").Refused} */ (error);
      this.problem.value = refused;
      this.isStale = true;
      if (refused.isTemporary && this.isWanted) this.later(RETRY_MS);
      else this.isStale = false; // until it is wanted anew
    }
    this.changes = [];
    this.isFetching = false;
    this.fetched = Date.now();
    this.pause_ms = Math.max(LEAST_PAUSE_MS, SHARE * (this.fetched - began));
    if (this.isStale && this.isWanted && !this.timer) this.later(this.pause_ms);
  }
}
