// The metrics of a job: a grid of plots and, under them, its workers over time. How they are looked at (x axis,
// smoothing, log axes, zoom, search) is in the address.

import { useEffect, useMemo } from "preact/hooks";
import { Band } from "./band.js";
import { Bar } from "./bar.js";
import { placer, steps } from "./curve.js";
import { plural } from "./format.js";
import { html } from "./html.js";
import { PlotCard } from "./plot_card.js";
import { go, query } from "./route.js";
import { Empty } from "./states.js";

/** @typedef {import("./curve.js").Axis} Axis */
/**
 * @typedef {object} Looks  how all plots of a view are looked at
 * @property {Axis} axis
 * @property {(step: number, time: number) => number} place
 * @property {(mark: import("./job_state.js").Mark) => number} placeMark
 * @property {[number, number] | null} range
 * @property {[number, number] | null} extent
 * @property {(whole: import("./curve.js").Window, range: [number, number]) => [number, number]} toSteps
 * @property {{smoothing: number, isLogX: boolean, isLogY: boolean, group: string, onRange: (range: [number, number] | null) => void}} plot
 */

const EPOCHS = "training/epochs";
export const POSITIONS = new Set([EPOCHS, "training/records"]);

/** @param {{state: import("./job_state.js").JobState}} props */
export function Metrics({ state }) {
  const all = state.series.value;
  const mine = useMemo(() => (all ?? []).filter((each) => !each.name.startsWith("system/")), [all]);
  const epochs = mine.find((each) => each.name === EPOCHS) ?? null;
  const lookup = useLooks(state, mine, epochs, "metrics");
  const find = (query.value.get("find") ?? "").toLowerCase();
  const shown = mine.filter((each) => each.name.toLowerCase().includes(find));
  if (!all) return html`<${Ghosts} />`;
  const band = state.marks.value?.some((mark) => mark.kind !== "created") && html`<${Band} marks=${state.marks.value} lookup=${lookup} />`;
  if (!mine.length && state.isOver.value) return html`<div class="stack"><${Empty} title="No metrics"><p>This job reported no metrics.</p><//>${band}</div>`;
  if (!mine.length) {
    return html`<div class="stack"><${Empty} title="No metrics yet"><p>Report numbers from any of the job's scripts, and they appear here:</p><code>everstep.report({"loss": loss}, step=step)</code><//>${band}</div>`;
  }
  return html`<div class="stack">
    <${Toolbar} lookup=${lookup} hasEpochs=${Boolean(epochs)} shown=${shown.length} total=${mine.length} />
    <${Sections} series=${shown} lookup=${lookup} />
    ${!shown.length && html`<p class="quiet">No metric's name contains “${query.value.get("find")}”.</p>`}
    ${band}
  </div>`;
}

/** @param {{series: import("./series.js").Series[], lookup: Looks}} props */
export function Sections({ series, lookup }) {
  /** @type {Map<string, import("./series.js").Series[]>} */
  const groups = new Map();
  // Where the training is in its data comes last: it is an axis more than a result.
  for (const each of [...series].sort((a, b) => Number(POSITIONS.has(a.name)) - Number(POSITIONS.has(b.name)))) {
    const group = each.name.includes("/") ? each.name.slice(0, each.name.lastIndexOf("/")) : "";
    groups.set(group, [...(groups.get(group) ?? []), each]);
  }
  return [...groups].map(
    ([group, members]) => html`<section key=${group}>
      ${group && html`<div class="section"><h2>${group.replace(/^system\//, "")}</h2><span class="quiet small">${plural(members.length, "metric")}</span></div>`}
      <div class="plots">${members.map((each) => html`<${PlotCard} key=${each.number} series=${each} title=${group ? each.name.slice(group.length + 1) : each.name} lookup=${lookup} index=${0} />`)}</div>
    </section>`,
  );
}

/** @param {import("./job_state.js").JobState} state @param {import("./series.js").Series[]} series
 * @param {import("./series.js").Series | null} epochs @param {string} group @returns {Looks} */
export function useLooks(state, series, epochs, group) {
  const chosen = query.value.get("x");
  const isSystem = group === "system";
  const axis = /** @type {Axis} */ (isSystem || chosen === "time" ? "time" : chosen === "epoch" && epochs ? "epoch" : "step");
  const table = axis === "epoch" ? epochTable(epochs) : null;
  useEffect(() => {
    if (axis === "epoch") epochs?.want(500);
  }, [axis, epochs]);
  const start = state.summary.value?.created_at ?? 0;
  const place = useMemo(() => placer(axis, table, start), [axis, table, start]);
  const placeMark = useMemo(() => (/** @type {any} */ mark) => place(mark.step, mark.time), [place]);
  const views = series.map((each) => each.view.value);
  const marks = isSystem ? [] : state.marks.value ?? [];
  const ends = [...views.map((view) => place(view.last_step, view.last_time)), ...marks.map(placeMark)];
  const starts = [...views.map((view) => (axis === "time" ? (isSystem ? view.first_step : Infinity) : place(view.first_step, 0))), ...marks.map(placeMark)];
  const [low, high] = [starts.reduce((a, b) => Math.min(a, b), Infinity), ends.reduce((a, b) => Math.max(a, b), -Infinity)];
  const extent = /** @type {[number, number] | null} */ (low < high ? [low, high] : null);
  const [from, to] = [Number(query.value.get("from") ?? NaN), Number(query.value.get("to") ?? NaN)];
  const range = /** @type {[number, number] | null} */ (from < to ? [from, to] : null);
  return {
    axis, place, placeMark, range, extent,
    toSteps: (whole, [a, b]) => steps(whole, axis, place, a, b),
    plot: {
      smoothing: Math.min(0.99, Number(query.value.get("smooth") ?? 0)),
      isLogX: query.value.has("logx"),
      isLogY: query.value.has("logy"),
      group,
      onRange: zoom,
    },
  };
}

/** @param {import("./series.js").Series | null} series */
function epochTable(series) {
  const window = series?.version.value !== undefined ? series?.whole : null;
  if (!window) return null;
  return { steps: window.first_steps, epochs: /** @type {number[]} */ (window.firsts.map(Number)) };
}

/** @param {[number, number] | null} range */
const zoom = (range) => go({ from: range && Number(range[0].toPrecision(12)), to: range && Number(range[1].toPrecision(12)) }, { replace: true });

/** @param {{lookup: Looks, hasEpochs?: boolean, shown: number, total: number, isSystem?: boolean}} props */
export function Toolbar({ lookup, hasEpochs = false, shown, total, isSystem = false }) {
  const { range, extent, plot } = lookup;
  /** @param {number} scale @param {number} shift in parts of what is seen */
  const move = (scale, shift) => {
    const [from, to] = range ?? extent ?? [0, 1];
    const span = (to - from) * scale;
    const middle = (from + to) / 2 + (to - from) * shift;
    zoom([middle - span / 2, middle + span / 2]);
  };
  const find = html`<input type="search" class="grow" placeholder="Find metrics" aria-label="Find metrics" value=${query.value.get("find") ?? ""}
      onInput=${(/** @type {any} */ event) => go({ find: event.target.value }, { replace: true })} />`;
  return html`<${Bar} label="How the plots are drawn" first=${find} changed=${[range, lookup.axis !== (isSystem ? "time" : "step"), plot.smoothing, plot.isLogX, plot.isLogY].filter(Boolean).length}>
    ${!isSystem && html`<label>x axis
      <select value=${lookup.axis} onChange=${(/** @type {any} */ event) => go({ x: event.target.value === "step" ? "" : event.target.value, from: "", to: "" }, { replace: true })}>
        <option value="step">step</option>${hasEpochs && html`<option value="epoch">epoch</option>`}<option value="time">time</option>
      </select></label>`}
    <label>Smoothing
      <input type="range" min="0" max="0.99" step="0.01" value=${plot.smoothing} onInput=${(/** @type {any} */ event) => go({ smooth: Number(event.target.value) || "" }, { replace: true })} />
    </label>
    <span class="group" role="group" aria-label="Log axes">
      <button aria-pressed=${plot.isLogX} onClick=${() => go({ logx: !plot.isLogX }, { replace: true })}>log x</button>
      <button aria-pressed=${plot.isLogY} onClick=${() => go({ logy: !plot.isLogY }, { replace: true })}>log y</button>
    </span>
    <span class="group" role="group" aria-label="Zoom">
      <button aria-label="Earlier" onClick=${() => move(1, -0.25)}>‹</button>
      <button aria-label="Zoom in" onClick=${() => move(0.5, 0)}>+</button>
      <button aria-label="Zoom out" onClick=${() => move(2, 0)}>−</button>
      <button aria-label="Later" onClick=${() => move(1, 0.25)}>›</button>
      <button disabled=${!range} onClick=${() => zoom(null)}>All</button>
    </span>
    <span class="quiet small" aria-live="polite">${shown === total ? plural(total, "metric") : `${shown} of ${plural(total, "metric")}`}</span>
  <//>`;
}

function Ghosts() {
  return html`<div class="plots" aria-busy="true" aria-label="Loading">${[0, 1, 2].map((i) => html`<div key=${i} class="card"><div class="ghost" style=${{ width: "40%" }}></div><div class="canvas" style=${{ height: "232px" }}></div></div>`)}</div>`;
}
