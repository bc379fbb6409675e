// Notes as people write them: a small, safe part of Markdown. Headings, emphasis, code, lists and links to http(s); all
// else is text as it stands. What is made are elements of the page's template, never HTML.

import { html } from "./html.js";

const LINK = /^https?:\/\/[^\s<>"']+$/i;
const MARK = /(?<!`)(`{1,3})(?!`)([\s\S]{0,500}?[^`])\1(?!`)|\[([^\]\n]{1,500})\]\(([^()\s]{1,2000})\)|(\*\*|__)(?=\S)([\s\S]{0,500}?\S)\5|(?<![A-Za-z0-9])([*_])(?=\S)([\s\S]{0,500}?\S)\7(?![A-Za-z0-9])|(https?:\/\/[^\s<>"')\]]{1,2000}[^\s<>"')\].,;:!?])/; // bounded: no text takes long
const DEEPEST = 8;

/** @typedef {{kind: "text", text: string} | {kind: "code", text: string} | {kind: "strong" | "em", parts: Inline[]} | {kind: "link", to: string, parts: Inline[]}} Inline */
/** @typedef {{kind: "heading", level: number, parts: Inline[]} | {kind: "paragraph", parts: Inline[]} | {kind: "code", text: string} | {kind: "list", isNumbered: boolean, items: Inline[][]}} Block */

/** @param {string} source @returns {Block[]} */
export function blocks(source) {
  const lines = source.replace(/\r\n?/g, "\n").split("\n");
  /** @type {Block[]} */
  const made = [];
  /** @type {string[]} */
  let paragraph = [];
  const close = () => {
    if (paragraph.length) made.push({ kind: "paragraph", parts: inline(paragraph.join("\n")) });
    paragraph = [];
  };
  for (let i = 0; i < lines.length; i++) {
    const line = lines[i];
    const fence = line.match(/^ {0,3}(`{3,})[^`]*$/);
    const heading = line.match(/^(#{1,6})\s+(.+?)\s*#*$/);
    const item = line.match(/^ {0,3}([-*+]|\d{1,9}[.)])\s+(.*)$/);
    if (fence) {
      close();
      const code = [];
      while (++i < lines.length && !lines[i].trim().startsWith(fence[1])) code.push(lines[i]);
      made.push({ kind: "code", text: code.join("\n") });
    } else if (heading) {
      close();
      made.push({ kind: "heading", level: heading[1].length, parts: inline(heading[2]) });
    } else if (item) {
      close();
      const isNumbered = /\d/.test(item[1]);
      const last = made.at(-1);
      const isSame = last?.kind === "list" && last.isNumbered === isNumbered && i > 0 && lines[i - 1].trim() !== "";
      if (isSame) last.items.push(inline(item[2]));
      else made.push({ kind: "list", isNumbered, items: [inline(item[2])] });
    } else if (!line.trim()) close();
    else paragraph.push(line);
  }
  close();
  return made;
}

/** @param {string} source @param {number} [depth] @returns {Inline[]} */
export function inline(source, depth = 0) {
  /** @type {Inline[]} */
  const made = [];
  let rest = source;
  while (rest && depth < DEEPEST) {
    const found = rest.match(MARK);
    if (!found || found.index === undefined) break;
    const [all, , code, name, to, , strong, , em, bare] = found;
    if (found.index) put(made, rest.slice(0, found.index));
    rest = rest.slice(found.index + all.length);
    if (code !== undefined) made.push({ kind: "code", text: code.trim() });
    else if (to !== undefined && LINK.test(to)) made.push({ kind: "link", to, parts: inline(name, depth + 1) });
    else if (bare !== undefined) made.push({ kind: "link", to: bare, parts: [{ kind: "text", text: bare }] });
    else if (strong !== undefined) made.push({ kind: "strong", parts: inline(strong, depth + 1) });
    else if (em !== undefined) made.push({ kind: "em", parts: inline(em, depth + 1) });
    else put(made, all);
  }
  if (rest) put(made, rest);
  return made;
}

/** @param {Inline[]} made @param {string} text */
function put(made, text) {
  const last = made.at(-1);
  if (last?.kind === "text") last.text += text;
  else made.push({ kind: "text", text });
}

/** @param {{source: string}} props */
export function Markdown({ source }) {
  return html`<div class="prose">${blocks(source).map((each, i) => html`<${Part} key=${i} block=${each} />`)}</div>`;
}

/** @param {{block: Block}} props */
function Part({ block }) {
  if (block.kind === "code") return html`<pre tabindex="0"><code>${block.text}</code></pre>`;
  if (block.kind === "paragraph") return html`<p>${shown(block.parts)}</p>`;
  if (block.kind === "list") return html`<${block.isNumbered ? "ol" : "ul"}>${block.items.map((each, i) => html`<li key=${i}>${shown(each)}</li>`)}<//>`;
  return html`<${block.level === 1 ? "h2" : "h3"} class=${`level${block.level}`}>${shown(block.parts)}<//>`; // the page's own title is the first
}

/** @param {Inline[]} parts @returns {any} */
function shown(parts) {
  return parts.map((each) => {
    if (each.kind === "text") return each.text;
    if (each.kind === "code") return html`<code>${each.text}</code>`;
    if (each.kind === "link") return html`<a href=${each.to} rel="noopener noreferrer nofollow" target="_blank">${shown(each.parts)}</a>`;
    return html`<${each.kind}>${shown(each.parts)}<//>`;
  });
}
