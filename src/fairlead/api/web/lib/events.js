// An entry of the ledger for people: what it is about, with a link to its view, and what it says.
import {count, el, link, nameClass} from "./dom.js";
import {plain} from "./words.js";

const ORDERS = {isolate: "ejected", drain: "draining"};

// What an entry says that has no message of its own.
const SAYS = {
  "object.applied": ({body, object}) => body.generation > 1 ? "changed" : object.kind === "Run" ? "submitted" : "created",
  "gpu.fund": ({body: {output}}) => output.funded ? `paid by ${output.plan.map((line) => `${line.budget}/${line.envelope} (${line.gpus})`).join(", ")}` : "not funded",
  "gpu.place": ({body: {output}}) => output.placed ? `on ${[...new Set(output.groups.flatMap((group) => [...group.active, ...group.spares]).map((slot) => slot.split("#")[0]))].join(", ")}` : `${count(output.shortfall_gpus, "device")} short`,
  "lease.open": ({body}) => `${body.slots.join(", ")}, paid by ${body.budget}/${body.envelope}`,
  "run.nominated": ({body}) => body.nominated ? "is preempted before its owner’s other runs" : "is no longer nominated",
  "traffic.order": ({body}) => `backend ${body.backend} ${ORDERS[body.order] || "restored"}`,
};

export function saying(event) {
  const own = plain([event.reason, event.message].filter(Boolean).join(": ")), more = SAYS[event.kind];
  try { return [own, more && !event.message && more(event)].filter(Boolean).join(": "); } catch { return own; }  // an entry of another version
}

const VIEWS = {Run: (name) => `/runs/${name}`, Budget: () => "/gpu#budgets", Reservation: () => "/gpu#reservations", Node: (name) => `/cpu/${name}`};

// A link where there is a view; null where the entry is about nothing that has a name.
export function about({kind, object, body}) {
  if (kind === "traffic.order" && body) return link(`/traffic/${encodeURIComponent(body.group)}`, `group/${body.group}`);
  if (!object) return null;
  const words = `${object.kind.toLowerCase()}/${object.name}`, view = Object.hasOwn(VIEWS, object.kind) && VIEWS[object.kind](encodeURIComponent(object.name));
  return view ? el("a", {class: nameClass("run", words), href: view}, words) : words;
}
