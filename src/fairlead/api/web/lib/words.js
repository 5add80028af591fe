// What the engine says, for people. The record keeps its words; the page says the same in plain ones.
import {stamp} from "./dom.js";

// What a change of a limit would allow: (its owner, the new value, the value now).
const LIMITS = {
  "envelope-concurrency": (name, to, now) => `envelope ${name} allowed ${gpus(to)} at once${now}`, "aggregate-concurrency": (name, to, now) => `cap ${name} allowed ${gpus(to)} at once${now}`,
  "envelope-hours": (name, to, now) => `envelope ${name} had ${to} GPU-hours${now}`, "aggregate-hours": (name, to, now) => `cap ${name} had ${to} GPU-hours${now}`,
  "lending-concurrency": (name, to, now) => `envelope ${name} lent ${gpus(to)} at once${now}`, "lending-hours": (name, to, now) => `envelope ${name} lent ${to} GPU-hours${now}`,
  "lending-acl": (name, to) => `envelope ${name} lent to ${to}`, "borrow-limit": (name, to, now) => name === "allow_borrow" ? "the run were allowed to borrow" : `the run were allowed to borrow ${gpus(to)}${now}`,
};
// Kinds of entries, for people; the ledger view has the kinds themselves.
export const EVENTS = {
  "object.applied": "applied", "object.deleted": "deleted", "run.phase": "run", "run.cut": "preempted", "run.grown": "grown", "run.nominated": "nomination", "run.warned": "at risk",
  "lease.open": "lease opened", "lease.close": "lease ended", "lease.unfunded": "lease unfunded", "lease.funded": "lease funded",
  "charge.hold": "GPU-hours held", "charge.post": "GPU-hours charged", "charge.void": "hold released", "budget.condition": "budget", "reservation.state": "reservation",
  "gpu.fund": "funding decided", "gpu.place": "placement decided", "gpu.queue": "queue decided", "gpu.backfill": "backfill decided", "gpu.start": "start decided", "gpu.reserve": "reservation decided",
  "gpu.recall": "recall decided", "gpu.rank": "order decided", "gpu.idle": "idle time counted", "gpu.deficit": "shortage decided", "gpu.activate": "reservation due", "gpu.restart": "restart decided", "gpu.resize": "width decided", "gpu.grow": "growth decided",
  "gpu.limit": "limit decided", "gpu.after": "dependency decided", "gpu.refund": "funding renewed", "gpu.overdraw": "overdraft decided", "gpu.quarantine": "quarantine decided", "gpu.used": "use measured", "gpu.control": "action",
  "gpu.resolve.commit": "lottery committed", "gpu.resolve.draw": "lottery drawn", "gpu.resolve.applied": "lottery carried out", "gpu.resolve.void": "lottery voided", "gpu.resolve.case": "preemption asked for",
  "ledger.snapshot": "snapshot", "ledger.created": "ledger created", "ledger.archived": "archived", "access.token": "token", "access.user": "user", "key.rotated": "key rotated", "traffic.order": "backend order",
  "gpu.beacon": "beacon value", "gpu.resolve.asked": "preemption asked for", "gpu.resolve.nonce": "nonce added", "gpu.resolve.passed": "preemption step passed", "gpu.resolve.scope": "lottery begun",
  "clock.anchored": "clock anchored", "clock.held": "clock jumped", "control.recovered": "recording again", "job.gone": "foreign process ended", "job.unknown": "foreign process runs",
  "owner.key": "owner’s key", "owner.pseudonym": "owner’s pseudonyms", "pod.mismatch": "pod differs from its lease",
};
const CONDITIONS = {
  Healthy: ["good", "healthy"], NearLimit: ["warn", "near its limit"], Exhausted: ["bad", "hours used up"], Overcommitted: ["bad", "over its limit"], UnusedLendingEntry: ["warn", "lends to an unknown owner"],
};
const CAPS = {envelope: "envelope", aggregate: "cap", lending: "lending of envelope", acl: "owners that may borrow from", borrow: "borrowing:"};
const TIERS = {own: "its own", sibling: "a sibling", parent: "its parent", cousin: "a cousin", sponsor: "a sponsor"};
const ELSEWHERE = "-elsewhere";
const MOMENT = /\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z/g;
const REMEDY = /([a-z]+-[a-z]+) of (\S+) from (.+?) to (.+?)( would do)?$/;

// The words of a code. Codes come from agents and may be any text, such as "constructor", which every object has.
export const said = (words, code) => Object.hasOwn(words, code) ? words[code] : code;

// Conditions of a budget: [[colour, words, name], …]. It can be healthy and near its limit at once; the page says what matters.
export const conditions = (names) => names.filter((name) => name !== "Healthy" || names.length === 1)
  .map((name) => [...(Object.hasOwn(CONDITIONS, name) ? CONDITIONS[name] : ["warn", name]), name]);

// Whose envelope pays, seen from the run's owner.
export const payer = (tier) => tier.endsWith(ELSEWHERE) ? `${said(TIERS, tier.slice(0, -ELSEWHERE.length))}, at another location` : said(TIERS, tier);

const gpus = (value) => `${value} ${value === "1" ? "GPU" : "GPUs"}`;
const UNSET = ["", "null", "None", "none"];

// Values as a manifest or a recorded sentence has them: a list, or its text with brackets and quotes.
function changed(change, name, from, to) {
  const [was, will] = [from, to].map((value) => String(Array.isArray(value) ? value.join(", ") : value).replace(/[[\]()'"]/g, "").replace(/^\d+\.\d{3,}$/, (long) => String(Math.ceil(long * 100) / 100)));
  return LIMITS[change](name, will, UNSET.includes(was) ? "" : ` (now ${was})`);
}

// "… ; envelope-concurrency of a/b from 4 to 6 would do" says what to change, and how. Moments are the reader's own time.
export function plain(text) {
  return text.replace(MOMENT, stamp).replace(/\b1 GPUs\b/g, "1 GPU").replace(/\b1 draws\b/g, "1 draw").replace(REMEDY, (whole, change, target, from, to) =>
    Object.hasOwn(LIMITS, change) ? `it would be funded if ${changed(change, target, from, to)}` : whole);
}

export const remedy = (found) => `It would be funded if ${changed(found.change, found.budget ? `${found.budget}/${found.name}` : found.name, found.from, found.to)}.`;
export const cap = (found) => `${CAPS[found.kind] || found.kind} ${found.budget ? `${found.budget}/` : ""}${found.name}: ${found.used ?? "–"} of ${found.limit ?? "no"} in use`;
