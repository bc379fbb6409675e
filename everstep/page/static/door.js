// The door: a one-time code or a token opens a session. Neither is kept by the page.

import { useState } from "preact/hooks";
import { doorSays, signIn } from "./api.js";
import { html } from "./html.js";

const LONGEST_CODE = 256; // that the coordinator reads; a token may be longer

export function Door() {
  const [proof, setProof] = useState("");
  const [isBusy, setBusy] = useState(false);
  const enter = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const typed = proof.trim();
    if (!typed || isBusy) return;
    setBusy(true);
    const isLink = typed.includes("#code=");
    const code = isLink ? typed.slice(typed.indexOf("#code=") + 6) : typed;
    try {
      if (!isLink && typed.length > LONGEST_CODE) await signIn({ token: typed });
      else {
        await signIn({ code }).catch((error) => {
          if (isLink || error.code !== "code-unknown") throw error;
          return signIn({ token: typed });
        });
      }
    } catch (error) {
      doorSays.value = /** @type {Error} */ (error).message;
    }
    setBusy(false);
    setProof("");
  };
  return html`<div class="card door">
    <h1>Sign in</h1>
    <p class="quiet">Enter a one-time code, the full address that Everstep printed, or one of this coordinator's tokens.</p>
    <form onSubmit=${enter}>
      <label for="proof">Code or token</label>
      <input id="proof" type="password" autocomplete="off" spellcheck="false" value=${proof} aria-describedby="door-says" onInput=${(/** @type {any} */ event) => setProof(event.target.value)} />
      <button class="main" disabled=${isBusy}>Sign in</button>
      <p id="door-says" class=${doorSays.value ? "notice bad" : ""} role="alert">${doorSays.value.split("`").map((part, i) => (i % 2 ? html`<span class="mono">${part}</span>` : part))}</p>
    </form>
  </div>`;
}
