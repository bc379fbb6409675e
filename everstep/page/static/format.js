// Numbers, times and amounts as people read them. Pure.

const DIGITS = 4;
const SUFFIXES = ["", "k", "M", "G", "T"];

/** A metric's value; JSON has no NaN and no infinities, so they come as texts.
 * @param {number | string | null | undefined} value @param {number} [more] digits */
export function number(value, more = 0) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return { nan: "NaN", inf: "∞", "-inf": "−∞" }[value] ?? value;
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(DIGITS - 1 + more).replace(/\.?0+e/, "e").replace("e+", "e").replace("-", "−").replace("e-", "e−");
  return sign(Number.isInteger(value) ? String(value) : String(Number(value.toPrecision((size >= 1000 ? DIGITS + 1 : DIGITS) + more))));
}

/** @param {string} text */
const sign = (text) => text.replace("-", "−");

/** A count with separators: 12,345. Not by toLocaleString, which a table of jobs would spend most of its time in.
 * @param {number} value */
export function count(value) {
  return String(value).replace(/\B(?=(\d{3})+$)/g, ",");
}

/** A short count: 1.2k.
 * @param {number} value @param {number} [more] digits */
export function short(value, more = 0) {
  let size = Math.abs(value);
  let index = 0;
  while (size >= 1000 && index < SUFFIXES.length - 1) (size /= 1000), index++;
  return sign(String(Number((Math.sign(value) * size).toPrecision(3 + more)))) + SUFFIXES[index];
}

/** @param {number} bytes */
export function bytes(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let index = 0;
  while (bytes >= 1000 && index < units.length - 1) (bytes /= 1000), index++;
  return `${Number(bytes.toPrecision(3))} ${units[index]}`;
}

/** "3 min 20 s"; two units at most.
 * @param {number} seconds */
export function duration(seconds) {
  seconds = Math.max(0, seconds);
  if (seconds < 10) return `${Number(seconds.toFixed(1))} s`;
  const parts = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = parts.findIndex(([, size]) => seconds >= Number(size));
  const [unit, size] = parts[first];
  const whole = Math.floor(seconds / Number(size));
  const next = parts[first + 1];
  const rest = next ? Math.floor((seconds - whole * Number(size)) / Number(next[1])) : 0;
  return rest ? `${whole} ${unit} ${rest} ${next[0]}` : `${whole} ${unit}`;
}

/** Time of day; with the date if it is not today's.
 * @param {number} time seconds since the epoch
 * @param {number} [now] */
export function clock(time, now = Date.now() / 1000) {
  if (!time || time < 0) return "–";
  const date = new Date(time * 1000);
  const today = new Date(now * 1000);
  const isToday = date.getDate() === today.getDate() && Math.abs(time - now) < 86400;
  const day = isToday ? "" : `${date.getFullYear()}-${pair(date.getMonth() + 1)}-${pair(date.getDate())} `;
  return `${day}${pair(date.getHours())}:${pair(date.getMinutes())}:${pair(date.getSeconds())}`;
}

/** @param {number} value */
const pair = (value) => String(value).padStart(2, "0");

/** "3 workers", "1 worker".
 * @param {number} amount @param {string} word */
export function plural(amount, word) {
  return `${count(amount)} ${word}${amount === 1 ? "" : "s"}`;
}

/** The last part of a path.
 * @param {string} path */
export function tail(path) {
  return path.slice(path.lastIndexOf("/") + 1) || path;
}
