// Who continued and who was cut at each rung, and by which numbers: a chart and a table for each bracket, and all
// trials of one rung with the search's own sentences.

import { useMemo } from "preact/hooks";
import { Chart, Rows } from "./chart.js";
import { count, number, plural } from "./format.js";
import { html } from "./html.js";
import { go, query } from "./route.js";
import { brackets, comparison, ranked, summary } from "./rung_rows.js";
import { key, scaleOf } from "./scale.js";
import { VirtualTable } from "./virtual_rows.js";

/** @typedef {import("./rung_rows.js").Rung} Rung */
/** @typedef {import("./rung_rows.js").Entry} Entry */
/** @typedef {import("./canvas.js").Pen} Pen */
/** @typedef {import("./chart.js").Area} Area */

const WORDS = { promoted: "continued", cut: "cut", finished: "full length", undecided: "waits", "on its way": "on its way", failed: "failed" };
const LOOKS = { promoted: "good", cut: "", finished: "live", undecided: "wait", "on its way": "wait", failed: "bad" };
const BAND_PX = 56; // of a rung
const ROW_PX = 40;
const REACH_PX = 12;

/** @typedef {{view: import("./rung_rows.js").RungsView, metric: string, unit: string, isSmallerBetter: boolean, trialHref: (trial: number) => string | undefined}} Props */

/** @param {Props} props */
export function Rungs(props) {
  const all = useMemo(() => brackets(props.view), [props.view]);
  const chosen = query.value.get("rung");
  const rung = all.flatMap(({ rungs }) => rungs).find((each) => name(each) === chosen);
  if (!all.length) return null;
  return html`<div class="stack">
    <div class="section"><h2>Who continued</h2><span class="quiet small">${props.view.order === "arrival" ? "Each result is compared with those that came before it." : "Results are compared within cohorts of trials."}</span></div>
    <p class="legend small">${Object.entries(WORDS).map(([outcome, word]) => html`<span key=${outcome}><${Sign} outcome=${outcome} /> ${word}</span>`)}</p>
    <div class="plots wide">${all.map((each) => html`<${Bracket} key=${each.bracket} ...${props} ...${each} numBrackets=${all.length} />`)}</div>
    ${rung && html`<${Numbers} ...${props} rung=${rung} />`}
  </div>`;
}

/** @param {Rung} rung */
const name = ({ bracket, length }) => `${bracket + 1}-${length}`;

/** @param {Props & {bracket: number, numBrackets: number, numCohorts: number, rungs: Rung[]}} props */
function Bracket({ bracket, numBrackets, numCohorts, rungs, metric, unit, isSmallerBetter }) {
  const title = numBrackets > 1 ? `Bracket ${bracket + 1}` : "Rungs";
  const [x, y] = useMemo(() => {
    const lengths = rungs.map(({ length }) => count(length));
    return [scaleOf({ name: metric, kind: "real" }, rungs.flatMap(({ entries }) => entries.map((each) => each.metric))), scaleOf({ name: "rung", kind: "choice", choices: lengths }, [])];
  }, [rungs, metric]);
  /** Where a trial's mark is: those of one rung above each other by their numbers, so that few cover others.
   * @param {number} rung @param {Entry} entry @param {Area} area @returns {[number, number]} */
  const place = (rung, entry, area) => {
    const band = area.height / rungs.length;
    return [area.x(entry.metric), area.top + area.height - (rung + 0.5) * band + (((entry.trial * 7919) % 97) / 97 - 0.5) * band * 0.64];
  };
  const draw = useMemo(
    () => (/** @type {Pen} */ pen, /** @type {Area} */ area) =>
      rungs.forEach(({ entries }, i) => {
        for (const each of [...entries].sort((a, b) => Number(a.outcome !== "cut") - Number(b.outcome !== "cut"))) sign(pen, each.outcome, ...place(i, each, area));
      }),
    [rungs, x],
  );
  const find = useMemo(
    () => (/** @type {number} */ px, /** @type {number} */ py, /** @type {Area} */ area) => {
      const rung = Math.min(rungs.length - 1, Math.max(0, Math.floor(((area.top + area.height - py) / area.height) * rungs.length)));
      /** @type {Entry | null} */
      let near = null;
      let distance = REACH_PX ** 2;
      for (const each of rungs[rung].entries) {
        const [a, b] = place(rung, each, area);
        const away = (a - px) ** 2 + (b - py) ** 2;
        if (away < distance) [near, distance] = [each, away];
      }
      if (!near) return null;
      const found = near;
      return {
        text: `trial ${found.trial}: ${key(found.metric)}, ${WORDS[found.outcome]}: ${comparison(found)}`,
        draw: (/** @type {Pen} */ { ctx, ink }) => {
          ctx.strokeStyle = ink.mark;
          ctx.lineWidth = 2;
          ctx.beginPath();
          ctx.arc(...place(rung, found, area), 8, 0, 7);
          ctx.stroke();
        },
      };
    },
    [rungs, x],
  );
  const sums = rungs.map((each) => summary(each, isSmallerBetter));
  const sentence = `${title}: ${rungs.map(({ length }, i) => `at ${count(length)} ${unit} ${told(sums[i])}`).join("; ")}.`;
  const chosen = query.value.get("rung");
  return html`<div class="stack bracket">
    <${Chart} title=${`${title}: ${metric} by ${unit} trained`} x=${x} y=${y} height=${rungs.length * BAND_PX + 60} draw=${draw} find=${find} sentence=${sentence} note=${`${plural(sums.reduce((sum, each) => sum + each.results, 0), "result")}${numCohorts > 1 ? `, ${numCohorts} cohorts` : ""}`}
      table=${() => html`<${Rows} head=${["Rung", "Trial", metric, "Outcome", "Comparison"]} rows=${rungs.flatMap(({ length, entries }) => ranked(entries, isSmallerBetter).map((each) => [`${count(length)} ${unit}`, each.trial, key(each.metric), WORDS[each.outcome], comparison(each)]))} />`} />
    <div class="scroll" tabindex="0" role="region" aria-label=${`Rungs of ${title.toLowerCase()}`}><table class="tight">
      <thead><tr><th>Rung</th><th class="number">Results</th><th class="number">Continued</th><th class="number">Cut</th><th class="number">Undecided</th><th class="number">Worst that continued</th><th class="number">Best that was cut</th></tr></thead>
      <tbody>${rungs.map((each, i) => html`<tr key=${each.length}>
        <td><button class="plain" aria-pressed=${chosen === name(each)} aria-label=${`Trials at ${count(each.length)} ${unit}, ${title.toLowerCase()}`} onClick=${() => go({ rung: chosen === name(each) ? "" : name(each) }, { replace: true })}>${count(each.length)} ${unit}</button></td>
        <td class="number">${count(sums[i].results)}${sums[i].failed > 0 && ` + ${sums[i].failed} failed`}</td><td class="number">${sums[i].finished ? `${count(sums[i].finished)} at full length` : count(sums[i].promoted)}</td><td class="number">${count(sums[i].cut)}</td><td class="number">${count(sums[i].undecided)}${sums[i].coming > 0 && ` + ${count(sums[i].coming)} on their way`}</td>
        <td class="number">${number(sums[i].worstPromoted)}</td><td class="number">${number(sums[i].bestCut)}</td>
      </tr>`)}</tbody>
    </table></div>
  </div>`;
}

/** @param {import("./rung_rows.js").Summary} sums */
function told({ results, promoted, cut, finished, undecided, coming }) {
  const parts = [promoted && `${promoted} continued`, cut && `${cut} cut`, finished && `${finished} at the full length`, undecided && `${undecided} undecided`, coming && `${coming} on their way`].filter(Boolean);
  return `${plural(results, "result")}${parts.length ? ` (${parts.join(", ")})` : ""}`;
}

/** All trials of a rung.
 * @param {Props & {rung: Rung}} props */
function Numbers({ rung, metric, unit, isSmallerBetter, trialHref }) {
  const rows = useMemo(() => ranked(rung.entries, isSmallerBetter), [rung, isSmallerBetter]);
  const label = `Trials at ${count(rung.length)} ${unit}`;
  return html`<section>
    <div class="section"><h2>${label}</h2><span class="quiet small">${plural(rows.length, "trial")}, the best first</span></div>
    <${VirtualTable} total=${rows.length} height=${ROW_PX} columns=${5} label=${label} onNeed=${nothing}
      head=${html`<tr><th>Trial</th><th class="number">${metric}</th><th>Outcome</th><th class="number">Cohort</th><th>Comparison</th></tr>`}
      row=${(/** @type {number} */ i) => html`<tr key=${rows[i].trial} aria-rowindex=${i + 2}><td class="name"><a href=${trialHref(rows[i].trial)}>trial ${rows[i].trial}</a></td><td class="number">${key(rows[i].metric)}</td>
        <td><span class=${`state ${LOOKS[rows[i].outcome]}`}>${WORDS[rows[i].outcome]}</span></td><td class="number">${rows[i].cohort + 1}</td><td>${comparison(rows[i])}</td></tr>`} />
  </section>`;
}

const nothing = () => null;

/** @param {Pen} pen @param {Entry["outcome"]} outcome @param {number} x @param {number} y */
function sign({ ctx, ink }, outcome, x, y) {
  ctx.beginPath();
  ctx.lineWidth = 1.5;
  if (outcome === "cut" || outcome === "failed") {
    ctx.strokeStyle = outcome === "cut" ? ink.text : ink.mark;
    ctx.moveTo(x - 3, y - 3);
    ctx.lineTo(x + 3, y + 3);
    ctx.moveTo(x + 3, y - 3);
    ctx.lineTo(x - 3, y + 3);
    return ctx.stroke();
  }
  if (outcome === "finished") ctx.rect(x - 4, y - 4, 8, 8);
  else ctx.arc(x, y, outcome === "on its way" ? 2.5 : 4, 0, 7);
  if (outcome === "undecided" || outcome === "on its way") {
    ctx.strokeStyle = ink.text;
    return ctx.stroke();
  }
  ctx.fillStyle = ink.good;
  ctx.fill();
}

/** The same as an icon. @param {{outcome: string}} props */
function Sign({ outcome }) {
  const cross = html`<path d="M3 3L9 9M9 3L3 9" stroke-width="1.5" fill="none" />`;
  const ring = (/** @type {number} */ radius) => html`<circle cx="6" cy="6" r=${radius} fill="none" stroke-width="1.5" />`;
  const shapes = { promoted: html`<circle cx="6" cy="6" r="4" />`, finished: html`<rect x="2" y="2" width="8" height="8" />`, undecided: ring(4), "on its way": ring(2.5), cut: cross, failed: cross };
  return html`<svg class=${`sign ${outcome}`} width="12" height="12" aria-hidden="true">${shapes[/** @type {Entry["outcome"]} */ (outcome)]}</svg>`;
}
