// How many slot-hours each person has used of a pool, day by day: columns, and the same as a table.

import { useEffect, useState } from "preact/hooks";
import { get } from "./api.js";
import { number, plural } from "./format.js";
import { html } from "./html.js";
import { color } from "./palette.js";
import { roundUp, useByDay } from "./pool_use.js";
import { go, query } from "./route.js";
import { Failed } from "./states.js";
import { isDark } from "./theme.js";

const CHOICES = [7, 30, 90];
const PAUSE_MS = 60_000; // between fetches: a slot in use adds a minute each minute

/** @param {{pool: string}} props */
export function UseChart({ pool }) {
  const num = CHOICES.find((each) => String(each) === query.value.get("days")) ?? CHOICES[0];
  const [use, setUse] = useState(/** @type {import("./pool_use.js").DayUse[] | null} */ (null));
  const [problem, setProblem] = useState(/** @type {Error | null} */ (null));
  const [isTable, setTable] = useState(false);
  useEffect(() => {
    const ending = new AbortController();
    const fetch = () =>
      get(`/v1/pools/${encodeURIComponent(pool)}/use`, { days: num }, ending.signal).then(
        (reply) => (setUse(reply.use), setProblem(null)),
        (error) => ending.signal.aborted || setProblem(error),
      );
    fetch();
    const timer = setInterval(fetch, PAUSE_MS);
    return () => (ending.abort(), clearInterval(timer));
  }, [pool, num]);

  const { days, people } = useByDay(use ?? [], num, Date.now());
  const top = roundUp(Math.max(...days.map((day) => day.hours)));
  const label = people.length
    ? `Slot-hours in the last ${plural(num, "day")}: ${people.map((each) => `${each.person} ${hours(each.hours)}`).join(", ")}.`
    : `Nobody has used a slot in the last ${plural(num, "day")}.`;
  return html`<section class="card use" aria-labelledby="use-title">
    <header><h2 id="use-title">Use</h2><span class="quiet small">slot-hours by person and day (UTC)</span>
      <span class="group" role="group" aria-label="Days">${CHOICES.map(
        (each) => html`<button key=${each} aria-pressed=${each === num} onClick=${() => go({ days: each === CHOICES[0] ? "" : each }, { replace: true })}>${each}<span class="unseen"> days</span></button>`,
      )}</span>
      <button class="plain" aria-pressed=${isTable} onClick=${() => setTable(!isTable)}>Table<span class="unseen"> of use</span></button></header>
    ${problem && html`<${Failed} problem=${problem} />`}
    ${use && !people.length && html`<p class="quiet">${label}</p>`}
    ${people.length > 0 && (isTable ? html`<${UseTable} days=${days} people=${people} />` : html`<${Columns} days=${days} people=${people} top=${top} label=${label} />`)}
  </section>`;
}

/** @param {number} value */
const hours = (value) => number(Number(value.toPrecision(3)));

/** @typedef {{days: import("./pool_use.js").Day[], people: import("./pool_use.js").Part[]}} Used */

/** @param {Used & {top: number, label: string}} props */
function Columns({ days, people, top, label }) {
  const dark = isDark.value;
  const every = Math.ceil(days.length / 10);
  return html`<div class="columns" role="img" aria-label=${label}>
      <span class="most small quiet">${hours(top)} h</span>
      ${days.map(
        (day, i) => html`<div key=${day.day} class="column" title=${`${day.day}: ${hours(day.hours)} h\n${day.parts.filter((part) => part.hours).map((part) => `${part.person}: ${hours(part.hours)} h`).join("\n")}`}>
          <div class="stacked">${day.parts.map((part, person) => part.hours > 0 && html`<div key=${part.person} style=${{ height: `${(part.hours / top) * 100}%`, background: color(person, dark) }}></div>`)}</div>
          <span class="small quiet">${(days.length - 1 - i) % every === 0 ? day.day.slice(5) : ""}</span>
        </div>`,
      )}
    </div>
    <ul class="key" aria-label="People">${people.map(
      (each, i) => html`<li key=${each.person}><svg width="12" height="12" aria-hidden="true"><rect width="12" height="12" rx="2" fill=${color(i, dark)} /></svg>${each.person}<span class="quiet">${hours(each.hours)} h</span></li>`,
    )}</ul>`;
}

/** @param {Used} props */
function UseTable({ days, people }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Use as a table"><table class="tight">
    <thead><tr><th>Day</th>${people.map((each) => html`<th key=${each.person} class="number">${each.person}</th>`)}<th class="number">All</th></tr></thead>
    <tbody>${[...days].reverse().map(
      (day) => html`<tr key=${day.day}><td>${day.day}</td>${day.parts.map((part) => html`<td key=${part.person} class="number">${part.hours ? hours(part.hours) : "–"}</td>`)}<td class="number">${hours(day.hours)}</td></tr>`,
    )}</tbody></table></div>`;
}
