// Workers over time, under the plots and on their x axis: generations, deaths, joins, who leads. Each mark says the
// coordinator's own sentence when the pointer or the focus is on it; the table has them all.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { clock, count, plural } from "./format.js";
import { html } from "./html.js";
import { SHOWN, lanes } from "./lanes.js";
import { ticks, xTexts } from "./ticks.js";

const [LEFT, RIGHT, FOOT] = [64, 20, 24]; // as wide as the axes of a plot
const MOST_LANES = 16; // then the number of workers is drawn instead
const MOST_MARKS = 400;
const STAIRS = 72;

const WORDS = { created: "Created", formed: "Generation formed", closed: "Generation closed", died: "Death", joined: "Join", left: "Departure", leads: "New leader", restarted: "Restart", finished: "Finished", stopped: "Stopped" };

/** @typedef {import("./job_state.js").Mark} Mark */

/** @param {Mark} mark */
const what = (mark) => WORDS[/** @type {keyof WORDS} */ (mark.kind)] ?? mark.kind;

/** @param {Mark} mark */
export function tell(mark) {
  const reason = mark.reason || `${mark.worker} ${mark.kind}`;
  return `${what(mark)} at step ${count(mark.step)}, ${clock(mark.time)}: ${reason}`;
}

/** @typedef {Pick<import("./metrics.js").Looks, "axis" | "placeMark" | "range" | "extent">} BandLooks */

/** @param {{marks: Mark[], lookup: BandLooks, isDocked?: boolean, isCount?: boolean}} props  isCount: draw how many there are, not each of them */
export function Band({ marks, lookup, isDocked = true, isCount = false }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [width, setWidth] = useState(0);
  const [told, setTold] = useState("");
  const [isTable, setTable] = useState(false);
  useEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.observe(element);
    return () => observer.disconnect();
  }, [isTable]);

  const [from, to] = lookup.range ?? lookup.extent ?? [0, 1];
  const made = useMemo(() => lanes(marks, lookup.placeMark, lookup.extent?.[1] ?? to), [marks, lookup.placeMark, lookup.extent?.[1]]);
  const events = marks.filter((mark) => SHOWN.has(mark.kind));
  const deaths = marks.filter((mark) => mark.kind === "died").length;
  const joins = marks.filter((mark) => mark.kind === "joined").length;
  const generations = marks.filter((mark) => mark.kind === "formed").length;

  return html`<section class=${isDocked ? "card band dock" : "card band"} aria-labelledby="band-title">
    <header>
      <h3 id="band-title">Workers over time</h3>
      <span class="quiet small">${plural(generations, "generation")}, ${plural(deaths, "death")}, ${plural(joins, "join")}</span>
      ${!isCount && html`<span class="quiet small leads"><svg width="20" height="10" aria-hidden="true"><rect class="lane lead" width="20" height="10" rx="2" /></svg> leads</span>`}
      <span class=${told ? "sentence told" : "sentence"}>${isTable ? "" : told || (events.length ? "Point at a mark, or press Tab, to read what the coordinator said." : "No worker has died, joined or left since the start.")}</span>
      <button class="plain" aria-pressed=${isTable} onClick=${() => setTable(!isTable)}>Table<span class="unseen"> of workers over time</span></button>
    </header>
    ${isTable
      ? html`<${MarksTable} marks=${marks} />`
      : html`<div class="lanes" ref=${box}>
          ${width > 0 && html`<${Drawing} isCount=${isCount} made=${made} events=${events} lookup=${lookup} from=${from} to=${to} width=${width} onTell=${setTold} />`}
        </div>`}
  </section>`;
}

/** @param {any} props */
function Drawing({ isCount, made, events, lookup, from, to, width, onTell }) {
  const isStairs = isCount || made.lanes.length > MOST_LANES;
  const pitch = made.lanes.length > 4 ? 15 : 18;
  const height = isStairs ? STAIRS : Math.max(1, made.lanes.length) * pitch;
  const inner = Math.max(1, width - LEFT - RIGHT);
  const at = (/** @type {number} */ x) => LEFT + ((x - from) / (to - from || 1)) * inner;
  const isIn = (/** @type {number} */ x) => x >= from && x <= to;
  const row = new Map(made.lanes.map((/** @type {any} */ lane, /** @type {number} */ i) => [lane.worker, i]));
  const most = Math.max(1, ...made.sizes.map((/** @type {any} */ each) => each.size));
  const y = (/** @type {Mark} */ mark) => (isStairs ? STAIRS / 2 : ((row.get(mark.worker) ?? -0.5) + 0.5) * pitch);
  const seen = events.filter((/** @type {Mark} */ mark) => isIn(lookup.placeMark(mark))).slice(-MOST_MARKS);
  const marked = ticks(from, to, Math.max(2, inner / 110), lookup.axis);
  const texts = xTexts(marked, lookup.axis, to - from);
  return html`<svg height=${height + FOOT} role="group" aria-label="Workers over time, one mark for each change">
    ${marked.map(
      (x, i) => html`<g key=${`t${x}`}><line class="rule" x1=${at(x)} x2=${at(x)} y1="0" y2=${height} /><text x=${at(x)} y=${height + 18} text-anchor="middle">${texts[i]}</text></g>`,
    )}
    ${isStairs
      ? html`<${Stairs} sizes=${made.sizes} at=${at} from=${from} to=${to} most=${most} />`
      : made.lanes.map((/** @type {any} */ lane, /** @type {number} */ i) => html`<g key=${lane.worker}>
          <text x="0" y=${i * pitch + pitch / 2 + 4}>${lane.worker.length > 8 ? `${lane.worker.slice(0, 7)}…` : lane.worker}</text>
          ${lane.stretches.map((/** @type {any} */ each) => {
            const [a, b] = [Math.max(each.from, from), Math.min(each.to, to)];
            return a <= b && html`<rect key=${each.generation} class=${each.isLead ? "lane lead" : "lane"} x=${at(a)} y=${i * pitch + 3} width=${Math.max(1, at(b) - at(a) - 1)} height=${pitch - 6} rx="2" />`;
          })}
        </g>`)}
    ${seen.map((/** @type {Mark} */ mark) => {
      const sentence = tell(mark);
      return html`<g key=${mark.number} class="mark" tabindex="0" role="img" aria-label=${sentence}
        transform=${`translate(${at(lookup.placeMark(mark))} ${y(mark)})`}
        onMouseEnter=${() => onTell(sentence)} onMouseLeave=${() => onTell("")} onFocus=${() => onTell(sentence)} onBlur=${() => onTell("")}>
        <circle class="halo" r="7" /><${Sign} kind=${mark.kind} />
      </g>`;
    })}
  </svg>`;
}

/** A shape for each kind: none is told by its color alone.
 * @param {{kind: string}} props */
function Sign({ kind }) {
  if (kind === "died" || kind === "stopped") return html`<path class="died" d="M-3-3 3 3M3-3-3 3" />`;
  if (kind === "joined") return html`<path class="joined" d="M0-4 4 3H-4Z" />`;
  if (kind === "leads") return html`<circle class="joined" r="3" />`;
  return html`<path class="left" d="M0-3.5 3.5 0 0 3.5-3.5 0Z" />`;
}

/** @param {any} props */
function Stairs({ sizes, at, from, to, most }) {
  const y = (/** @type {number} */ size) => STAIRS - (size / most) * (STAIRS - 8);
  let size = 0;
  let path = `M${at(from)} ${STAIRS}`;
  for (const each of sizes) {
    if (each.x > to) break;
    if (each.x > from) path += `L${at(each.x)} ${y(size)}L${at(each.x)} ${y(each.size)}`;
    else path = `M${at(from)} ${STAIRS}L${at(from)} ${y(each.size)}`;
    size = each.size;
  }
  return html`<g><text x="0" y="12">${count(most)}</text><text x="0" y=${STAIRS}>0</text><path class="lane" d=${`${path}L${at(to)} ${y(size)}L${at(to)} ${STAIRS}Z`} /></g>`;
}

/** @param {{marks: Mark[]}} props */
function MarksTable({ marks }) {
  return html`<div class="scroll" style=${{ maxHeight: "240px", marginTop: "8px" }} tabindex="0" role="region" aria-label="Workers over time as a table">
    <table class="tight" id="marks">
      <thead><tr><th class="number">Step</th><th>Time</th><th>What</th><th>Worker</th><th class="number">Generation</th><th>Reason</th></tr></thead>
      <tbody>${[...marks].reverse().slice(0, MOST_MARKS).map(
        (mark) => html`<tr key=${mark.number} data-kind=${mark.kind}>
          <td class="number">${count(mark.step)}</td><td>${clock(mark.time)}</td><td>${what(mark)}</td><td>${mark.worker}</td><td class="number">${mark.generation || ""}</td><td class="wrap">${mark.reason}</td>
        </tr>`,
      )}</tbody>
    </table>
    ${marks.length > MOST_MARKS && html`<p class="quiet small" style=${{ padding: "8px 12px" }}>The newest ${count(MOST_MARKS)} of ${count(marks.length)} marks.</p>`}
  </div>`;
}
