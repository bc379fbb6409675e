// From what people have used of a pool to the columns of a chart: a day each, with a part for each person. Pure.

/** @typedef {{day: string, person: string, slot_seconds: number}} DayUse */
/** @typedef {{person: string, hours: number}} Part */
/** @typedef {{day: string, parts: Part[], hours: number}} Day */

const MOST_PEOPLE = 7; // with a color of their own; the others share one
export const OTHERS = "others";
const DAY_MS = 86_400_000;

/** An experiment's owner, by name.
 * @param {string} person */
export const personText = (person) => person || "no owner";

/** The last `num` days, the oldest first, also those without use.
 * @param {DayUse[]} use @param {number} num @param {number} now_ms
 * @returns {{days: Day[], people: {person: string, hours: number}[]}} people: those with most use first */
export function useByDay(use, num, now_ms) {
  /** @type {Map<string, number>} */
  const totals = new Map();
  for (const each of use) totals.set(each.person, (totals.get(each.person) ?? 0) + each.slot_seconds / 3600);
  const sorted = [...totals].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([person]) => person);
  const shown = new Set(sorted.length > MOST_PEOPLE + 1 ? sorted.slice(0, MOST_PEOPLE) : sorted);
  const names = [...shown].map(personText).concat(shown.size < sorted.length ? [OTHERS] : []);
  /** @type {Map<string, Map<string, number>>} */
  const byDay = new Map();
  for (const each of use) {
    const name = shown.has(each.person) ? personText(each.person) : OTHERS;
    const parts = byDay.get(each.day) ?? new Map();
    byDay.set(each.day, parts.set(name, (parts.get(name) ?? 0) + each.slot_seconds / 3600));
  }
  const days = Array.from({ length: num }, (_, i) => {
    const day = new Date(now_ms - (num - 1 - i) * DAY_MS).toISOString().slice(0, 10);
    const parts = names.map((person) => ({ person, hours: byDay.get(day)?.get(person) ?? 0 }));
    return { day, parts, hours: parts.reduce((sum, part) => sum + part.hours, 0) };
  });
  return { days, people: names.map((person, i) => ({ person, hours: days.reduce((sum, day) => sum + day.parts[i].hours, 0) })) };
}

/** The least round number that is not smaller: the top of the chart.
 * @param {number} hours */
export function roundUp(hours) {
  if (!(hours > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(hours));
  return power * ([1, 2, 5].find((each) => each * power >= hours) ?? 10);
}
