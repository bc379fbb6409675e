// A chart with two axes of any kind, as a card: a title, what is pointed at, the drawing or a table, and a sentence.

import { useMemo, useRef, useState } from "preact/hooks";
import { Canvas, fitted } from "./canvas.js";
import { number } from "./format.js";
import { html } from "./html.js";
import { position, scaleTicks } from "./scale.js";

/** @typedef {import("./scale.js").Scale} Scale */
/** @typedef {import("./canvas.js").Pen} Pen */
/** @typedef {{left: number, top: number, width: number, height: number, x: (value: unknown) => number, y: (value: unknown) => number}} Area */

const LEFT = 68;
const BOTTOM = 40;
const TOP = 10;
const RIGHT = 14;

/** @param {Pen} pen @param {Scale} x @param {Scale} y @returns {Area} */
export function areaOf(pen, x, y) {
  const [left, top] = [LEFT, TOP];
  const [width, height] = [Math.max(1, pen.width - LEFT - RIGHT), Math.max(1, pen.height - TOP - BOTTOM)];
  return { left, top, width, height, x: (value) => left + position(x, value) * width, y: (value) => top + height - position(y, value) * height };
}

/** The grid and the words of both axes.
 * @param {Pen} pen @param {Area} area @param {Scale} x @param {Scale} y */
export function drawAxes({ ctx, ink }, area, x, y) {
  const { left, top, width, height } = area;
  const across = scaleTicks(x, width / 72);
  const room = (width / Math.max(1, across.length)) * 0.95;
  ctx.strokeStyle = ink.grid;
  ctx.fillStyle = ink.text;
  ctx.lineWidth = 1;
  ctx.beginPath();
  ctx.textAlign = "center";
  ctx.textBaseline = "top";
  let end = -Infinity;
  for (const { at, text } of across) {
    const place = left + at * width;
    ctx.moveTo(place, top);
    ctx.lineTo(place, top + height);
    const words = fitted(ctx, text, Math.max(room, 24));
    const half = ctx.measureText(words).width / 2;
    const middle = Math.min(place, left + width + RIGHT - half);
    if (middle - half < end) continue; // never one over another
    ctx.fillText(words, middle, top + height + 5);
    end = middle + half + 4;
  }
  ctx.textAlign = "right";
  ctx.textBaseline = "middle";
  for (const { at, text } of scaleTicks(y, height / 30)) {
    const place = top + height - at * height;
    ctx.moveTo(left, place);
    ctx.lineTo(left + width, place);
    ctx.fillText(fitted(ctx, text, LEFT - 8), left - 6, place);
  }
  ctx.stroke();
  ctx.textAlign = "right";
  ctx.textBaseline = "bottom";
  ctx.fillText(fitted(ctx, x.name, width), left + width, top + height + BOTTOM - 2);
}

/** Whether it is near the window, so that it should be drawn; once it was, it stays. @returns {[any, boolean]} */
export function useNear() {
  const [isNear, setNear] = useState(false);
  const observer = useRef(/** @type {IntersectionObserver | null} */ (null));
  const ref = useMemo(
    () => (/** @type {HTMLElement | null} */ element) => {
      observer.current?.disconnect();
      if (!element) return;
      observer.current = new IntersectionObserver(([entry]) => entry.isIntersecting && setNear(true), { rootMargin: "300px" });
      observer.current.observe(element);
    },
    [],
  );
  return [ref, isNear];
}

/**
 * @param {object} props
 * @param {string} props.title
 * @param {string} props.sentence
 * @param {string} props.note at the foot: how much of what there is is drawn
 * @param {Scale} props.x
 * @param {Scale} props.y
 * @param {number} [props.height]
 * @param {(pen: Pen, area: Area) => void} props.draw
 * @param {(x: number, y: number, area: Area) => {text: string, draw: (pen: Pen, area: Area) => void} | null} [props.find] what is there
 * @param {() => any} props.table its rows, with a head
 * @param {any} [props.children] controls
 */
export function Chart({ title, sentence, note, x, y, height = 260, draw, find, table, children }) {
  const [box, isNear] = useNear();
  const [found, setFound] = useState(/** @type {ReturnType<NonNullable<typeof find>>} */ (null));
  const area = useRef(/** @type {Area | null} */ (null));
  const drawAll = useMemo(
    () => (/** @type {Pen} */ pen) => {
      area.current = areaOf(pen, x, y);
      drawAxes(pen, area.current, x, y);
      draw(pen, area.current);
    },
    [draw, x, y],
  );
  const above = useMemo(() => (found ? (/** @type {Pen} */ pen) => area.current && found.draw(pen, area.current) : undefined), [found]);
  const onPoint = (/** @type {import("./canvas.js").At | null} */ at) => setFound((at && area.current && find?.(at.x, at.y, area.current)) || null);
  return html`<${Card} title=${title} value=${found?.text ?? ""} sentence=${sentence} note=${note} table=${table} boxRef=${box} controls=${children}>
    ${isNear ? html`<${Canvas} draw=${drawAll} above=${above} onPoint=${find && onPoint} height=${height} label=${sentence} />` : html`<div style=${{ height: `${height}px` }}></div>`}
  <//>`;
}

/** @param {{title: string, value?: string, sentence: string, note: string, table: () => any, boxRef?: any, controls?: any, children?: any}} props */
export function Card({ title, value = "", sentence, note, table, boxRef, controls, children }) {
  const [isTable, setTable] = useState(false);
  return html`<figure class="card plot chart" ref=${boxRef}>
    <header><h3 title=${title}>${title}</h3><span class="quiet small told" title=${value}>${value}</span>${controls}</header>
    ${isTable ? html`<div class="scroll" tabindex="0" role="region" aria-label=${`${title} as a table`}>${table()}</div>` : children}
    <footer><span>${note}</span><figcaption class="unseen">${sentence}</figcaption>
      <button class="plain" aria-pressed=${isTable} onClick=${() => setTable(!isTable)}>Table<span class="unseen"> of ${title}</span></button></footer>
  </figure>`;
}

const MOST_ROWS = 500;

/** A table's rows, and a last one that says so if there are more.
 * @param {{head: string[], rows: (string | number)[][]}} props */
export function Rows({ head, rows }) {
  const shown = rows.slice(0, MOST_ROWS);
  return html`<table class="tight"><thead><tr>${head.map((each, i) => html`<th key=${i} class=${typeof rows[0]?.[i] === "number" ? "number" : ""}>${each}</th>`)}</tr></thead>
    <tbody>${shown.map((row, i) => html`<tr key=${i}>${row.map((each, j) => html`<td key=${j} class=${typeof each === "number" ? "number" : ""}>${typeof each === "number" ? number(each) : each}</td>`)}</tr>`)}
      ${rows.length > MOST_ROWS && html`<tr><td colspan=${head.length}>${rows.length - MOST_ROWS} more: see the table of trials.</td></tr>`}</tbody></table>`;
}
