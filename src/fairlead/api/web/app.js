// Opens the view of an address, keeps it fresh, and says whether what it shows is live.
//
// A view is a module with `open(root, context)`: it fills `root` and returns {refresh, close?}. `refresh` is
// called after events, every few seconds and when the connection is back; it may throw. `context` has
// `params` (of the address), `query`, `go(path)` and `again()`, which refreshes the view now.
import {byId, el} from "./lib/dom.js";
import {connect, live, onConnection, onEvent} from "./lib/live.js";
import {identify, onWho} from "./lib/session.js";
import {mount} from "./lib/story.js";

const EVERY_MS = 5000, SOON_MS = 300, AGAIN_MS = 1000;
const VIEWS = [
  ["/", "Overview", () => import("./views/overview.js")],
  ["/gpu", "GPU", () => import("./views/gpu.js")],
  ["/runs/{name}", "Run", () => import("./views/run.js")],
  ["/preemption", "Preemption", () => import("./views/preemption.js")],
  ["/preemption/{outcome}", "Outcome", () => import("./views/outcome.js")],
  ["/cpu", "CPU", () => import("./views/cpu.js")],
  ["/cpu/{node}", "Node", () => import("./views/node.js")],
  ["/traffic", "Traffic", () => import("./views/traffic.js")],
  ["/traffic/{group}", "Route group", () => import("./views/group.js")],
  ["/ledger", "Ledger", () => import("./views/ledger.js")],
  ["/ledger/{seq}", "Entry", () => import("./views/entry.js")],
  ["/decision/{id:path}", "Decision", () => import("./views/decision.js")],
  ["/signin", "Sign in", () => import("./views/signin.js")],
  ["/submit", "Submit a run", () => import("./views/submit.js")],
];

// A typed address may have a % that encodes nothing.
function decoded(text) {
  try { return decodeURIComponent(text); } catch { return text; }
}

function match(pattern, path) {
  const names = [];
  const text = pattern.replace(/\{(\w+)(:path)?\}/g, (_, name, rest) => { names.push(name); return rest ? "(.+)" : "([^/]+)"; });
  const found = new RegExp(`^${text}$`).exec(path);
  return found && Object.fromEntries(names.map((name, at) => [name, decoded(found[at + 1])]));
}

let current = null, opening = 0, busy = false, again = false, heard = false, lost = false, timer = 0;

async function show() {
  const path = location.pathname, turn = ++opening;
  const [pattern, title, load] = VIEWS.find(([each]) => match(each, path)) || [null, "No such view", null];
  for (const each of document.querySelectorAll("header nav a")) {
    const own = each.getAttribute("href"), here = own === "/" ? path === "/" : path.startsWith(own);
    if (here) each.setAttribute("aria-current", "page"); else each.removeAttribute("aria-current");
  }
  document.title = `${title} · Fairlead`;
  const root = el("div", {class: "view"}), view = byId("view");
  if (current && current.close) current.close();
  current = null;
  view.replaceChildren(root);
  if (!load) {
    root.append(...nothing(title, `There is nothing at ${path}.`));
    current = {params: {}, async refresh() { /* the header says whether the page is live */ }};
    await refresh();
    return;
  }
  const params = match(pattern, path);
  const context = {params, query: Object.fromEntries(new URLSearchParams(location.search)), go, again() { heard = true; return refresh(); }};
  let module;
  try { module = await load(); } catch (error) { failed(error); reloadLater(turn); return; }
  try {
    const opened = await module.open(root, context);
    if (turn !== opening) { if (opened.close) opened.close(); return; }
    current = Object.assign(opened, {params});
    const named = root.querySelector("h1");
    if (named) document.title = `${named.textContent} · Fairlead`;
    await refresh();
    if (turn === opening) reveal(location.hash);
  } catch (error) {
    failed(error);
  }
}

// The code of a view did not come. A browser may remember that, so the page is loaded anew, once the control plane answers.
function reloadLater(turn) {
  setTimeout(async () => {
    if (turn !== opening) return;
    try { await fetch("/healthz"); } catch { reloadLater(turn); return; }
    if (turn === opening) location.reload();
  }, AGAIN_MS);
}

export function go(path, {replace = false} = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", path);
  const before = document.activeElement;
  show().then(() => {  // unless the reader has gone on meanwhile
    if (!replace && [before, document.body].includes(document.activeElement)) byId("view").focus({preventScroll: true});
  });
  if (!replace) scrollTo(0, 0);
}

async function refresh() {
  if (busy) { again = true; return; }
  if (!current) return;
  busy = true;
  heard = false;
  try {
    const asked = current;
    try {
      await asked.refresh();
      if (asked === current) there(asked);
    } catch (error) {
      if (error.status !== 404 || asked.seen) throw error;
      if (asked === current) missing(asked, error);
    }
    say(live ? "Live" : "Waiting for events…");
  } catch (error) {
    failed(error);
  } finally {
    busy = false;
    if (again) { again = false; soon(); }
  }
}

const nothing = (title, words) => [el("h1", null, title), el("p", null, words), el("p", null, el("a", {href: "/"}, "Go to the overview"))];

// What a view is about does not exist, or not yet: the view is hidden until something is heard of it. Asked every few
// seconds, the browser would log an error each time.
function missing(view, error) {
  view.missing = true;
  if (!heard) { clearTimeout(timer); timer = 0; again = false; }  // what was asked for meanwhile was for something else
  byId("view").firstChild.hidden = true;
  if (byId("not-found")) return;
  const words = `${error.message[0].toUpperCase()}${error.message.slice(1)}.`;
  byId("view").append(el("div", {id: "not-found"}, nothing("Not found", `${words} Check the address; what is shown here appears once it exists.`)));
}

function there(view) {
  view.seen = true;
  view.missing = false;
  if (!byId("not-found")) return;
  byId("not-found").remove();
  byId("view").firstChild.hidden = false;
}

function failed(error) {
  say(error.status ? error.message : `No answer from the control plane (${error.message}); trying again`, true);
}

function soon() {
  if (!timer) timer = setTimeout(() => { timer = 0; refresh(); }, SOON_MS);
}

function say(text, lost) {
  const state = byId("state");
  if (state.textContent !== text) state.textContent = text;
  state.classList.toggle("lost", Boolean(lost));
  state.classList.toggle("waiting", !live);
}

const isAbout = (event) => Object.values(current.params).some((value) => value === String(event.seq) || (event.object && value === event.object.name));

// Go to a part of the view, such as `#budgets`.
function reveal(hash) {
  const part = hash.length > 1 && byId(decoded(hash.slice(1)));
  if (!part) return;
  part.scrollIntoView();
  part.focus({preventScroll: true});
}

document.addEventListener("click", (event) => {
  const part = event.target.closest("a[href^='#']");
  if (part) {  // by hand: the browser would count it as another address, and the view would be opened anew
    event.preventDefault();
    history.replaceState(null, "", part.getAttribute("href"));
    reveal(part.getAttribute("href"));
    return;
  }
  const target = event.target.closest("a[href^='/']");
  if (!target || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || target.target) return;
  event.preventDefault();
  go(target.getAttribute("href"));
});
addEventListener("popstate", show);
onConnection((now) => {
  if (!now && current) say("Connection lost; trying again", true);
  else if (now && lost) refresh();
  else if (now && current && !busy && !byId("state").classList.contains("lost")) say("Live");  // what was read is not read again: events follow from before it
  lost = !now;
});
lost = false;  // none was made before
onEvent((event) => {
  if (!current) return;
  const about = isAbout(event);
  heard = heard || about;
  if (about || !current.missing) soon();
});
setInterval(() => { if (current && !current.missing) refresh(); }, EVERY_MS);
identify().catch(failed).then(() => { onWho(() => { if (location.pathname !== "/signin") show(); }); return show(); });
connect();
mount();
