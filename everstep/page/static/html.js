// One tagged template for the whole page. What stands between `${` and `}` becomes a text node or an attribute, never
// HTML: names, log lines and messages of users are safe by construction.

import { h } from "preact";
import htm from "htm";

export const html = htm.bind(h);
