// The SharedWorker: one stream for all tabs of this browser. A tab says what it looks at, and when it goes.

import { Stream } from "./stream.js";

const stream = new Stream();

/** @type {any} */ (globalThis).onconnect = (/** @type {MessageEvent} */ event) => {
  const port = event.ports[0];
  const reader = (/** @type {any} */ told) => port.postMessage(told);
  port.onmessage = ({ data }) => (data.topics ? stream.read(reader, data.topics) : stream.forget(reader));
};
