// Parallel coordinates: an axis for each searched hyperparameter and one for the metric, a line for each trial. A brush
// on an axis, or its menu, keeps the trials that pass there.

import { useMemo, useRef, useState } from "preact/hooks";
import { AxisFilters } from "./axis_filters.js";
import { Canvas, fitted } from "./canvas.js";
import { Card, Rows, useNear } from "./chart.js";
import { count, plural } from "./format.js";
import { html } from "./html.js";
import { ramp } from "./palette.js";
import { actives, layers, nearest, positions } from "./parallel_lines.js";
import { onlyBetween, scaleTicks, stretches, valueText } from "./scale.js";
import { bestOf, shares } from "./trial_rows.js";

/** @typedef {import("./trial_rows.js").Axis} Axis */
/** @typedef {import("./trial_rows.js").Row} Row */
/** @typedef {import("./scale.js").Only} Only */

const HEIGHT = 360;
const TOP = 34;
const BOTTOM = 14;
const SIDE = 64;
const LEAST_GAP = 96; // between two axes; where there is less room, one scrolls
const NUM_COLORS = 24;
const AT_ONCE = 2000; // lines in one frame
const IN_PATH = 25; // lines: a path of many takes longer than many paths
const REACH = 0.04;

/**
 * @param {object} props
 * @param {Row[]} props.rows
 * @param {Axis[]} props.axes the metric's is the last
 * @param {Record<string, Only>} props.filters
 * @param {(name: string, only: Only | null) => void} props.onFilter
 * @param {boolean} props.isSmallerBetter
 * @param {(row: Row) => void} props.onOpen
 */
export function Parallel({ rows, axes, filters, onFilter, isSmallerBetter, onOpen }) {
  const metric = axes[axes.length - 1];
  const places = useMemo(() => positions(rows, axes), [rows, axes]);
  const share = useMemo(() => shares(rows, metric.of, isSmallerBetter), [rows, metric, isSmallerBetter]);
  const active = useMemo(() => actives(rows, axes, filters), [rows, axes, filters]);
  const [pointed, setPointed] = useState(-1);
  const [brush, setBrush] = useState(/** @type {{axis: number, from: number, to: number} | null} */ (null));
  const width = useRef(0);
  const [box, isNear] = useNear();
  const gap = () => (width.current - 2 * SIDE) / Math.max(1, axes.length - 1);

  const draw = useMemo(
    () => (/** @type {import("./canvas.js").Pen} */ pen) => {
      width.current = pen.width;
      const todo = layers(share, active, NUM_COLORS).flatMap(({ color, rows: members }) => parts(color, members));
      const more = () => {
        for (let drawn = 0; todo.length && drawn < AT_ONCE; ) {
          const part = /** @type {{color: number, rows: number[]}} */ (todo.shift());
          stroke(pen, places, axes.length, gap(), part.rows, inkOf(part.color, pen));
          drawn += part.rows.length;
        }
        drawAxes(pen, axes, filters, gap()); // above the lines, so that its words can be read
        return todo.length > 0;
      };
      return more() ? more : undefined;
    },
    [places, share, active, axes, filters],
  );
  const above = useMemo(
    () => (/** @type {import("./canvas.js").Pen} */ pen) => {
      if (pointed >= 0 && pointed < rows.length) stroke(pen, places, axes.length, gap(), [pointed], { color: pen.ink.mark, width: 3, alpha: 1 });
      if (brush) drawStretch(pen, SIDE + brush.axis * gap(), brush.from, brush.to);
    },
    [pointed, brush, places],
  );

  const onPoint = (/** @type {import("./canvas.js").At | null} */ at, /** @type {string} */ what) => {
    if (!at) return setPointed(-1);
    const x = (at.x - SIDE) / gap();
    const y = 1 - (at.y - TOP) / (HEIGHT - TOP - BOTTOM);
    const axis = Math.min(axes.length - 1, Math.max(0, Math.round(x)));
    const isOnAxis = Math.abs(x - axis) * gap() < 18;
    if (what === "down" && isOnAxis) return setBrush({ axis, from: y, to: y });
    if (what === "move" && brush && at.isDown) return setBrush({ ...brush, to: y });
    if (what === "up" && brush) {
      const { scale } = axes[brush.axis];
      onFilter(scale.name, Math.abs(brush.to - brush.from) < 0.012 ? null : onlyBetween(scale, brush.from, brush.to));
      return setBrush(null);
    }
    const found = nearest(places, axes.length, x, y, (row) => active[row], REACH);
    setPointed(found);
    if (what === "up" && found >= 0) onOpen(rows[found]);
  };

  const numActive = active.filter(Boolean).length;
  const without = share.filter((each) => each === null).length;
  const best = bestOf(rows.filter((_, i) => active[i]), metric.of, isSmallerBetter);
  const told = (/** @type {Row} */ row) => axes.map(({ scale, of }) => `${scale.name} ${valueText(of(row))}`).join(", ");
  const sentence = `Parallel coordinates of ${plural(rows.length, "trial")} over ${axes.map(({ scale }) => scale.name).join(", ")}.${best ? ` Best: trial ${best.trial}, ${told(best)}.` : ""}`;
  const note = `${numActive === rows.length ? `all ${plural(rows.length, "trial")}` : `${count(numActive)} of ${plural(rows.length, "trial")} pass`}${without ? `, ${count(without)} without a number for ${metric.scale.name}` : ""}`;
  return html`<${Card} title="Parallel coordinates" boxRef=${box} value=${pointed >= 0 && rows[pointed] ? `trial ${rows[pointed].trial}: ${told(rows[pointed])}` : ""} sentence=${sentence} note=${note}
    table=${() => html`<${Rows} head=${["Trial", ...axes.map(({ scale }) => scale.name)]} rows=${rows.filter((_, i) => active[i]).map((row) => [row.trial, ...axes.map(({ of }) => valueText(of(row)))])} />`}>
    <${AxisFilters} axes=${axes} filters=${filters} onFilter=${onFilter} />
    <div class="sideways" tabindex="0" role="region" aria-label="Parallel coordinates">
      ${isNear ? html`<${Canvas} draw=${draw} above=${above} onPoint=${onPoint} height=${HEIGHT} least=${2 * SIDE + LEAST_GAP * (axes.length - 1)} label=${sentence} />` : html`<div style=${{ height: `${HEIGHT}px` }}></div>`}
    </div>
    <${Legend} isSmallerBetter=${isSmallerBetter} />
  <//>`;
}

/** What the colors say. @param {{isSmallerBetter: boolean}} props */
function Legend({ isSmallerBetter }) {
  return html`<p class="legend small quiet"><span>worst</span><span class="ramp" aria-hidden="true"></span><span>best: ${isSmallerBetter ? "smallest" : "largest"}</span></p>`;
}

/** @param {number} color @param {number[]} rows */
function parts(color, rows) {
  const made = [];
  for (let i = 0; i < rows.length; i += IN_PATH) made.push({ color, rows: rows.slice(i, i + IN_PATH) });
  return made;
}

/** @param {number} color @param {import("./canvas.js").Pen} pen */
function inkOf(color, { isDark, ink }) {
  if (color === -2) return { color: ink.grid, width: 1, alpha: 0.7 };
  if (color === -1) return { color: ink.text, width: 1, alpha: 0.4 };
  const share = color / (NUM_COLORS - 1);
  return { color: ramp(share, isDark), width: share > 0.9 ? 1.8 : 1, alpha: 0.55 + 0.45 * share };
}

/** @param {import("./canvas.js").Pen} pen @param {Float32Array} places @param {number} numAxes @param {number} gap @param {number[]} rows @param {{color: string, width: number, alpha: number}} how */
function stroke({ ctx, height }, places, numAxes, gap, rows, { color, width, alpha }) {
  const high = height - TOP - BOTTOM;
  ctx.strokeStyle = color;
  ctx.lineWidth = width;
  ctx.globalAlpha = alpha;
  ctx.beginPath();
  for (const row of rows) {
    for (let axis = 0; axis < numAxes; axis++) {
      const y = TOP + high * (1 - places[row * numAxes + axis]);
      if (axis) ctx.lineTo(SIDE + axis * gap, y);
      else ctx.moveTo(SIDE, y);
    }
  }
  ctx.stroke();
  ctx.globalAlpha = 1;
}

/** @param {import("./canvas.js").Pen} pen @param {Axis[]} axes @param {Record<string, Only>} filters @param {number} gap */
function drawAxes(pen, axes, filters, gap) {
  const { ctx, ink, height } = pen;
  const high = height - TOP - BOTTOM;
  const last = axes.length - 1;
  ctx.fillStyle = ink.text;
  axes.forEach(({ scale }, i) => {
    const x = SIDE + i * gap;
    ctx.textBaseline = "alphabetic";
    ctx.textAlign = i === 0 ? "left" : i === last ? "right" : "center";
    ctx.font = "600 12px system-ui, sans-serif";
    ctx.fillText(fitted(ctx, scale.name, i === 0 || i === last ? gap / 2 + SIDE - 8 : gap - 12), i === 0 ? 2 : i === last ? x + SIDE - 2 : x, 14);
    ctx.font = "11px system-ui, sans-serif";
    line(ctx, x, TOP, x, TOP + high, ink.text);
    ctx.textAlign = i === last ? "left" : "right";
    ctx.textBaseline = "middle";
    for (const { at, text } of scaleTicks(scale, high / 40)) {
      const y = TOP + high * (1 - at);
      const words = fitted(ctx, text, Math.min(gap, SIDE) - 10);
      line(ctx, x - 3, y, x + 3, y, ink.text);
      const wide = ctx.measureText(words).width + 4;
      ctx.fillStyle = ink.ground;
      ctx.globalAlpha = 0.85;
      ctx.fillRect(i === last ? x + 5 : x - 5 - wide, y - 7, wide, 14);
      ctx.globalAlpha = 1;
      ctx.fillStyle = ink.text;
      ctx.fillText(words, x + (i === last ? 7 : -7), y);
    }
    for (const [from, to] of filters[scale.name] ? stretches(scale, filters[scale.name]) : []) drawStretch(pen, x, from, to);
    ctx.fillStyle = ink.text;
  });
}

/** @param {CanvasRenderingContext2D} ctx @param {number} fromX @param {number} fromY @param {number} toX @param {number} toY @param {string} ink */
function line(ctx, fromX, fromY, toX, toY, ink) {
  ctx.strokeStyle = ink;
  ctx.lineWidth = 1;
  ctx.beginPath();
  ctx.moveTo(fromX, fromY);
  ctx.lineTo(toX, toY);
  ctx.stroke();
}

/** @param {import("./canvas.js").Pen} pen @param {number} x @param {number} from @param {number} to */
function drawStretch({ ctx, ink, height }, x, from, to) {
  const high = height - TOP - BOTTOM;
  const [a, b] = [from, to].map((each) => TOP + high * (1 - Math.min(1, Math.max(0, each))));
  ctx.fillStyle = ink.mark;
  ctx.globalAlpha = 0.25;
  ctx.fillRect(x - 7, Math.min(a, b), 14, Math.max(2, Math.abs(b - a)));
  ctx.globalAlpha = 1;
}
