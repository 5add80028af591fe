// What an operator or an owner can do from a view. Each function returns the buttons that this reader may use, or
// nothing; each button asks first and says what it leads to. The server decides in any case.
import {read, send} from "./api.js";
import {ask, field} from "./dialog.js";
import {count, el, number, Table} from "./dom.js";
import {mayActFor, who} from "./session.js";
import {payer, plain} from "./words.js";

const API = "fairlead.dev/v1alpha1";
const named = (kind, name) => `/v1/objects/${kind}/${encodeURIComponent(name)}`;
const act = (kind, name, verb, query) => send("POST", `${named(kind, name)}/actions/${verb}`, undefined, query);
const dry = {dry_run: true};

function button(text, click, {danger = false} = {}) {
  return el("button", {type: "button", class: danger ? "act danger" : "act", click}, text);
}

function bar(label, ...buttons) {
  const shown = buttons.flat().filter(Boolean);
  return shown.length ? el("div", {class: "actions", role: "group", "aria-label": label}, shown) : "";
}

const paragraph = (...children) => el("p", null, ...children);

// --- what a preview says

export function oddsOf(risk) {
  if (risk.certain || risk.oneIn === (risk.times || 1) || (risk.chance === 1 && !risk.chanceError)) return "certain";
  const error = risk.chanceError ? ` ±${Math.round(risk.chanceError * 100)}` : "";
  return `${Math.round(risk.chance * 100)}${error} % (first draw: ${risk.times || 1} in ${risk.oneIn})`;
}

function table(label, columns, rows, key) {
  const shown = new Table(label, columns, {key, cells: (row) => row, nothing: ""});
  shown.show(rows);
  return shown.root;
}

// A preemption preview: which runs would lose what, and the odds.
export function forecast(found, {none = "No run would be preempted."} = {}) {
  if (!found) return paragraph("The control plane gives no preview.");
  if (found.refusal) return paragraph("It is not funded, so no run would be preempted for it: ", plain(found.refusal.message));
  const ended = found.ended && found.ended.runs ? [paragraph(`Assumes that ${count(found.ended.runs, "run")} with ${count(found.ended.gpus, "GPU")} will have ended by then, as duration or maxRuntime says, and that the others run on.`)] : [];
  if (!found.scope || !found.deficitGPUs) return [paragraph(none), ...ended];
  const lack = `${count(found.deficitGPUs, "GPU")} of ${found.scope.flavor} ${found.deficitGPUs === 1 ? "is" : "are"} missing`;
  if (found.shortfallGPUs) return paragraph(`${lack}; preempting every candidate would leave ${number(found.shortfallGPUs)} missing, so no run is preempted.`);
  const rows = [...found.cuts.map((cut) => [cut.run, cut.owner, cut.kind === "Shrink" ? `shrinks by ${count(cut.gpus, "GPU")}` : `loses ${count(cut.gpus, "spare")}`, "by rule"]),
    ...found.atRisk.map((risk) => [risk.run, risk.owner, oddsOf(risk) === "certain" ? "is preempted" : "may be selected", oddsOf(risk)])];
  return [paragraph(`${lack}; preemption candidates and their odds:`),
    table("Preemption candidates", ["Run", "Owner", "Effect", "Odds"], rows, (row) => row.slice(0, 3).join("/")), ...ended];
}

// Who would pay for a run, and where it would start.
export function fundingPlan(plan) {
  if (!plan.funded) {
    const refused = plan.refusal ? plain(plan.refusal.message) : "no envelope pays for it";
    const how = plan.overdraft ? ` It may start unfunded, as overdraft of ${plan.overdraft.budget}/${plan.overdraft.envelope}, and is preempted first.`
      : plan.recall ? ` It would take back ${count(plan.recall.gpus, "GPU")} that its owner lent.` : " It would wait in the queue.";
    return paragraph(el("b", {class: "warn"}, "Not funded: "), refused, ".", how);
  }
  const rows = plan.plan.map((line) => [`${line.budget}/${line.envelope}`, line.owner || "", number(line.gpus), `${payer(line.tier)}${line.borrowed ? ", borrowed" : ""}`]);
  return [paragraph(el("b", {class: "good"}, "Funded"), `: ${count(plan.gpus, "GPU")}. `, plan.starts ? "It would start now." : plan.placement.shortfall_gpus ? "It would wait for free devices." : "It would wait: a start now would delay a run before it in the queue."),
    rows.length > 0 && table("Funding plan", ["Envelope", "Owner", "GPUs", "From"], rows, (row) => row[0] + row[3])];
}

// Leases that a smaller budget would no longer fund.
export function demotions(unfunded) {
  if (!unfunded.length) return paragraph("No lease would lose its funding.");
  const rows = unfunded.map((row) => [row.run, row.owner, number(row.gpus), `${row.hours ? "GPU-hours" : "GPUs"} of ${row.cap} ${row.name}`, row.lease]);
  return [paragraph(`${count(unfunded.length, "lease")} would be unfunded. Unfunded leases keep running, and are preempted first.`),
    table("Leases that would be unfunded", ["Run", "Owner", "GPUs", "Over", "Lease"], rows, (row) => row[4])];
}

// What applying one manifest would lead to.
export function effects(change) {
  const preview = change.preview || {}, kind = change.object.kind;
  return [kind === "Run" ? fundingPlan(preview) : kind === "Budget" ? demotions(preview.unfunded || [])
    : kind === "Reservation" ? forecast(preview.forecast, {none: "Devices are free then: no run would be preempted."}) : "",
  (change.warnings || []).map((text) => paragraph(el("b", {class: "warn"}, "Warning: "), text))];
}

// --- runs

function onRun(name, verb, words, query) {
  return ask({...words, perform: async () => {
    const change = await act("Run", name, verb, query);
    return change.change === "unchanged" ? `${name}: it was so already.` : words.done;
  }});
}

function shrink(run) {
  const {name} = run.metadata, {width} = run.status, least = run.spec.malleable.minTotalGPUs;
  ask({title: `Shrink ${name}`, consequence: `The run keeps fewer GPUs and goes on. Its process is told before devices are taken.`,
    fields: [field("GPUs to keep", "width", {type: "number", min: least, max: width, value: least, required: true, path: "query.width",
      hint: `it has ${width}, and needs at least ${least}`})],
    confirm: "Shrink the run", danger: true, perform: async ({width: wanted}) => {
      await act("Run", name, "shrink", {width: wanted});
      return `${name} shrinks to ${count(Number(wanted), "GPU")}.`;
    }});
}

function inTwoHours() {
  const at = new Date(Date.now() + 2 * 3600 * 1000);
  at.setMinutes(at.getMinutes() - at.getTimezoneOffset(), 0, 0);
  return at.toISOString().slice(0, 16);
}

function reserve(run) {
  const {name} = run.metadata;
  const manifest = (at) => ({apiVersion: API, kind: "Reservation", metadata: {name}, spec: {run: name, earliestStart: at ? new Date(at).toISOString() : ""}});
  ask({title: `Reserve a start for ${name}`, consequence: "The run starts at that time and not earlier. If devices are missing then, other runs are preempted by the lottery; they are told beforehand.",
    fields: [field("Earliest start, in your time", "at", {type: "datetime-local", value: inTwoHours(), required: true, path: "spec.earliestStart"})],
    preview: async ({at}) => effects((await send("POST", "/v1/apply", {manifests: [manifest(at)], dry_run: true})).items[0]),
    confirm: "Reserve", perform: async ({at}) => {
      await send("POST", "/v1/apply", {manifests: [manifest(at)]});
      return `${name} is reserved for ${new Date(at).toLocaleString()}.`;
    }});
}

function resolveRun(name) {
  ask({title: `Start ${name} now, with preemption`, consequence: "Runs that hold the devices it needs are preempted now. The conflict is recorded before the draw, and anyone can verify the draw.",
    preview: async () => forecast((await act("Run", name, "resolve", dry)).preview.forecast), confirm: "Start with preemption", danger: true,
    perform: async () => `${name} is ${(await act("Run", name, "resolve")).object.status.phase}.`});
}

// run: an object of kind Run; may: what its explanation says that the reader may do.
export function runActions(run, may = []) {
  const {name} = run.metadata, status = run.status, over = ["Completed", "Failed"].includes(status.phase);
  if (!mayActFor(run.spec.owner) || over) return "";
  const running = ["Running", "Shrunk"].includes(status.phase), pending = status.phase === "Pending";
  return bar(`Actions on run ${name}`,
    running && !status.paused && button("Pause", () => onRun(name, "pause", {title: `Pause ${name}`, confirm: "Pause the run", done: `${name} is paused.`,
      consequence: "Its process stops and keeps its devices; GPU-hours are still charged."})),
    running && status.paused && button("Resume", () => onRun(name, "resume", {title: `Resume ${name}`, confirm: "Resume the run", done: `${name} goes on.`,
      consequence: "Its process goes on where it stopped."})),
    !status.nominated && button("Nominate", () => onRun(name, "nominate", {title: `Nominate ${name}`, confirm: "Nominate the run", done: `${name} is nominated.`,
      consequence: "If runs of its owner have to be preempted, this one goes before the others."})),
    status.nominated && button("Withdraw nomination", () => onRun(name, "withdraw", {title: `Withdraw the nomination of ${name}`, confirm: "Withdraw", done: `${name} is no longer nominated.`,
      consequence: "The run is preempted like any other of its owner."})),
    running && run.spec.malleable && status.width > run.spec.malleable.minTotalGPUs && button("Shrink…", () => shrink(run)),
    pending && !status.reservation && button("Reserve…", () => reserve(run)),
    pending && may.includes("resolve") && button("Start with preemption…", () => resolveRun(name), {danger: true}),
    status.stopping ? button("Kill now", () => onRun(name, "cancel", {title: `Kill ${name}`, confirm: "Kill the run", danger: true, done: `${name} is killed.`,
      consequence: "It was asked to end. Its process is killed without waiting for its grace; what it did not save is lost."}, {force: true}), {danger: true})
    : button("Cancel", () => onRun(name, "cancel", {title: `Cancel ${name}`, confirm: "Cancel the run", danger: true, done: `${name} is being cancelled.`,
      consequence: running ? "Its process is asked to end, and is killed after its grace. The run does not start again." : "The run leaves the queue and does not start."}), {danger: true}));
}

// item: an object of kind Reservation. It has the owner of its run, which is read first.
export function reservationActions(item) {
  if (!["Pending", "Blocked"].includes(item.status.state) || !(who.admin || who.owners.length)) return "";
  const place = el("div");
  const show = () => place.append(reservationBar(item));
  if (who.admin) show();
  else read(named("Run", item.spec.run)).then((run) => { if (mayActFor(run.spec.owner)) show(); }, () => { /* without buttons */ });
  return place;
}

function reservationBar(item) {
  const {name} = item.metadata;
  return bar(`Actions on reservation ${name}`, button("Delete", () => ask({title: `Delete reservation ${name}`, confirm: "Delete the reservation", danger: true,
    consequence: `Run ${item.spec.run} waits in the queue like any other, and no run is preempted for it.`,
    perform: async () => { await send("DELETE", named("Reservation", name)); return `Reservation ${name} is deleted.`; }}), {danger: true}));
}

// --- budgets

const EDITED = [["concurrency", "GPUs at once"], ["maxGPUHours", "GPU-hours in a period"]];
const shownLimit = (value) => value === null ? "no limit" : number(value);

function changed(budget, envelope, values) {
  const envelopes = budget.spec.envelopes.map((each) => each.name !== envelope ? each
    : {...each, concurrency: Number(values.concurrency), maxGPUHours: values.maxGPUHours === "" ? null : Number(values.maxGPUHours)});
  return {apiVersion: budget.apiVersion, kind: "Budget", metadata: {name: budget.metadata.name, labels: budget.metadata.labels}, spec: {...budget.spec, envelopes}};
}

function difference(before, after) {
  const rows = EDITED.filter(([name]) => before[name] !== after[name]).map(([name, label]) => [label, shownLimit(before[name]), shownLimit(after[name])]);
  return rows.length ? table("Changes", ["Limit", "Now", "After"], rows, (row) => row[0]) : paragraph("Nothing is changed.");
}

async function editEnvelope(row) {
  const budget = await read(named("Budget", row.budget)), at = budget.spec.envelopes.findIndex((each) => each.name === row.envelope), before = budget.spec.envelopes[at];
  const put = (values, query) => send("PUT", named("Budget", row.budget), changed(budget, row.envelope, values), {expected_version: budget.metadata.resourceVersion, ...query});
  ask({title: `Edit ${row.budget}/${row.envelope}`, consequence: "A smaller limit demotes leases above it: they keep running unfunded, and are preempted first.",
    fields: [field("GPUs at once", "concurrency", {type: "number", min: 0, value: before.concurrency, required: true, path: `spec.envelopes[${at}].concurrency`}),
      field("GPU-hours in a period", "maxGPUHours", {type: "number", min: 0, step: "any", value: before.maxGPUHours, path: `spec.envelopes[${at}].maxGPUHours`, hint: "empty: no limit"})],
    preview: async (values) => {
      const found = await put(values, dry);
      return [difference(before, found.object.spec.envelopes[at]), effects(found)].flat(9).filter(Boolean);
    },
    confirm: "Change the budget", perform: async (values) => {
      const made = await put(values);
      return made.change === "unchanged" ? `${row.budget}/${row.envelope}: it was so already.` : `${row.budget}/${row.envelope} is changed.`;
    }});
}

// row: of /v1/budgets.
export function envelopeActions(row) {
  return who.admin ? bar(`Actions on ${row.budget}/${row.envelope}`, button("Edit…", () => editEnvelope(row))) : "";
}

// --- nodes

function onNode(name, verb, words) {
  return ask({...words, perform: async () => { await act("Node", name, verb); return words.done; }});
}

// item: an object of kind Node.
export function nodeActions(item) {
  if (!who.admin) return "";
  const {name} = item.metadata;
  return bar(`Actions on node ${name}`,
    !item.spec.cordoned && button("Cordon", () => onNode(name, "cordon", {title: `Cordon ${name}`, confirm: "Cordon the node", done: `${name} is cordoned.`,
      consequence: "No run is placed on it any more; those that are there stay."})),
    item.spec.cordoned && button("Uncordon", () => onNode(name, "uncordon", {title: `Uncordon ${name}`, confirm: "Uncordon the node", done: `Runs are placed on ${name} again.`,
      consequence: "Runs are placed on it again."})),
    button("Drain…", () => onNode(name, "drain", {title: `Drain ${name}`, confirm: "Drain the node", danger: true, done: `${name} is being drained.`,
      consequence: "The node is cordoned, and its runs have to leave: they are moved to free devices, or preempted and start again elsewhere.",
      preview: async () => {
        const {preview} = await act("Node", name, "drain", dry);
        if (preview.forecast) return forecast(preview.forecast);
        return preview.runs.length ? table("Runs on it", ["Run", "Then", "Why"], preview.runs.map((run) => [run.run, run.phase, plain(run.message || run.reason || "")]), (row) => row[0])
          : paragraph("No run would be preempted: none is on it, or those that are go on with spares on other nodes.");
      }}), {danger: true}));
}

// --- backends of route groups

const ORDERS = {isolate: "ejected by an admin", drain: "draining by an admin"};
const order = (group, backend, verb) => send("POST", `/v1/groups/${encodeURIComponent(group)}/backends/${encodeURIComponent(backend)}/orders/${verb}`);

function onBackend(group, backend, verb, words) {
  return ask({...words, perform: async () => {
    const made = await order(group, backend, verb);
    return made.change === "unchanged" ? `${backend}: it was so already.` : `${words.done} The agent hears of it with its next report.`;
  }});
}

// given: the order that is in force, or null.
export function backendActions(group, backend, given) {
  if (!who.admin) return "";
  return bar(`Actions on backend ${backend}`,
    given !== "drain" && button("Drain", () => onBackend(group, backend, "drain", {title: `Drain ${backend}`, confirm: "Drain the backend", done: `${backend} is to be drained.`,
      consequence: "It gets no new connections; those that are open end by themselves. The others take its share."})),
    given !== "isolate" && button("Eject", () => onBackend(group, backend, "isolate", {title: `Eject ${backend}`, confirm: "Eject the backend", danger: true, done: `${backend} is to be ejected.`,
      consequence: "It gets no traffic until it is restored. The others take its share: with too few left, admission sheds load."}), {danger: true}),
    given && button("Restore", () => onBackend(group, backend, "restore", {title: `Restore ${backend}`, confirm: "Restore the backend", done: `The order for ${backend} is lifted.`,
      consequence: "The order is lifted. The governor decides by itself again whether it serves."})));
}

// What admins ordered for the backends of a group, and buttons for those who may; kept apart from what is measured,
// which changes all the time.
export class BackendOrders {
  constructor(group) {
    this.group = group;
    this.table = new Table("Orders for backends", ["Backend", "Order", "Change"], {key: (row) => row.backend, nothing: "The group has no backends.",
      cells: (row) => [row.backend, row.order ? ORDERS[row.order] : el("span", {class: "soft"}, "none"), backendActions(group, row.backend, row.order)]});
    this.root = el("details", {class: "orders"}, el("summary", null, "Eject or restore a backend"), this.table.root);
  }

  show(names, orders) {
    this.root.hidden = !who.admin && !Object.keys(orders).length;
    this.table.show([...new Set([...names, ...Object.keys(orders)])].sort().map((backend) => ({backend, order: orders[backend] || null})));
  }
}

// --- preemption by hand

// For the operator: free GPUs of a flavor. The preview comes first.
export function resolvePreview() {
  if (!who.admin) return "";
  const body = ({flavor, gpus, location}) => ({flavor, gpus: Number(gpus),
    location: Object.fromEntries(location.split(",").map((pair) => pair.split("=").map((part) => part.trim())).filter(([name, value]) => name && value))});
  return bar("Actions on preemption", button("Free GPUs…", async () => {
    const flavors = await read("/v1/budgets").then((rows) => [...new Set(rows.map((row) => row.flavor))].sort(), () => []);
    ask({title: "Free GPUs by preemption", danger: true, confirm: "Preempt runs",
    consequence: "Spares are dropped first, then malleable runs shrink, then the lottery selects whole runs. The conflict is recorded before the draw.",
    fields: [field("Flavor", "flavor", {required: true, path: "flavor", list: "flavors", value: flavors[0]}), el("datalist", {id: "flavors"}, flavors.map((value) => el("option", {value}))), field("GPUs to free", "gpus", {type: "number", min: 1, value: 1, required: true, path: "gpus"}),
      field("Location", "location", {path: "location", hint: "such as region=west,rack=4; empty: anywhere"})],
    preview: async (values) => forecast((await send("POST", "/v1/resolve", body(values), dry)).forecast, {none: "So many GPUs are free: no run would be preempted."}),
    perform: async (values) => {
      const made = await send("POST", "/v1/resolve", body(values));
      if (made.outcome !== null) return `Outcome #${made.outcome} is recorded.`;
      return made.resolver === "enforce" ? "No run had to be preempted." : `The resolver is ${made.resolver}: no run was preempted.`;
    }});
  }, {danger: true}));
}
