// Starts the page with the view that the address names. It asks for its data while the session is looked up, and is
// seen when either is answered.

import { render } from "preact";
import { enter, isEntering, isSignedIn, signOut } from "./api.js";
import { Compare } from "./compare.js";
import { Door } from "./door.js";
import { html } from "./html.js";
import { Job } from "./job.js";
import { Jobs } from "./jobs.js";
import { Later } from "./later.js";
import { isHeard, isJobOver } from "./live.js";
import { follow, view } from "./route.js";
import { Empty } from "./states.js";
import { isDark, switchTheme } from "./theme.js";

const NAVIGATION = [
  { title: "Jobs", path: "/", names: ["jobs", "job"] },
  { title: "Experiments", path: "/experiments", names: ["experiments", "experiment", "trial"] },
  { title: "Pool", path: "/pools", names: ["pool"] },
  { title: "Queue", path: "/queue", names: ["queue"] },
  { title: "Models", path: "/models", names: ["models", "model"] },
  { title: "Compare", path: "/compare", names: ["compare"] },
];

function Top() {
  const name = view.value.name;
  const isAway = isHeard.value === false;
  return html`<a class="skip" href="#main">Skip to the content</a>
    <header class="top">
      <a class="brand" href="/" aria-label="Everstep, all jobs"><svg width="24" height="24" viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2.5" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><path d="M3 20V15H9V10H15V5H21" /></svg><span>Everstep</span></a>
      ${isSignedIn.value && html`<nav aria-label="Views">
        ${NAVIGATION.map(({ title, path, names }) => html`<a key=${path} href=${path} aria-current=${names.includes(name) ? (names[0] === name ? "page" : "true") : undefined}>${title}</a>`)}
      </nav>`}
      <div class="end">
        <span role="status">${isSignedIn.value && isHeard.value !== null && html`<span class=${isAway ? "link-state away" : "link-state"} title=${isAway ? "The coordinator is not responding. You are seeing the last data received; the page reconnects automatically." : "The page is up to date with the coordinator."}>${isAway ? (isJobOver.value ? "Job over" : "Reconnecting") : "Live"}</span>`}</span>
        <button class="plain" onClick=${switchTheme} aria-label=${isDark.value ? "Switch to light" : "Switch to dark"}>${isDark.value ? "Light" : "Dark"}</button>
        ${isSignedIn.value && html`<button class="plain" onClick=${signOut}>Sign out</button>`}
      </div>
    </header>`;
}

/** Views whose scripts come when they are opened.
 * @type {Record<string, () => Promise<{View: any}>>} */
const LATER = {
  experiments: () => import("./experiments.js"),
  experiment: () => import("./experiment.js"),
  trial: () => import("./trial.js"),
  pool: () => import("./pool.js"),
  queue: () => import("./queue.js"),
  models: () => import("./models.js"),
  model: () => import("./models.js"),
};

function View() {
  if (isSignedIn.value === null && isEntering.value) return null;
  if (isSignedIn.value === false) return html`<${Door} />`;
  const { name, id, tab } = view.value;
  if (name === "job") return html`<${Job} key=${id} job=${id} />`;
  if (name === "compare") return html`<${Compare} />`;
  if (name === "jobs") return html`<${Jobs} />`;
  if (Object.hasOwn(LATER, name)) return html`<${Later} key=${`${name} ${id}`} load=${LATER[name]} id=${id} tab=${tab} />`;
  return html`<${Empty} title="No such page"><p><a href="/">Show all jobs</a></p><//>`;
}

function Page() {
  return html`<${Top} /><main id="main" tabindex="-1" hidden=${isSignedIn.value === null}><${View} /></main>`;
}

document.addEventListener("click", follow);
addEventListener("hashchange", enter); // an address with a code, pasted into this tab
enter();
render(html`<${Page} />`, /** @type {HTMLElement} */ (document.getElementById("page")));
