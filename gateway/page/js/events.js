// Live events: server-sent, read with fetch because EventSource cannot send a token. They go on where they ended.

import { byId } from "./dom.js";
import { Failure, request } from "./api.js";

const FIRST_DELAY_MS = 500;
const LAST_DELAY_MS = 15000;
const SAYINGS = { on: "live", off: "", lost: "not live: connecting …", ended: "not live" };

function showState(state) {
  const light = byId("live");
  light.dataset.state = state;
  light.textContent = SAYINGS[state];
}

/**
 * Listens to `path` until `signal` says stop. `onEvent` gets each event, `onReload` is called when some were missed.
 * The promise `ready` holds once nothing that happens from now on will be missed, or that cannot be said soon.
 */
export function listen(path, signal, { onEvent, onReload }) {
  let isReady;
  const ready = new Promise((resolve) => { isReady = resolve; });
  signal.addEventListener("abort", () => { isReady(); showState("off"); });
  follow(path, signal, { onEvent, onReload, isReady });
  return ready;
}

async function follow(path, signal, handlers) {
  const place = { id: null };
  let delay = FIRST_DELAY_MS;
  while (!signal.aborted) {
    try {
      const headers = place.id === null ? {} : { "Last-Event-ID": place.id };
      const response = await request(path, { headers, signal });
      showState("on");
      // A stream that begins anew, after the first, may have missed something.
      if (place.id === null && delay !== FIRST_DELAY_MS) handlers.onReload();
      delay = FIRST_DELAY_MS;
      await readAll(response, place, handlers);
    } catch (error) {
      if (signal.aborted) return;
      handlers.isReady();
      showState("lost");
      if (error instanceof Failure && !error.isRetryable) { showState("ended"); return; }
      delay = Math.min(2 * delay, LAST_DELAY_MS);
    }
    await new Promise((resolve) => { setTimeout(resolve, delay); });
  }
}

async function readAll(response, place, handlers) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", fields = {};
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line !== "") {
        const colon = line.indexOf(":");
        if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, "");
        continue;
      }
      if (fields.id !== undefined) { place.id = fields.id; handlers.isReady(); }
      if (fields.event === "reload") handlers.onReload();
      else if (fields.event === "resume") { await reader.cancel(); return; }
      else if (fields.data !== undefined) handlers.onEvent(JSON.parse(fields.data));
      fields = {};
    }
  }
}
