// The best result so far, over time or over what it has cost.

import { useMemo } from "preact/hooks";
import { Chart, Rows } from "./chart.js";
import { number, plural } from "./format.js";
import { html } from "./html.js";
import { color } from "./palette.js";
import { scaleOf } from "./scale.js";
import { bestSoFar } from "./trial_curves.js";

/** @typedef {import("./canvas.js").Pen} Pen */
/** @typedef {import("./chart.js").Area} Area */

const UNITS = /** @type {[number, string][]} */ ([[3600, "hours"], [60, "minutes"], [1, "seconds"]]);

/** @param {{results: {x: number, value: unknown, trial: number}[], end: number, metric: string, what: string, isSmallerBetter: boolean}} props
 * results: by their seconds; what: "time since the start", … */
export function BestChart({ results, end, metric, what, isSmallerBetter }) {
  const best = useMemo(() => bestSoFar(results, isSmallerBetter, end), [results, isSmallerBetter, end]);
  const [size, unit] = UNITS.find(([seconds]) => end >= 2 * seconds) ?? [1, "seconds"];
  const name = what === "slots" ? `slot-${unit}` : unit;
  const [x, y] = useMemo(() => [scaleOf({ name, kind: "real", low: 0, high: end / size }, [end / size]), scaleOf({ name: metric, kind: "real" }, best.y)], [name, end, size, best, metric]);
  const draw = useMemo(
    () => (/** @type {Pen} */ { ctx, isDark }, /** @type {Area} */ area) => {
      ctx.strokeStyle = ctx.fillStyle = color(0, isDark);
      ctx.lineWidth = 2;
      ctx.beginPath();
      best.x.forEach((each, i) => {
        const [px, py] = [area.x(each / size), area.y(best.y[i])];
        if (i) {
          ctx.lineTo(px, area.y(best.y[i - 1])); // it holds until a better one comes
          ctx.lineTo(px, py);
        } else ctx.moveTo(px, py);
      });
      ctx.stroke();
      best.x.forEach((each, i) => {
        if (i && best.y[i] === best.y[i - 1]) return;
        ctx.beginPath();
        ctx.arc(area.x(each / size), area.y(best.y[i]), 3, 0, 7);
        ctx.fill();
      });
    },
    [best, size],
  );
  const find = useMemo(
    () => (/** @type {number} */ px, /** @type {number} */ _, /** @type {Area} */ area) => {
      let at = -1;
      best.x.forEach((each, i) => (at = area.x(each / size) <= px ? i : at));
      if (at < 0) return null;
      return {
        text: `${number(best.y[at])} by trial ${best.trials[at]}, from ${number(best.x[at] / size)} ${name}`,
        draw: (/** @type {Pen} */ { ctx, ink }) => {
          ctx.strokeStyle = ink.mark;
          ctx.lineWidth = 2;
          ctx.beginPath();
          ctx.arc(area.x(best.x[at] / size), area.y(best.y[at]), 6, 0, 7);
          ctx.stroke();
        },
      };
    },
    [best, size, name],
  );
  const last = best.y.length - 1;
  const sentence = last < 0 ? `Best ${metric}: no number yet.` : `Best ${metric} over ${name}: ${number(best.y[last])} by trial ${best.trials[last]}, first ${number(best.y[0])} by trial ${best.trials[0]}.`;
  return html`<${Chart} title=${`Best ${metric} over ${what === "slots" ? "slot-hours" : "time"}`} x=${x} y=${y} draw=${draw} find=${find} sentence=${sentence} note=${plural(results.length, "result")}
    table=${() => html`<${Rows} head=${[name, `best ${metric}`, "trial"]} rows=${best.x.map((each, i) => [each / size, best.y[i], best.trials[i]])} />`} />`;
}
