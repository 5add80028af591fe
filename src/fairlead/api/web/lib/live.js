// The events of the ledger as they happen. Cut off, the browser connects again by itself and says which
// event it heard last, so none is lost and none comes twice.
import {read} from "./api.js";

const EVENTS_AT_FIRST = 50, AGAIN_MS = 3000;
const listeners = new Set(), watchers = new Set();
export const recent = [];
export const RECENT_MAX = 200;
export let live = false;
let heard = 0;

export function onEvent(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

// `watcher(live)` is told when the connection is made and when it is lost.
export function onConnection(watcher) {
  watchers.add(watcher);
  watcher(live);
  return () => watchers.delete(watcher);
}

function become(now) {
  live = now;
  for (const watcher of watchers) watcher(live);
}

// Browsers have six connections to one server, whatever the number of tabs. A tab that is not seen gives its
// connection back; seen again, it goes on after the event that it heard last.
function whileSeen(open) {
  let source = null;
  const follow = () => {
    if (document.hidden && source) { source.close(); source = null; }
    if (!document.hidden && !source) source = open();
  };
  document.addEventListener("visibilitychange", follow);
  follow();
  return () => { document.removeEventListener("visibilitychange", follow); if (source) source.close(); source = null; };
}

export async function connect() {
  try {
    heard = Math.max(heard, (await read("/v1/head")).size - EVENTS_AT_FIRST);
  } catch {
    become(false);
    setTimeout(connect, AGAIN_MS);
    return;
  }
  const stop = whileSeen(() => {
    const source = new EventSource(`/v1/watch?after=${heard}`);
    source.onopen = () => become(true);
    source.onerror = () => {
      become(false);
      if (source.readyState === EventSource.CLOSED) { stop(); setTimeout(connect, AGAIN_MS); }  // it gave up
    };
    source.onmessage = (message) => {
      const event = JSON.parse(message.data);
      heard = event.seq;
      recent.unshift(event);
      recent.length = Math.min(recent.length, RECENT_MAX);
      for (const listener of listeners) listener(event);
    };
    return source;
  });
}

// What agents report, as it comes: {kind: "node" or "group", name?}. At first, and whenever the connection is
// back, `take(report)` gets what changed meanwhile, so none is lost. The function that is returned ends it.
export function followReports(query, take) {
  let ended = false, again = 0, stop = () => {};
  const open = () => {
    stop = whileSeen(() => {
      const source = new EventSource(`/v1/reports?${new URLSearchParams(query)}`);
      source.onmessage = (message) => take(JSON.parse(message.data));
      source.onerror = () => {
        if (source.readyState !== EventSource.CLOSED || ended) return;
        stop();
        again = setTimeout(open, AGAIN_MS);
      };
      return source;
    });
  };
  open();
  return () => { ended = true; clearTimeout(again); stop(); };
}
