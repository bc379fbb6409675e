// The mean of the metric over two hyperparameters.

import { useMemo } from "preact/hooks";
import { binned } from "./bins.js";
import { Chart, Rows } from "./chart.js";
import { number, plural } from "./format.js";
import { html } from "./html.js";
import { ramp } from "./palette.js";

/** @typedef {import("./trial_rows.js").Axis} Axis */
/** @typedef {import("./trial_rows.js").Row} Row */
/** @typedef {import("./bins.js").Cell} Cell */
/** @typedef {import("./chart.js").Area} Area */

/** @param {{rows: Row[], x: Axis, y: Axis, metric: Axis, isSmallerBetter: boolean}} props */
export function HeatMap({ rows, x, y, metric, isSmallerBetter }) {
  const { across, up, cells } = useMemo(() => binned(rows, x, y, metric.of), [rows, x, y, metric]);
  const means = cells.flatMap(({ mean }) => (mean === null ? [] : [mean])).sort((a, b) => a - b);
  const [low, high] = [means[0], means[means.length - 1]];
  const draw = useMemo(
    () => (/** @type {import("./canvas.js").Pen} */ { ctx, isDark, ink }, /** @type {Area} */ area) => {
      for (const cell of cells) {
        const { left, top, width, height } = place(cell, area);
        ctx.globalAlpha = 1;
        if (cell.mean === null) {
          ctx.strokeStyle = ink.mark;
          ctx.lineWidth = 1;
          ctx.strokeRect(left + 1.5, top + 1.5, width - 3, height - 3);
          ctx.fillStyle = ink.mark;
          ctx.textAlign = "center";
          ctx.textBaseline = "middle";
          ctx.fillText("×", left + width / 2, top + height / 2);
          continue;
        }
        const part = high > low ? (cell.mean - low) / (high - low) : 1;
        ctx.fillStyle = ramp(high > low && isSmallerBetter ? 1 - part : part, isDark);
        ctx.fillRect(left + 0.5, top + 0.5, width - 1, height - 1);
      }
    },
    [cells, isSmallerBetter],
  );
  /** @param {Cell} cell @param {Area} area */
  const place = (cell, area) => {
    const [a, b] = [across[cell.x], up[cell.y]];
    return { left: area.left + a.from * area.width, top: area.top + (1 - b.to) * area.height, width: (a.to - a.from) * area.width, height: (b.to - b.from) * area.height };
  };
  const text = (/** @type {Cell} */ cell) => `${x.scale.name} ${across[cell.x].text}, ${y.scale.name} ${up[cell.y].text}: mean ${cell.mean === null ? "no number" : number(cell.mean)} of ${plural(cell.count, "trial")}${cell.numbers < cell.count ? `, ${cell.count - cell.numbers} without a number` : ""}`;
  const find = useMemo(
    () => (/** @type {number} */ px, /** @type {number} */ py, /** @type {Area} */ area) => {
      const cell = cells.find((each) => {
        const { left, top, width, height } = place(each, area);
        return px >= left && px < left + width && py >= top && py < top + height;
      });
      if (!cell) return null;
      return {
        text: text(cell),
        draw: (/** @type {import("./canvas.js").Pen} */ { ctx, ink }) => {
          const { left, top, width, height } = place(cell, area);
          ctx.strokeStyle = ink.mark;
          ctx.lineWidth = 2;
          ctx.strokeRect(left, top, width, height);
        },
      };
    },
    [cells],
  );
  const best = cells.reduce((/** @type {Cell | null} */ known, each) => (each.mean !== null && (known?.mean == null || (isSmallerBetter ? each.mean < known.mean : each.mean > known.mean)) ? each : known), null);
  const note = means.length ? `means from ${number(low)} to ${number(high)} of ${plural(rows.length, "trial")}` : `no numbers yet of ${plural(rows.length, "trial")}`;
  return html`<${Chart} title=${`${metric.scale.name} by ${x.scale.name} and ${y.scale.name}`} x=${x.scale} y=${y.scale} draw=${draw} find=${find} note=${note}
    sentence=${`Mean ${metric.scale.name} of ${plural(rows.length, "trial")} by ${x.scale.name} across and ${y.scale.name} up.${best ? ` Best where ${text(best)}.` : ""}`}
    table=${() => html`<${Rows} head=${[x.scale.name, y.scale.name, "Trials", `Mean ${metric.scale.name}`]} rows=${[...cells].sort((a, b) => a.x - b.x || a.y - b.y).map((each) => [across[each.x].text, up[each.y].text, each.count, each.mean ?? "no number"])} />`} />`;
}
