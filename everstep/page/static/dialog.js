// A dialog in front of the page: Escape closes it, and the focus goes back to where it was.

import { useEffect, useRef, useState } from "preact/hooks";
import { html } from "./html.js";

/** @param {{title: string, onClose: () => void, children?: any}} props */
export function Dialog({ title, onClose, children }) {
  const box = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    const before = /** @type {HTMLElement | null} */ (document.activeElement);
    box.current?.showModal();
    return () => before?.focus();
  }, []);
  return html`<dialog ref=${box} aria-label=${title} onCancel=${(/** @type {Event} */ event) => (event.preventDefault(), onClose())}><h2>${title}</h2>${children}</dialog>`;
}

/** A dialog with fields. `save` gets what was typed, by name; what it throws is shown.
 * @param {{title: string, verb: string, isBad?: boolean, save: (typed: Record<string, string>) => Promise<unknown>, onClose: () => void, children?: any}} props */
export function FormDialog({ title, verb, isBad = false, save, onClose, children }) {
  const [problem, setProblem] = useState("");
  const [isBusy, setBusy] = useState(false);
  const submit = async (/** @type {any} */ event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await save(/** @type {Record<string, string>} */ (Object.fromEntries(new FormData(event.target))));
      onClose();
    } catch (error) {
      setProblem(/** @type {Error} */ (error).message);
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${title} onClose=${onClose}><form class="fields" onSubmit=${submit}>
    ${children}
    ${problem && html`<p class="notice bad" role="alert">${problem}</p>`}
    <div class="buttons"><button class=${isBad ? "main bad" : "main"} disabled=${isBusy}>${verb}</button><button type="button" onClick=${onClose}>Cancel</button></div>
  </form><//>`;
}

/** A button that asks again, because something is lost.
 * @param {{label: string, about?: string, title: string, verb: string, act: () => Promise<unknown>, children?: any}} props  about: what it is, for those who only hear the button */
export function AskingButton({ label, about = "", title, verb, act, children }) {
  const [isOpen, setOpen] = useState(false);
  return html`<button onClick=${() => setOpen(true)}>${label}<span class="unseen">${about && ` ${about}`}</span></button>
    ${isOpen && html`<${FormDialog} title=${title} verb=${verb} isBad=${true} save=${act} onClose=${() => setOpen(false)}><p>${children}</p><//>`}`;
}
