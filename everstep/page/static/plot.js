// One plot on a canvas: lines on a shared x axis. Drawn by uPlot; new data change the lines and nothing else. The range
// of x belongs to the view, so that all plots and the band of workers show the same stretch.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { align, smooth } from "./curve.js";
import { html } from "./html.js";
import { color, dash, inks } from "./palette.js";
import { isDark } from "./theme.js";
import { logTicks, ticks, xTexts, yTexts } from "./ticks.js";

/** @typedef {{label: string, curve: import("./curve.js").Curve, index: number, isBold?: boolean}} Line */
/**
 * @typedef {object} Props
 * @property {Line[]} lines
 * @property {import("./curve.js").Axis} axis
 * @property {[number, number] | null} range zoomed into, or all
 * @property {[number, number] | null} extent of all plots of the view
 * @property {(range: [number, number] | null) => void} onRange
 * @property {(index: number | null, x: number, ys: (number | null | undefined)[]) => void} [onCursor]
 * @property {number} [smoothing]
 * @property {boolean} [isLogX]
 * @property {boolean} [isLogY]
 * @property {string} [group] whose cursors move together
 * @property {string} label for those who cannot see it
 */

const RETRY_MS = 2000;
const ROUNDING = 1e-12; // values that differ by less, in parts of them, are the same

/** @type {Promise<any> | null} */
let loading = null;
/** @type {any} */
let loaded = null;

/** The plotting script, when a view with plots is opened; it is built as a file of its own. A browser never tries a
 * failed import again, unless it has another address.
 * @param {number} attempt @returns {Promise<any>} */
export function loadPlots(attempt = 0) {
  const address = attempt ? `./uplot.js?${attempt}` : "./uplot.js"; // a variable: not for the bundler to follow
  loading ??= import(address).then(
    (module) => (loaded = module.default),
    () => {
      loading = null;
      return new Promise((resolve) => setTimeout(resolve, RETRY_MS)).then(() => loadPlots(attempt + 1));
    },
  );
  return loading;
}

/** @param {Props} props */
export function Plot(props) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const latest = useRef(props);
  latest.current = props;
  const [uPlot, setPlots] = useState(() => loaded);
  const dark = isDark.value;
  const smoothing = props.smoothing ?? 0;
  const form = [dark, props.axis, props.isLogX, props.isLogY, smoothing > 0, props.lines.map((each) => `${each.index}${each.isBold ?? ""}`).join()].join();

  useEffect(() => {
    if (!uPlot) loadPlots().then((made) => setPlots(() => made));
  }, []);

  useLayoutEffect(() => {
    plot.current?.setData(data(latest.current), true);
  }, [props.lines, smoothing, props.range?.[0], props.range?.[1], props.extent?.[0], props.extent?.[1]]);

  useLayoutEffect(() => {
    const element = box.current;
    if (!uPlot || !element) return undefined;
    const made = new uPlot(options(uPlot, latest, dark, element), data(latest.current), element);
    plot.current = made;
    const observer = new ResizeObserver(() => {
      if (element.clientWidth && element.clientWidth !== made.width) made.setSize({ width: element.clientWidth, height: element.clientHeight });
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [uPlot, form]);

  return html`<div class="canvas" ref=${box} role="img" aria-label=${props.label}></div>`;
}

/** @param {Props} props */
function data({ lines, smoothing = 0 }) {
  const { x, ys } = align(lines.map((line) => line.curve));
  return [x, ...ys.flatMap((y) => (smoothing ? [y, smooth(/** @type {any} */ (y), smoothing)] : [y]))];
}

/** @param {any} uPlot @param {{current: Props}} latest @param {boolean} dark @param {HTMLElement} element */
function options(uPlot, latest, dark, element) {
  const props = latest.current;
  const ink = inks(dark);
  const smoothing = props.smoothing ?? 0;
  const axis = { stroke: ink.text, grid: { stroke: ink.grid, width: 1 }, ticks: { stroke: ink.grid, size: 4 }, font: "12px system-ui, sans-serif", filter: (/** @type {any} */ _, /** @type {number[]} */ splits) => splits };
  const series = props.lines.flatMap(({ index, isBold }) => {
    const line = { stroke: color(index, dark), width: isBold ? 3 : 1.5, dash: props.lines.length > 1 ? dash(index) : [], points: { size: 5 } };
    if (!smoothing) return [line];
    return [{ ...line, stroke: `${color(index, dark)}55`, width: 1, dash: [], points: { show: false } }, { ...line, width: isBold ? 4 : 2 }];
  });
  return {
    width: element.clientWidth || 400,
    height: element.clientHeight || 200,
    legend: { show: false },
    padding: [8, props.axis === "time" ? 28 : 18, 0, 0], // half of the last label
    cursor: {
      y: false,
      drag: { x: true, y: false, setScale: false, dist: 4 },
      points: { size: 6 },
      ...(props.group && { sync: { key: props.group, setSeries: false } }),
    },
    select: { show: true },
    scales: {
      x: { time: false, distr: props.isLogX ? 3 : 1, range: (/** @type {any} */ u, /** @type {number} */ min, /** @type {number} */ max) => xRange(latest.current, min, max) },
      y: { distr: props.isLogY ? 3 : 1, range: props.isLogY ? logRange : yRange },
    },
    axes: [
      {
        ...axis,
        size: 32,
        splits: (/** @type {any} */ u, /** @type {number} */ _, /** @type {number} */ min, /** @type {number} */ max) => (props.isLogX ? logTicks(min, max) : ticks(min, max, u.bbox.width / (devicePixelRatio || 1) / 72, props.axis)),
        values: (/** @type {any} */ u, /** @type {number[]} */ splits) => xTexts(splits, props.axis, u.scales.x.max - u.scales.x.min),
      },
      {
        ...axis,
        size: 56,
        splits: (/** @type {any} */ u, /** @type {number} */ _, /** @type {number} */ min, /** @type {number} */ max) => (props.isLogY ? logTicks(min, max) : ticks(min, max, u.bbox.height / (devicePixelRatio || 1) / 26)),
        values: (/** @type {any} */ u, /** @type {number[]} */ splits) => yTexts(splits),
      },
    ],
    series: [{}, ...series],
    hooks: {
      setSelect: [
        (/** @type {any} */ u) => {
          if (u.select.width < 4) return;
          const [from, to] = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
          u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          latest.current.onRange([from, to]);
        },
      ],
      ready: [(/** @type {any} */ u) => u.over.addEventListener("dblclick", () => latest.current.onRange(null))],
      setCursor: [
        (/** @type {any} */ u) => {
          const { idx } = u.cursor;
          latest.current.onCursor?.(idx ?? null, u.data[0][idx], u.data.slice(1).map((/** @type {any[]} */ y) => y[idx]));
        },
      ],
      draw: [(/** @type {any} */ u) => drawOdd(u, latest.current, ink.mark)],
    },
  };
}

/** @param {Props} props @param {number} min @param {number} max @returns {[number, number]} */
function xRange({ range, extent, isLogX }, min, max) {
  let [from, to] = range ?? extent ?? [min ?? 0, max ?? 1];
  if (isLogX) from = Math.max(from, 1e-9, range ? 0 : Math.min(1, to / 10));
  return from < to ? [from, to] : [from - 0.5, from + 0.5];
}

/** @param {any} u @param {number | null} min @param {number | null} max @returns {[number, number]} */
function logRange(u, min, max) {
  if (min === null || max === null || max <= 0) return [0.1, 1];
  return [Math.max(min, max * 1e-12) / 1.15, max * 1.15];
}

/** A little room above and below; a flat line in the middle.
 * @param {any} u @param {number | null} min @param {number | null} max @returns {[number, number]} */
export function yRange(u, min, max) {
  if (min === null || max === null) return [0, 1];
  const isFlat = max - min <= Math.max(Math.abs(min), Math.abs(max)) * ROUNDING;
  const room = (!isFlat && (max - min) * 0.06) || Math.abs(max) * 0.1 || 1;
  return [min >= 0 && min - room < 0 ? 0 : min - room, max + room];
}

/** NaN and infinities are gaps of the line; a letter at the edge says where they are, so that none is hidden.
 * @param {any} u @param {Props} props @param {string} ink */
function drawOdd(u, { lines }, ink) {
  const { ctx } = u;
  const { left, top, width, height } = u.bbox;
  const ratio = devicePixelRatio || 1;
  ctx.save();
  ctx.fillStyle = ink;
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  ctx.textAlign = "center";
  let last = -Infinity;
  for (const { curve } of lines) {
    for (const { x, what } of curve.odd) {
      const at = u.valToPos(x, "x", true);
      if (at < left || at > left + width || at - last < 4 * ratio) continue;
      last = at;
      ctx.fillText({ nan: "×", inf: "∞", "-inf": "−∞" }[what] ?? "?", at, what === "inf" ? top + 10 * ratio : top + height - 4 * ratio);
    }
  }
  ctx.restore();
}
