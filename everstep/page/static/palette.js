// Eight colors that stay apart for every kind of color blindness (Okabe and Ito's, darker on white, lighter on black so
// that each has contrast 3:1), and dashes for the next eight: a line is told by its color or by its dash.

const LIGHT = ["#0072b2", "#c44e00", "#007d5a", "#a3477f", "#8a6a00", "#2a7fa8", "#4d4d4d", "#6a4fb3"];
const DARK = ["#56b4e9", "#ff9a52", "#2fc79a", "#e08dc0", "#f0e442", "#8fd0f5", "#c8c8c8", "#b7a2f2"];
const DASHES = [[], [6, 4], [2, 3], [10, 3, 2, 3]];

/** @param {number} index @param {boolean} isDark */
export function color(index, isDark) {
  const colors = isDark ? DARK : LIGHT;
  return colors[index % colors.length];
}

/** Neighbors differ in color; from the second on they differ in dash too, if a plot has several lines.
 * @param {number} index */
export function dash(index) {
  return DASHES[(index + Math.floor(index / LIGHT.length)) % DASHES.length];
}

/** What canvas needs from the style sheet.
 * @param {boolean} isDark */
export function inks(isDark) {
  return isDark
    ? { text: "#a9b4bd", grid: "#262e35", mark: "#ff8a70", good: "#2fc79a", ground: "#161c21" }
    : { text: "#55606a", grid: "#e9edf0", mark: "#b3261e", good: "#007d5a", ground: "#ffffff" };
}

// From the worst to the best: lighter or darker all the way, so that it reads in gray too.
const RAMP_LIGHT = ["#c3ced6", "#8fb8d0", "#3f93c4", "#00659e", "#0a2f56"];
const RAMP_DARK = ["#3a4752", "#2f6d93", "#3fa0d8", "#7fd0d0", "#f0e442"];

/** @param {number} share from 0, the worst, to 1 @param {boolean} isDark */
export function ramp(share, isDark) {
  const stops = isDark ? RAMP_DARK : RAMP_LIGHT;
  const place = Math.min(1, Math.max(0, share)) * (stops.length - 1);
  const index = Math.min(stops.length - 2, Math.floor(place));
  const [from, to] = [stops[index], stops[index + 1]].map(channels);
  return `#${from.map((each, i) => Math.round(each + (to[i] - each) * (place - index)).toString(16).padStart(2, "0")).join("")}`;
}

/** @param {string} hex */
const channels = (hex) => [1, 3, 5].map((i) => Number.parseInt(hex.slice(i, i + 2), 16));
