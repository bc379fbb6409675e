// A drawing: what has been drawn stays, and a second layer above it, for what is pointed at, is drawn again and again.

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { html } from "./html.js";
import { inks } from "./palette.js";
import { isDark } from "./theme.js";

/** @typedef {{ctx: CanvasRenderingContext2D, width: number, height: number, isDark: boolean, ink: {text: string, grid: string, mark: string, good: string, ground: string}}} Pen */
/** @typedef {{x: number, y: number, isDown: boolean}} At */
/**
 * @typedef {object} Props
 * @property {(pen: Pen) => void | (() => boolean)} draw a new function for a new drawing. What it returns draws on, a frame later, as long as that returns true
 * @property {(pen: Pen) => void} [above] the second layer
 * @property {(at: At | null, what: "move" | "down" | "up" | "leave") => void} [onPoint]
 * @property {number} height
 * @property {number} [least] width
 * @property {string} label for those who cannot see it
 */

export const FONT = "12px system-ui, sans-serif";

/** @param {Props} props */
export function Canvas({ draw, above, onPoint, height, least = 0, label }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [low, high] = [useRef(/** @type {HTMLCanvasElement | null} */ (null)), useRef(/** @type {HTMLCanvasElement | null} */ (null))];
  const [width, setWidth] = useState(0);
  const dark = isDark.value;

  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const look = () => setWidth(Math.max(least, Math.floor(element.clientWidth)));
    look();
    const observer = new ResizeObserver(look);
    observer.observe(element);
    return () => observer.disconnect();
  }, [least]);
  useLayoutEffect(() => paint(low.current, width, height, dark, draw), [draw, width, height, dark]);
  useLayoutEffect(() => paint(high.current, width, height, dark, above), [above, draw, width, height, dark]);

  const tell = (/** @type {"move" | "down" | "up" | "leave"} */ what) => (/** @type {PointerEvent} */ event) => {
    const element = /** @type {HTMLElement} */ (event.currentTarget);
    if (what === "down" && event.pointerType === "mouse") element.setPointerCapture(event.pointerId);
    const { left, top } = element.getBoundingClientRect();
    onPoint?.(what === "leave" ? null : { x: event.clientX - left, y: event.clientY - top, isDown: event.buttons === 1 }, what);
  };
  return html`<div class="drawing" ref=${box} style=${{ height: `${height}px` }}>
    <canvas ref=${low} role="img" aria-label=${label} style=${{ width: `${width}px`, height: `${height}px` }}></canvas>
    <canvas ref=${high} aria-hidden="true" style=${{ width: `${width}px`, height: `${height}px` }}
      onPointerMove=${onPoint && tell("move")} onPointerDown=${onPoint && tell("down")} onPointerUp=${onPoint && tell("up")} onPointerLeave=${onPoint && tell("leave")}></canvas>
  </div>`;
}

/** @param {HTMLCanvasElement | null} canvas @param {number} width @param {number} height @param {boolean} dark @param {((pen: Pen) => void | (() => boolean)) | undefined} draw
 * @returns {(() => void) | undefined} ends it, if it takes more frames */
function paint(canvas, width, height, dark, draw) {
  const ctx = canvas?.getContext("2d");
  if (!canvas || !ctx || !width) return undefined;
  delete canvas.dataset.drawn;
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  ctx.scale(ratio, ratio);
  ctx.font = FONT;
  ctx.lineJoin = "round";
  const more = draw?.({ ctx, width, height, isDark: dark, ink: inks(dark) });
  const end = () => {
    canvas.dataset.drawn = "all";
    return undefined;
  };
  if (!more) return end();
  let frame = 0;
  const go = () => (more() ? void (frame = requestAnimationFrame(go)) : end());
  frame = requestAnimationFrame(go);
  return () => cancelAnimationFrame(frame);
}

/** A text that fits, with an ellipsis if it must be cut.
 * @param {CanvasRenderingContext2D} ctx @param {string} text @param {number} most pixels */
export function fitted(ctx, text, most) {
  if (ctx.measureText(text).width <= most) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (ctx.measureText(`${text.slice(0, middle)}…`).width <= most) low = middle;
    else high = middle - 1;
  }
  return low ? `${text.slice(0, low)}…` : "";
}
