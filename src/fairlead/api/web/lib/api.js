// Requests to this server, and only to it; as the reader who is signed in, where there is one.
//
// A session has a cookie, which the browser keeps, and a key, which this page keeps and sends in a header. Other
// servers of this machine may get the cookie; they cannot read the key.

const KEPT = "fairlead.session";
const ended = new Set();

export class Failed extends Error {
  constructor(status, code, message, path) {
    super(path ? `${path}: ${message}` : message);
    Object.assign(this, {status, code, path, about: message});
  }
}

export const key = () => localStorage.getItem(KEPT);
export const keep = (value) => { if (value === null) localStorage.removeItem(KEPT); else localStorage.setItem(KEPT, value); };
export const onKeyChanged = (listener) => addEventListener("storage", (event) => { if (event.key === KEPT) listener(); });
// Called with the server's words when it no longer knows the session.
export const onEnded = (listener) => ended.add(listener);

function headers(more, own = key()) {
  return {Accept: "application/json", ...(own ? {"Fairlead-Session": own} : {}), ...more};
}

async function answer(reply, sent, take = (good) => good.json()) {
  if (reply.ok) return take(reply);
  let error = {code: String(reply.status), message: reply.statusText, path: null};
  try { error = (await reply.json()).error; } catch { /* not one of our answers: the status says it */ }
  if (reply.status === 401 && sent["Fairlead-Session"] && sent["Fairlead-Session"] === key()) {
    keep(null);
    for (const listener of ended) listener(error.message);
  }
  throw new Failed(reply.status, error.code, error.message, error.path);
}

function address(path, query) {
  const given = Object.entries(query || {}).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const parameters = new URLSearchParams(given).toString();
  return parameters ? `${path}?${parameters}` : path;
}

export async function read(path, query) {
  const sent = headers();
  return answer(await fetch(address(path, query), {headers: sent}), sent);
}

// The same as exact bytes, for files that are checked or kept.
export async function readBytes(path, query) {
  const sent = headers();
  return answer(await fetch(address(path, query), {headers: sent}), sent, async (good) => new Uint8Array(await good.arrayBuffer()));
}

// A change, or with {dry_run: true} its preview.
export async function send(method, path, body, query, own = key()) {
  const sent = headers(body === undefined ? {} : {"Content-Type": "application/json"}, own);
  const text = body === undefined ? undefined : JSON.stringify(body);
  return answer(await fetch(address(path, query), {method, headers: sent, body: text}), sent);
}
