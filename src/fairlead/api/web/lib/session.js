// Who reads this page: in the header, and for the buttons. The server decides what the reader may do.
import {key, keep, onEnded, onKeyChanged, read, send} from "./api.js";
import {byId, el, link} from "./dom.js";
import {notice} from "./dialog.js";

const ANONYMOUS = {user: "", owners: [], admin: false, anonymous: true, session: null};
const IDLE_MS = 3600 * 1000, LOOK_MS = 30 * 1000;
const watchers = new Set();
let touched = Date.now();

export let who = ANONYMOUS;
export const mayActFor = (owner) => who.admin || who.owners.includes(owner);
export const onWho = (watcher) => { watchers.add(watcher); return () => watchers.delete(watcher); };

export async function identify() {
  if (!key()) become(ANONYMOUS);
  else try { become(await read("/v1/whoami")); } catch (error) { if (error.status !== 401) throw error; }
}

// secret: {token} or {code}.
export async function signIn(secret) {
  keep(null);
  keep((await send("POST", "/v1/signin", secret)).key);
  await identify();
}

export async function signOut(why) {
  const {session} = who, own = key();
  keep(null);
  become(ANONYMOUS);
  try { if (session) await send("DELETE", `/v1/sessions/${session}`, undefined, undefined, own); } catch { /* it has ended already, or the server has */ }
  notice(why || "You are signed out.");
}

function become(reader) {
  const changed = reader.session !== who.session;
  who = reader;
  show();
  if (changed) for (const watcher of watchers) watcher(who);
}

function show() {
  const account = byId("account");
  if (who.anonymous) {
    account.replaceChildren(link("/signin", "Sign in"));
    return;
  }
  const rights = who.admin ? "admin" : who.owners.join(", ") || "reads only";
  account.replaceChildren(link("/submit", "Submit a run"),
    el("span", {class: "who", title: `acts for ${who.admin ? "all owners" : rights}`}, who.user, " ", el("span", {class: "soft"}, `(${rights})`)),
    el("button", {type: "button", click: () => signOut()}, "Sign out"));
}

onEnded((words) => { become(ANONYMOUS); notice(`You were signed out: ${words}`, {bad: true}); });
onKeyChanged(identify);
for (const kind of ["pointerdown", "keydown"]) addEventListener(kind, () => { touched = Date.now(); }, {passive: true});
setInterval(() => {
  if (!who.anonymous && Date.now() - touched > IDLE_MS) signOut("You were signed out after an hour without input.");
}, LOOK_MS);
show();
