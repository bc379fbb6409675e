// A series as a card: its plot, its last value, a sentence, and a table for those who want the numbers.

import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { curve } from "./curve.js";
import { clock, count, number, plural } from "./format.js";
import { html } from "./html.js";
import { Plot } from "./plot.js";
import { placeText } from "./ticks.js";

const MOST_ROWS = 200;
const NEAR_PX = 300;

/** @param {{series: import("./series.js").Series, title: string, lookup: import("./metrics.js").Looks, index: number}} props */
export function PlotCard({ series, title, lookup, index }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const value = useRef(/** @type {HTMLElement | null} */ (null));
  const [isNear, setNear] = useState(false);
  const [isTable, setTable] = useState(false);
  const version = series.version.value;
  const view = series.view.value;
  const { axis, place, range, extent } = lookup;

  // All of these before the next frame: what a plot shows is asked for at once.
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const { top, bottom } = element.getBoundingClientRect();
    setNear(bottom > -NEAR_PX && top < innerHeight + NEAR_PX); // the observer tells later, and then of each change
    const observer = new IntersectionObserver(([entry]) => setNear(entry.isIntersecting), { rootMargin: `${NEAR_PX}px` });
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (!isNear) return undefined;
    series.want((box.current?.clientWidth ?? 400) - 90);
    return () => series.unwant();
  }, [isNear, series]);
  useLayoutEffect(() => {
    if (isNear) series.look(range && series.whole ? lookup.toSteps(series.whole, range) : null);
  }, [isNear, range?.[0], range?.[1], axis, series.whole]);

  const shown = series.shown;
  const lines = useMemo(
    () => (shown ? [{ label: series.name, curve: curve(shown, place), index }] : []),
    [version, shown, place, index],
  );
  const drawn = shown ? Math.min(lines[0].curve.x.length, shown.num_points) : 0;
  const label = sentence(view);

  return html`<figure class="card plot" ref=${box}>
    <header>
      <h3 title=${series.name}>${title}</h3>
      <span class="value" ref=${value}>${number(view.last)}</span>
    </header>
    ${isNear && shown && !isTable
      ? html`<${Plot} ...${lookup.plot} lines=${lines} axis=${axis} range=${range} extent=${extent} label=${label}
          onCursor=${(/** @type {any} */ at, /** @type {number} */ x, /** @type {any[]} */ ys) => {
            const text = /** @type {Text | null | undefined} */ (value.current?.firstChild);
            if (!text) return; // written past Preact: a cursor moves often, and nothing else changes
            const y = ys[ys.length - 1] ?? ys[0];
            text.data = at === null || y === null || y === undefined ? number(series.view.value.last) : `${number(y)} at ${placeText(x, axis)}`;
          }} />`
      : isTable && shown
        ? html`<${Numbers} window=${shown} />`
        : html`<div class="canvas" role="img" aria-label=${label}>${series.problem.value && html`<p class="quiet small">${series.problem.value}</p>`}</div>`}
    <footer>
      <span>${shown ? `${count(drawn)} of ${plural(shown.num_points, "point")}` : plural(view.count, "point")}</span>
      <figcaption class="unseen">${label}</figcaption>
      <button class="plain" aria-pressed=${isTable} onClick=${() => setTable(!isTable)}>Table<span class="unseen"> of ${series.name}</span></button>
    </footer>
  </figure>`;
}

/** A plot in one sentence.
 * @param {import("./series.js").SeriesView} view */
export function sentence(view) {
  const range = view.least === null ? "no finite value" : `from ${number(view.least)} to ${number(view.most)}`;
  return `${view.name}: ${plural(view.count, "point")} up to step ${count(view.last_step)}; last ${number(view.last)}, ${range}.`;
}

/** @param {{window: import("./curve.js").Window}} props */
function Numbers({ window }) {
  const hasSpans = window.counts.length > 0;
  const total = window.firsts.length;
  const each = Math.max(1, Math.ceil(total / MOST_ROWS));
  const rows = [];
  for (let i = total - 1; i >= 0; i -= each) rows.push(i);
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${`${window.name} as a table`}>
    <table class="tight">
      <thead><tr><th class="number">Step</th><th>Time</th><th class="number">Value</th>${hasSpans && html`<th class="number">Min</th><th class="number">Max</th>`}</tr></thead>
      <tbody>${rows.map(
        (i) => html`<tr key=${window.first_steps[i]}>
          <td class="number">${count(window.first_steps[i])}</td><td>${clock(window.first_times[i])}</td><td class="number">${number(window.firsts[i])}</td>
          ${hasSpans && html`<td class="number">${number(window.least[i])}</td><td class="number">${number(window.most[i])}</td>`}
        </tr>`,
      )}</tbody>
    </table>
  </div>`;
}
