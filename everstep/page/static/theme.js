// Light or dark: the system's choice, unless the switch says otherwise; the choice is kept in this browser.

import { signal, effect } from "@preact/signals";

const KEY = "everstep-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

/** @returns {string} */
function kept() {
  try {
    return localStorage.getItem(KEY) ?? "";
  } catch {
    return ""; // storage is switched off: the choice lasts until the page is closed
  }
}

const chosen = signal(kept());
const isSystemDark = signal(system.matches);
system.addEventListener("change", () => (isSystemDark.value = system.matches));

/** Whether it is dark now; plots read it, as canvas knows no CSS. */
export const isDark = signal(false);

effect(() => {
  isDark.value = chosen.value ? chosen.value === "dark" : isSystemDark.value;
  document.documentElement.dataset.theme = isDark.value ? "dark" : "light";
});

export function switchTheme() {
  chosen.value = isDark.value ? "light" : "dark";
  try {
    localStorage.setItem(KEY, chosen.value);
  } catch {
    // as above
  }
}
