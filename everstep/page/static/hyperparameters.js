// The searched hyperparameters and the metric: parallel coordinates, a scatter plot for each, a heat map for each pair.

import { useMemo } from "preact/hooks";
import { Bar } from "./bar.js";
import { plural } from "./format.js";
import { HeatMap } from "./heat_map.js";
import { html } from "./html.js";
import { Parallel } from "./parallel.js";
import { go, query } from "./route.js";
import { readOnly } from "./scale.js";
import { Scatter } from "./scatter.js";
import { Empty } from "./states.js";
import { metricAxis } from "./trial_columns.js";
import { kept } from "./trial_rows.js";
import { onFilter } from "./trials.js";

/** @typedef {import("./trial_rows.js").Axis} Axis */
/** @typedef {import("./trial_rows.js").Row} Row */

/** @param {{columns: import("./trial_columns.js").Columns, rows: Row[], axes: Axis[], trialHref: (trial: number) => string | undefined}} props */
export function Hyperparameters({ columns, rows, axes, trialHref }) {
  const which = query.value.get("by") === "last" ? "last" : "best";
  const isLog = query.value.has("logm");
  const written = query.value.get("only");
  const filters = useMemo(() => readOnly(written), [written]);
  const metric = useMemo(() => metricAxis(columns, rows, which, isLog), [columns, rows, which, isLog]);
  const all = useMemo(() => [...axes, metric], [axes, metric]);
  const named = useMemo(() => new Map(all.map((each) => [each.scale.name, each])), [all]);
  const shown = useMemo(() => kept(rows, named, filters), [rows, named, filters]);
  const isSmallerBetter = columns.smaller_is_better;
  if (!axes.length) return html`<${Empty} title="Nothing is searched"><p>All hyperparameters of this experiment are constants.</p><//>`;
  if (!rows.length) return html`<${Empty} title="No trials yet"><p>The search creates them when the experiment starts.</p><//>`;
  const pairs = axes.flatMap((x, i) => axes.slice(i + 1).map((y) => ({ x, y })));
  const part = shown.length < rows.length ? `${shown.length} of ${plural(rows.length, "trial")}` : plural(rows.length, "trial");
  return html`<div class="stack">
    <h2 class="unseen">All hyperparameters</h2>
    <${Bar} label="How trials are compared" changed=${Number(which === "last") + Number(isLog)} first=${html`<label>By <select value=${which} onChange=${(/** @type {any} */ event) => go({ by: event.target.value === "last" ? "last" : "" }, { replace: true })}>
        <option value="best">best ${columns.metric}</option><option value="last">last ${columns.metric}</option></select></label>`}>
      <button aria-pressed=${isLog} onClick=${() => go({ logm: !isLog }, { replace: true })}>log ${columns.metric}</button>
    <//>
    <${Parallel} rows=${rows} axes=${all} filters=${filters} onFilter=${onFilter} isSmallerBetter=${isSmallerBetter}
      onOpen=${(/** @type {Row} */ row) => trialHref(row.trial) && go({}, { path: trialHref(row.trial) })} />
    <div class="section"><h2>By hyperparameter</h2><span class="quiet small">${part}</span></div>
    <div class="plots">${axes.map((x) => html`<${Scatter} key=${x.scale.name} rows=${shown} x=${x} y=${metric} isSmallerBetter=${isSmallerBetter} />`)}</div>
    ${pairs.length > 0 && html`<div class="section"><h2>By two hyperparameters</h2><span class="quiet small">means of ${part}</span></div>
    <div class="plots">${pairs.map(({ x, y }) => html`<${HeatMap} key=${`${x.scale.name}\n${y.scale.name}`} rows=${shown} x=${x} y=${y} metric=${metric} isSmallerBetter=${isSmallerBetter} />`)}</div>`}
  </div>`;
}
