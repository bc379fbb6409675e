// The learning curves of all trials in one chart: the best in color, any other when it is pointed at.

import { useMemo, useState } from "preact/hooks";
import { Chart, Rows } from "./chart.js";
import { number, plural } from "./format.js";
import { html } from "./html.js";
import { color, dash } from "./palette.js";
import { isOn, key, scaleOf, valueAt } from "./scale.js";
import { isDark } from "./theme.js";
import { allValues, bestCurves, bestValue, extent, heightAt } from "./trial_curves.js";

/** @typedef {import("./trial_curves.js").TrialCurve} TrialCurve */
/** @typedef {import("./canvas.js").Pen} Pen */
/** @typedef {import("./chart.js").Area} Area */

const NUM_BEST = 8;
const IN_PATH = 20;
const AT_ONCE = 1000; // curves in one frame
const REACH_PX = 24;

/** @param {{curves: TrialCurve[], numTrials: number, metric: string, unit: string, isSmallerBetter: boolean, trialHref: (trial: number) => string | undefined}} props */
export function LearningCurves({ curves, numTrials, metric, unit, isSmallerBetter, trialHref }) {
  const [isLogY, setLogY] = useState(false);
  const [isLogX, setLogX] = useState(false);
  const best = useMemo(() => bestCurves(curves, isSmallerBetter, NUM_BEST), [curves, isSmallerBetter]);
  const [x, y] = useMemo(() => {
    const [, end] = extent(curves);
    const across = scaleOf({ name: unit, kind: isLogX ? "log" : "real", low: isLogX ? undefined : 0, high: end }, isLogX ? curves.flatMap((each) => each.x) : [end]);
    return [across, scaleOf({ name: metric, kind: isLogY ? "log" : "real" }, allValues(curves))];
  }, [curves, isLogX, isLogY, metric, unit]);
  const draw = useMemo(
    () => (/** @type {Pen} */ pen, /** @type {Area} */ area) => {
      const others = curves.filter((each) => !best.includes(each));
      let next = 0;
      const more = () => {
        for (const stop = Math.min(others.length, next + AT_ONCE); next < stop; next += IN_PATH) strokeAll(pen, area, y, others.slice(next, Math.min(stop, next + IN_PATH)));
        if (next < others.length) return true;
        [...best].reverse().forEach((each) => strokeOne(pen, area, y, each, color(best.indexOf(each), pen.isDark), 2, dash(best.indexOf(each))));
        return false;
      };
      return more() ? more : undefined;
    },
    [curves, best, x, y],
  );
  const find = useMemo(
    () => (/** @type {number} */ px, /** @type {number} */ py, /** @type {Area} */ area) => {
      const at = valueAt(x, (px - area.left) / area.width);
      /** @type {TrialCurve | null} */
      let near = null;
      let distance = REACH_PX;
      for (const each of curves) {
        const height = heightAt(each, at, area.y, area.x);
        if (height !== null && Math.abs(height - py) < distance) [near, distance] = [each, Math.abs(height - py)];
      }
      if (!near) return null;
      const found = near;
      const last = found.y[found.y.length - 1];
      return {
        text: `trial ${found.trial}: last ${key(last)} at ${number(found.x[found.x.length - 1])} ${unit}, best ${number(bestValue(found, isSmallerBetter))}`,
        draw: (/** @type {Pen} */ pen) => strokeOne(pen, area, y, found, pen.ink.mark, 3, []),
      };
    },
    [curves, x, y],
  );
  const without = numTrials - curves.length;
  const points = curves.reduce((sum, each) => sum + each.x.length, 0);
  const sentence = `${metric} of ${plural(curves.length, "trial")} by ${unit}, ${plural(points, "result")}.${best.length ? ` Best: ${best.slice(0, 3).map((each) => `trial ${each.trial} with ${number(bestValue(each, isSmallerBetter))}`).join(", ")}.` : ""}`;
  const note = `${plural(curves.length, "trial")}, ${plural(points, "result")}${without > 0 ? `; ${without} without a result` : ""}`;
  return html`<div class="chart-with-key">
    <${Chart} title=${`Learning curves: ${metric}`} x=${x} y=${y} height=${340} draw=${draw} find=${find} sentence=${sentence} note=${note}
      table=${() => html`<${Rows} head=${["Trial", "Results", "Best", "Last", `Last ${unit}`]} rows=${curves.map((each) => [each.trial, each.x.length, number(bestValue(each, isSmallerBetter)), key(each.y[each.y.length - 1]), each.x[each.x.length - 1] ?? 0])} />`}>
      <button class="small" aria-pressed=${isLogX} onClick=${() => setLogX(!isLogX)}>log x</button>
      <button class="small" aria-pressed=${isLogY} onClick=${() => setLogY(!isLogY)}>log y</button>
    <//>
    ${best.length > 0 && html`<${Key} best=${best} isSmallerBetter=${isSmallerBetter} trialHref=${trialHref} />`}
  </div>`;
}

/** @param {{best: TrialCurve[], isSmallerBetter: boolean, trialHref: (trial: number) => string | undefined}} props */
function Key({ best, isSmallerBetter, trialHref }) {
  return html`<ul class="key" aria-label="The best trials">${best.map(
    (each, i) => html`<li key=${each.trial}><${Stroke} index=${i} /><a href=${trialHref(each.trial)}>trial ${each.trial}</a> ${number(bestValue(each, isSmallerBetter))}</li>`,
  )}</ul>`;
}

/** @param {{index: number}} props */
function Stroke({ index }) {
  return html`<svg width="28" height="8" aria-hidden="true"><line x1="0" x2="28" y1="4" y2="4" stroke=${color(index, isDark.value)} stroke-width="3" stroke-dasharray=${dash(index).join(" ")} /></svg>`;
}

/** @param {Pen} pen @param {Area} area @param {import("./scale.js").Scale} y @param {TrialCurve[]} curves */
function strokeAll({ ctx, ink }, area, y, curves) {
  ctx.strokeStyle = ink.text;
  ctx.globalAlpha = 0.3;
  ctx.lineWidth = 1;
  ctx.setLineDash([]);
  ctx.beginPath();
  for (const each of curves) trace(ctx, area, y, each);
  ctx.stroke();
  ctx.globalAlpha = 1;
}

/** @param {Pen} pen @param {Area} area @param {import("./scale.js").Scale} y @param {TrialCurve} curve @param {string} ink @param {number} width @param {number[]} dashes */
function strokeOne({ ctx }, area, y, curve, ink, width, dashes) {
  ctx.strokeStyle = ink;
  ctx.lineWidth = width;
  ctx.setLineDash(dashes);
  ctx.beginPath();
  trace(ctx, area, y, curve);
  ctx.stroke();
  ctx.setLineDash([]);
}

/** A line from number to number. What is no number is a cross at its place below, and the line has a gap there; a single number is a dot.
 * @param {CanvasRenderingContext2D} ctx @param {Area} area @param {import("./scale.js").Scale} scale @param {TrialCurve} curve */
function trace(ctx, area, scale, { x, y }) {
  let isOpen = false;
  for (let i = 0; i < x.length; i++) {
    const [px, py] = [area.x(x[i]), area.y(y[i])];
    if (!isOn(scale.kind, y[i])) {
      ctx.moveTo(px - 3, py - 3);
      ctx.lineTo(px + 3, py + 3);
      ctx.moveTo(px + 3, py - 3);
      ctx.lineTo(px - 3, py + 3);
      isOpen = false;
    } else if (isOpen) ctx.lineTo(px, py);
    else {
      ctx.moveTo(px, py);
      isOpen = true;
      if (!isOn(scale.kind, y[i + 1])) {
        ctx.moveTo(px + 2, py);
        ctx.arc(px, py, 2, 0, 7);
      }
    }
  }
}
