// A search that waits until the reader pauses.

import { useEffect, useRef, useState } from "preact/hooks";
import { html } from "./html.js";

const SETTLE_MS = 120;

/** @param {{value: string, placeholder: string, label: string, onChange: (text: string) => void}} props */
export function Search({ value, placeholder, label, onChange }) {
  const [typed, setTyped] = useState(value);
  const timer = useRef(/** @type {any} */ (null));
  useEffect(() => setTyped(value), [value]);
  return html`<input type="search" class="grow" placeholder=${placeholder} aria-label=${label} value=${typed}
    onInput=${(/** @type {any} */ event) => {
      const text = event.target.value;
      setTyped(text);
      clearTimeout(timer.current);
      timer.current = setTimeout(() => onChange(text), SETTLE_MS);
    }} />`;
}
