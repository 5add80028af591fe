// One run: why it is as it is, its funding plan, attempts, utilisation, output, events and decisions.
import {runActions} from "../lib/actions.js";
import {read} from "../lib/api.js";
import {lineChart} from "../lib/chart.js";
import {ago, byId, count, el, hours, link, moment, number, pace, section, soft, Table} from "../lib/dom.js";
import {saying} from "../lib/events.js";
import {Output} from "../lib/output.js";
import {introduce, ownerKey} from "../lib/owners.js";
import {phaseWord, runLink} from "../lib/runs.js";
import {cap, EVENTS as KINDS, payer, plain, remedy, said as worded} from "../lib/words.js";

const EVENTS = 50, OUTPUT_MS = 2000, PACE_MS = 1000;
const NONE = () => el("span", {class: "soft none"}, "–");
const percent = (chance) => `${number(chance * 100, 1)} %`;
const entry = (seq) => link(`/ledger/${seq}`, `#${seq}`);
const decision = (seq, words = "decision") => link(`/decision/ledger/${seq}`, words);
const fact = (name, ...words) => [el("dt", null, name), el("dd", null, ...words)];

function refusalFacts(refusal) {
  const caps = refusal.binding.map((found) => el("li", null, cap(found)));
  return [caps.length ? fact("Limits that bind", el("ul", {class: "plain"}, caps)) : null,
    fact("What would fund it", refusal.remedy ? remedy(refusal.remedy) : "No single change would.")];
}

function queueFacts(queue) {
  const start = queue.earliestStart && [moment(queue.earliestStart), queue.after && [", when ", runLink(queue.after), " ends"], queue.assumed && " (its end is assumed)"];
  return [fact("Queue", `place ${queue.position} of ${queue.waiting}`), start ? fact("Earliest start", ...start.flat(2).filter(Boolean), queue.lacks ? `; it lacks ${queue.lacks}` : "") : null];
}

function lossFacts(loss) {
  const how = loss.archived ? "archived" : [loss.kinds.join(", "), loss.drawn && "selected by the lottery", loss.chance !== null && loss.chance !== undefined && `odds ${percent(loss.chance)}`].filter(Boolean).join(", ");
  return fact("Last preemption", link(`/preemption/${loss.outcome}`, `outcome #${loss.outcome}`), how ? `: ${how}` : "");
}

function endFacts(status) {
  if (!status.completionTime) return null;
  const code = status.exitCode !== null ? `exit code ${status.exitCode}` : status.exitSignal !== null ? `signal ${status.exitSignal}` : "";
  return fact("Ended", moment(status.completionTime), code && `, ${code}`, status.exitReason && `: ${status.exitReason}`);
}

function why(found) {
  const {spec, status} = found.object, forecast = found.forecast;
  const atRisk = found.atRisk.map((row) => fact("At risk", `${percent(row.chance)} odds of being preempted at `, moment(row.start), ", when a reservation is due"));
  const cordoned = found.cordoned.length && fact("Cordoned", found.cordoned.map((row) => `${row.node}: ${count(row.free, "free device")}`).join(", "));
  const odds = forecast && forecast.atRisk.length ? fact("With preemption", `would be at risk: ${forecast.atRisk.slice(0, 5).map((row) => `${row.run} ${percent(row.chance)}`).join(", ")}`) : null;
  return el("dl", {class: "run-facts"},
    fact("Now", phaseWord({phase: status.phase, paused: status.paused}), " since ", moment(status.since)),
    fact("Why", plain(status.message || status.reason || "–"), status.message && status.reason && soft(` (${status.reason})`)),
    status.refusal && refusalFacts(status.refusal), status.queue && queueFacts(status.queue),
    status.reservation && fact("Reservation", status.reservation), cordoned || null,
    status.preempting && fact("Gives up", `${count(status.preempting.length, "lease")} by `, moment(status.graceEnds)),
    atRisk, found.cut && lossFacts(found.cut), odds, endFacts(status),
    fact("Asked for", `${count(spec.totalGPUs, "GPU")} of ${spec.flavor}`, spec.duration ? `, about ${spec.duration}` : "", status.nominated ? ", nominated" : ""));
}

function funding(found) {
  const {cover, placement} = found, lines = cover && cover.output ? cover.output.plan : [];
  const table = new Table("Funding plan", ["Envelope", "Owner", "GPUs", "From", "Borrowed"], {key: (line) => `${line.budget}/${line.envelope}`,
    cells: (line) => [`${line.budget}/${line.envelope}`, ownerKey(line.owner), String(line.gpus), payer(line.tier), line.borrowed ? "borrowed" : "no"],
    nothing: cover ? "No envelope pays." : "Nothing is decided yet."});
  table.show(lines);
  const placed = placement && placement.output && placement.output.groups.map((group) => [...group.active, ...group.spares.map((slot) => `${slot} (spare)`)].join(", ")).join("; ");
  return [table.root, el("p", {class: "soft"}, cover && ["Decided ", moment(cover.time), ": ", decision(cover.seq, "who pays")],
    placement && [", ", decision(placement.seq, "where it runs"), placed && `: ${placed}`])];
}

const attemptCells = (row) => {
  const reasons = [...new Set(row.leases.map((lease) => lease.reason).filter(Boolean))];
  const payers = [...new Set(row.leases.map((lease) => `${lease.budget}/${lease.envelope}${lease.borrowed ? " (borrowed)" : ""}`))];
  return [String(row.attempt), moment(row.start), row.end ? moment(row.end) : el("span", {class: "good"}, "running"), row.length,
    row.leases.flatMap((lease) => lease.slots).join(", "), payers.join(", "), reasons.join(", ") || "–", hours(row.leases.reduce((sum, lease) => sum + lease.gpu_hours, 0))];
};

function eventCells(row) {
  return [entry(row.seq), moment(row.time), el("span", {title: row.kind}, worded(KINDS, row.kind)), row.words || NONE(), row.author, row.decides ? decision(row.seq) : NONE()];
}

export function open(root, context) {
  const {name} = context.params, path = encodeURIComponent(name), head = el("p", {class: "summary"}), reasons = el("div"), plan = el("div"), use = el("div"), note = el("p", {class: "soft"});
  const attempts = new Table("Attempts", ["Attempt", "Started", "Ended", "Length", "Devices", "Paid by", "How it ended", "GPU-hours"],
    {key: (row) => row.attempt, cells: attemptCells, numbers: ["Length", "GPU-hours"], nothing: "It has not started yet."});
  const events = new Table("Events", ["Entry", "Time", "Event", "What", "Author", "Decision"], {key: (row) => row.seq, cells: eventCells, nothing: "No events.", brief: true});
  attempts.body.id = "attempt-rows";
  events.body.id = "run-event-rows";
  const output = new Output(name), more = el("button", {type: "button", click: () => { pages += 1; refresh(); }}, "Earlier events");
  root.append(el("h1", null, name), head, el("div", {id: "run-actions"}), section("why", "Why", reasons), section("funding", "Funding plan", plan),
    section("attempts", "Attempts", attempts.root), section("use", "Utilisation", use), section("output", "Output", output.root), section("events", "Events and decisions", events.root, note, more));
  let pages = 1, said = "", usedSaid = "", owner = null, reading = false, gone = null;
  const paced = pace(PACE_MS);

  async function readOutput() {
    if (reading || owner === null) return;
    reading = true;
    try { await output.refresh(owner); } finally { reading = false; }
  }

  function show(found) {
    const {metadata, spec, status} = found.object, text = JSON.stringify([found.object, found.cover, found.placement, found.atRisk, found.cut, found.forecast, found.cordoned]);
    owner = spec.owner;
    if (text === said) return;
    said = text;
    head.replaceChildren(phaseWord({phase: status.phase, paused: status.paused}), " · ", ownerKey(spec.owner), ` · ${status.width} of ${spec.totalGPUs} ${spec.flavor} · submitted `,
      moment(metadata.creationTimestamp), ...(status.virtual ? [" · virtual devices"] : []));
    root.querySelector("#run-actions").replaceChildren(runActions(found.object, found.may));
    reasons.replaceChildren(why(found));
    plan.replaceChildren(...funding(found));
  }

  function showUse(readings, status) {
    const text = JSON.stringify(readings);
    if (text === usedSaid) return;
    usedSaid = text;
    const points = readings.map((row) => [new Date(row.time).getTime(), row.percent]);
    use.replaceChildren(points.length ? lineChart("How busy its devices were", [{name: "Utilisation", points}], {unit: "%", high: 100})
      : el("p", {class: "empty"}, status.virtual ? "Its devices are virtual: there is nothing to measure." : "Nothing was measured: it does not run, or its node has no meter."));
  }

  function showParts(there) {
    for (const part of ["why", "funding", "attempts", "use", "output"]) byId(part).parentElement.hidden = !there;
  }

  // A run that was deleted has no state any more; what happened to it is in the ledger. Another may get its name.
  async function showDeleted(error) {
    const found = await read("/v1/entries", {object: `Run/${name}`, limit: EVENTS});
    if (!found.items.length) throw error;
    const last = found.items.find((row) => row.kind.startsWith("object."));
    gone = !last || last.kind === "object.deleted" ? error : null;
    if (!gone) { showParts(true); return; }
    showParts(false);
    const deleted = found.items.find((row) => row.kind === "object.deleted");
    head.replaceChildren(el("span", {class: "warn"}, "Deleted"), ...(deleted ? [" ", moment(deleted.time), ` by ${deleted.author}`] : []), ". What happened to it stays in the ledger: ",
      link(`/ledger?object=${encodeURIComponent(`Run/${name}`)}`, "all entries about it"), ".");
    root.querySelector("#run-actions").replaceChildren();
    events.show(found.items.map((event) => ({seq: event.seq, time: event.time, kind: event.kind, author: event.author, words: saying(event), decides: /^gpu\./.test(event.kind) && event.body.output !== undefined})));
    more.hidden = true;
    owner = null;
  }

  async function refresh() {
    await paced();
    if (gone) { await showDeleted(gone); if (gone) return; }
    try { await showRun(); } catch (error) { if (error.status !== 404) throw error; await showDeleted(error); }
  }

  async function showRun() {
    const [found, budgets] = await Promise.all([read(`/v1/explain/Run/${path}`), said ? [] : read("/v1/budgets")]);
    introduce(budgets.map((row) => row.owner));
    const history = await read(`/v1/runs/${path}/history`, {limit: EVENTS});
    const all = [...history.events], decided = new Set(history.decisions);
    let next = history.next;
    for (let page = 1; page < pages && next !== null; page += 1) {
      const earlier = await read(`/v1/runs/${path}/history`, {limit: EVENTS, cursor: next});
      all.push(...earlier.events);
      earlier.decisions.forEach((seq) => decided.add(seq));
      next = earlier.next;
    }
    show(found);
    attempts.show(history.attempts.map((row) => ({...row, length: ago((row.end ? new Date(row.end) : new Date()) - new Date(row.start))})));
    showUse(history.use, found.object.status);
    events.show(all.map((event) => ({seq: event.seq, time: event.time, kind: event.kind, author: event.author, words: saying(event), decides: decided.has(event.seq)})));
    more.hidden = next === null;
    note.textContent = history.complete ? "" : "Events from before the server's start are shown as far as the run's starts cite them; the ledger has all.";
    await readOutput();
  }

  const timer = setInterval(() => output.allowed && readOutput().catch(() => { /* the next refresh says so */ }), OUTPUT_MS);
  return {refresh, close() { clearInterval(timer); }};
}
