// A table of any length: only the rows near the window are in the document. Rows come in pages from the coordinator.

import { useEffect, useRef, useState } from "preact/hooks";
import { html } from "./html.js";

const OVERSCAN = 8;

/**
 * @param {object} props
 * @param {number} props.total
 * @param {number} props.height of a row, in pixels
 * @param {any} props.head
 * @param {number} props.columns
 * @param {string} props.label
 * @param {(index: number) => any} props.row
 * @param {(first: number, last: number) => void} props.onNeed these are about to be seen
 */
export function VirtualTable({ total, height, head, columns, label, row, onNeed }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [seen, setSeen] = useState(() => [0, Math.ceil(innerHeight / height)]); // more when these are drawn
  useEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const look = () => {
      const top = Math.max(0, -element.getBoundingClientRect().top); // the page scrolls, not the table
      const first = Math.max(0, Math.floor(top / height) - OVERSCAN);
      const last = Math.ceil((top + innerHeight) / height) + OVERSCAN;
      setSeen((old) => (old[0] === first && old[1] === last ? old : [first, last]));
    };
    look();
    addEventListener("scroll", look, { passive: true });
    addEventListener("resize", look);
    return () => {
      removeEventListener("scroll", look);
      removeEventListener("resize", look);
    };
  }, [height]);
  const [first, last] = [Math.min(seen[0], Math.max(0, total - 1)), Math.min(seen[1], total)];
  useEffect(() => onNeed(first, last), [first, last, onNeed]);
  const rows = [];
  for (let i = first; i < last; i++) rows.push(row(i));
  return html`<div class="scroll long" ref=${box} tabindex="0" role="region" aria-label=${label}>
    <table aria-rowcount=${total + 1}>
      <thead>${head}</thead>
      <tbody>
        ${first > 0 && html`<tr aria-hidden="true"><td colspan=${columns} style=${{ height: `${first * height}px`, padding: 0 }}></td></tr>`}
        ${rows}
        ${last < total && html`<tr aria-hidden="true"><td colspan=${columns} style=${{ height: `${(total - last) * height}px`, padding: 0 }}></td></tr>`}
      </tbody>
    </table>
  </div>`;
}
