// The story of the demo: a caption for each act that happened, what is awaited now, and all acts so far.
// Only a demo has one: `healthz` says so, and nothing else is asked of other servers.
import {read} from "./api.js";
import {byId, el, link, moment} from "./dom.js";
import {onConnection, onEvent} from "./live.js";

const EVERY_MS = 2000, FOLDED = "fairlead-story-folded";
let shown = "";

function remembered() {
  try { return sessionStorage.getItem(FOLDED) === "true"; } catch { return false; }
}

function remember(folded) {
  try { sessionStorage.setItem(FOLDED, String(folded)); } catch { /* then it is open again next time */ }
}

const tag = (act) => act.simulated ? el("span", {class: "tag"}, "simulated") : "";
const links = (act) => act.links.map((each, at) => [at ? " · " : " See ", link(each.path, each.text)]);

const toldIn = (story) => new Set(story.acts.filter((act) => act.round === story.round).map((act) => act.act));

function steps(story) {
  const told = toldIn(story);
  return story.programme.map(({act, title}) => {
    const state = told.has(act) ? "told" : story.next && story.next.act === act ? "now" : "later";
    const words = {told: "happened", now: "is awaited", later: "comes later"}[state];
    return el("li", {class: state}, el("span", {class: "sign", "aria-hidden": "true"}, {told: "✓", now: "•", later: "○"}[state]),
      title, el("span", {class: "hidden"}, `: ${words}`));
  });
}

function past(story) {
  return story.acts.toReversed().map((act) => el("li", null, moment(act.time), el("b", null, act.title), tag(act),
    el("span", null, act.text, links(act))));
}

export async function mount() {
  let demo = false;
  try { demo = (await read("/healthz")).demo; } catch { setTimeout(mount, EVERY_MS); return; }
  if (!demo) return;
  const caption = el("p", {class: "caption", "aria-live": "polite", "aria-atomic": "true"}), next = el("p", {class: "next soft"});
  const programme = el("ol", {class: "programme", "aria-label": "Acts of the story"}), acts = el("ol", {class: "acts"});
  const count = el("span", {class: "soft"}), body = el("div", {id: "story-body"}, caption, next, programme,
    el("details", null, el("summary", null, "What happened so far"), acts));
  const fold = el("button", {type: "button", "aria-controls": "story-body", click: () => show(!body.hidden)});
  function show(folded) {
    body.hidden = folded;
    fold.textContent = folded ? "Show the story" : "Hide";
    fold.setAttribute("aria-expanded", String(!folded));
    remember(folded);
  }
  show(remembered());
  byId("story").replaceChildren(el("section", {class: "story", "aria-label": "Story of the demo"},
    el("div", {class: "headline"}, el("b", null, "Demo"), count, fold), body));
  async function refresh() {
    let story;
    try { story = await read("/v1/story"); } catch { return; }  // the state in the header says that the server is gone
    const said = JSON.stringify(story);
    if (said === shown) return;
    shown = said;
    const last = story.acts.at(-1), happened = story.acts.filter((act) => act.round === story.round).length;
    count.textContent = `round ${story.round}, ${happened} of ${story.programme.length} acts`;
    const key = last ? String(last.number) : "";
    if (caption.dataset.key !== key) {
      caption.dataset.key = key;
      if (last) caption.replaceChildren(el("b", null, `${last.title}. `), tag(last), el("span", null, last.text, links(last)));
    }
    const told = toldIn(story), ahead = story.programme.find(({act}) => !told.has(act));
    next.replaceChildren(story.next ? `Next: ${story.next.title.toLowerCase()}; ${story.next.text}.` : ahead ? `Next: ${ahead.title.toLowerCase()}.` : "The story begins again in a while, with other teams.");
    programme.replaceChildren(...steps(story));
    acts.replaceChildren(...past(story));
  }
  let timer = 0;
  onEvent(() => { timer = timer || setTimeout(() => { timer = 0; refresh(); }, 300); });
  onConnection((live) => { if (live) refresh(); });
  setInterval(refresh, EVERY_MS);
  refresh();
}
