// A dot for each trial: a hyperparameter across, the metric up.

import { useMemo } from "preact/hooks";
import { Chart, Rows } from "./chart.js";
import { plural } from "./format.js";
import { html } from "./html.js";
import { ramp } from "./palette.js";
import { isOn, valueText } from "./scale.js";
import { shares } from "./trial_rows.js";

/** @typedef {import("./trial_rows.js").Axis} Axis */
/** @typedef {import("./trial_rows.js").Row} Row */

const REACH_PX = 14;
const RADIUS = 3.5;

/** @param {{rows: Row[], x: Axis, y: Axis, isSmallerBetter: boolean}} props */
export function Scatter({ rows, x, y, isSmallerBetter }) {
  const share = useMemo(() => shares(rows, y.of, isSmallerBetter), [rows, y, isSmallerBetter]);
  const draw = useMemo(
    () => (/** @type {import("./canvas.js").Pen} */ pen, /** @type {import("./chart.js").Area} */ area) => {
      const order = rows.map((_, i) => i).sort((a, b) => (share[a] ?? -1) - (share[b] ?? -1));
      for (const i of order) dot(pen, area.x(x.of(rows[i])), area.y(y.of(rows[i])), share[i]);
    },
    [rows, x, y, share],
  );
  const find = useMemo(
    () => (/** @type {number} */ px, /** @type {number} */ py, /** @type {import("./chart.js").Area} */ area) => {
      let [best, distance] = [-1, REACH_PX ** 2];
      rows.forEach((row, i) => {
        const away = (area.x(x.of(row)) - px) ** 2 + (area.y(y.of(row)) - py) ** 2;
        if (away < distance) [best, distance] = [i, away];
      });
      if (best < 0) return null;
      const row = rows[best];
      return {
        text: `trial ${row.trial}: ${valueText(x.of(row))}, ${valueText(y.of(row))}`,
        draw: (/** @type {import("./canvas.js").Pen} */ { ctx, ink }) => {
          ctx.strokeStyle = ink.mark;
          ctx.lineWidth = 2.5;
          ctx.beginPath();
          ctx.arc(area.x(x.of(row)), area.y(y.of(row)), RADIUS + 3, 0, 7);
          ctx.stroke();
        },
      };
    },
    [rows, x, y],
  );
  const numbers = rows.filter((row) => isOn("real", y.of(row))).length;
  const note = numbers === rows.length ? plural(rows.length, "trial") : `${plural(rows.length, "trial")}, ${rows.length - numbers} at the low edge without a number`;
  return html`<${Chart} title=${`${y.scale.name} by ${x.scale.name}`} x=${x.scale} y=${y.scale} draw=${draw} find=${find} note=${note}
    sentence=${`${y.scale.name} of ${plural(rows.length, "trial")} by ${x.scale.name}, ${told(x.scale)}.`}
    table=${() => html`<${Rows} head=${["Trial", x.scale.name, y.scale.name]} rows=${rows.map((row) => [row.trial, valueText(x.of(row)), valueText(y.of(row))])} />`} />`;
}

/** @param {import("./scale.js").Scale} scale */
function told({ kind, low, high, choices }) {
  if (kind === "choice") return choices.join(", ");
  return `${kind === "log" ? "log axis " : ""}from ${valueText(low)} to ${valueText(high)}`;
}

/** One without a number is a ring.
 * @param {import("./canvas.js").Pen} pen @param {number} x @param {number} y @param {number | null} share */
export function dot({ ctx, isDark, ink }, x, y, share) {
  ctx.beginPath();
  ctx.arc(x, y, RADIUS, 0, 7);
  if (share === null) {
    ctx.strokeStyle = ink.mark;
    ctx.lineWidth = 1.5;
    return ctx.stroke();
  }
  ctx.fillStyle = ramp(share, isDark);
  ctx.fill();
  ctx.strokeStyle = ink.ground;
  ctx.lineWidth = 0.75;
  ctx.stroke();
}
