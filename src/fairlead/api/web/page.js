// Reads what anybody may read, and shows it: tables every few seconds and after every event, events
// as they happen. Text is only ever set as text: what others named cannot become markup.
"use strict";

const EVERY_MS = 5000, SOON_MS = 300, EVENTS_MAX = 200, EVENTS_AT_FIRST = 50, OUTCOMES_MAX = 20;
const PHASES = {Running: "good", Completed: "soft", Failed: "bad", Pending: "warn"};
const STATES = {Pending: "warn", Active: "good", Released: "soft", Blocked: "bad"};
const CONDITIONS = {Healthy: "good", NearLimit: "warn", Exhausted: "bad", Overcommitted: "bad"};
const byId = (id) => document.getElementById(id);

async function read(path) {
  const reply = await fetch(path, {headers: {Accept: "application/json"}});
  if (!reply.ok) throw new Error(`${path}: ${reply.status}`);
  return reply.json();
}

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function moment(text) {
  const made = element("time", new Date(text).toLocaleTimeString());
  made.dateTime = text;
  made.title = new Date(text).toLocaleString();
  return made;
}

const number = (value) => value.toLocaleString(undefined, {maximumFractionDigits: 2});

// A bar and the same in words; without a limit the words alone.
function bar(label, taken, limit, unit) {
  const words = element("span", limit === null
    ? `${number(taken)} ${unit}, no limit`
    : `${number(taken)} of ${number(limit)} ${unit}`);
  if (limit === null) return [words];
  const meter = element("meter");
  Object.assign(meter, {min: 0, max: limit || 1, high: (limit || 1) * 0.9, optimum: 0});
  meter.value = Math.min(taken, limit || 1);
  meter.setAttribute("aria-label", `${label}: ${words.textContent}`);
  return [meter, words];
}

// Rows by key: what did not change is left alone, so that focus and selection stay where they are.
function fill(id, items, key, cells, nothing) {
  const body = byId(id), old = new Map();
  for (const row of body.rows) old.set(row.dataset.key, row);
  const rows = items.map((item) => {
    const row = old.get(key(item)) || element("tr");
    const said = JSON.stringify(item);
    if (row.dataset.said !== said) {
      row.dataset.key = key(item);
      row.dataset.said = said;
      row.replaceChildren(...cells(item).map((content, at) => {
        const cell = element(at ? "td" : "th");
        if (!at) cell.scope = "row";
        cell.append(...[content].flat());
        return cell;
      }));
    }
    return row;
  });
  if (!rows.length) {
    const row = element("tr"), cell = element("td", nothing, "empty");
    cell.colSpan = body.parentElement.tHead.rows[0].cells.length;
    row.append(cell);
    rows.push(row);
  }
  body.replaceChildren(...rows);
}

function budgetCells(row) {
  const name = `${row.budget}/${row.envelope}`;
  const where = Object.entries(row.location).map((pair) => pair.join("=")).join(", ");
  const hours = row.used_gpu_hours + row.held_gpu_hours;
  return [
    [name, ...(where ? [element("div", where, "soft")] : [])],
    row.owner, row.flavor,
    bar(`GPUs of ${name}`, row.used_gpus, row.limit_gpus, "GPUs"),
    bar(`GPU-hours of ${name}`, hours, row.limit_gpu_hours, "GPU-hours"),
    number(row.lent_gpus),
    row.conditions.map((each) => element("div", each, CONDITIONS[each] || "warn")),
  ];
}

function why(status) {
  const refusal = status.refusal;
  if (!refusal) return [[status.reason, status.message].filter(Boolean).join(": ")];
  const help = refusal.remedy ? [] : [element("div", "No single change would fund it.", "soft")];
  return [`${refusal.code}: ${refusal.message}`, ...help];
}

function runCells(run) {
  const status = run.status, phase = status.paused ? "Paused" : status.phase;
  return [
    run.metadata.name, run.spec.owner, `${status.width} of ${run.spec.totalGPUs} ${run.spec.flavor}`,
    element("span", phase, PHASES[phase] || "warn"), why(status), moment(status.since),
  ];
}

function leaseCells(row) {
  return [
    row.run, row.owner, row.slots.join(", "), `${row.budget}/${row.envelope}`,
    row.borrowed ? "borrowed" : "no",
    element("span", row.funded ? "funded" : "unfunded", row.funded ? "" : "bad"),
    number(row.gpu_hours),
  ];
}

function reservationCells(item) {
  const status = item.status, short = status.shortfallGPUs;
  const why = [status.reason, status.message].filter(Boolean).join(": ");
  const start = element("time", new Date(item.spec.earliestStart).toLocaleString());
  start.dateTime = item.spec.earliestStart;
  return [
    item.metadata.name, item.spec.run, start,
    element("span", status.state, STATES[status.state] || "warn"),
    short ? `${why} (${short} GPUs short)` : why, status.outcome === null ? "–" : `#${status.outcome}`,
  ];
}

function outcomeCells(row) {
  return [
    `#${row.outcome}`, element("span", row.stage, row.stage === "void" ? "soft" : ""),
    `${row.deficitGPUs} ${row.flavor}`, row.cause, row.label || "not drawn yet", moment(row.committed),
  ];
}

function headLines(head) {
  return [["Entries", number(head.size)], ["Root", head.root], ["Ledger", head.ledger],
    ["Epoch", String(head.epoch)], ["Newest entry", new Date(head.time_ms).toLocaleString()],
    ["Signed by key", head.key_id]].flatMap(([name, text]) => [element("dt", name), element("dd", text)]);
}

const ORDER = ["Running", "Shrunk", "Reserved", "Pending", "Failed", "Completed"];
const rank = (run) => ORDER.indexOf(run.status.phase);

let reading = false, again = false;
async function refresh() {
  if (reading) { again = true; return; }
  reading = true;
  try {
    const [budgets, runs, leases, reservations, outcomes, head] = await Promise.all(
      ["/v1/budgets", "/v1/objects/Run", "/v1/leases", "/v1/objects/Reservation", "/v1/outcomes",
        "/v1/head"].map(read));
    runs.items.sort((a, b) => rank(a) - rank(b) || (a.status.since < b.status.since ? 1 : -1));
    fill("budget-rows", budgets, (row) => `${row.budget}/${row.envelope}`, budgetCells,
      "No budgets yet: fairlead apply -f budgets.yaml");
    fill("run-rows", runs.items, (run) => run.metadata.uid, runCells,
      "No runs yet: fairlead submit -f run.yaml");
    fill("lease-rows", leases, (row) => row.lease, leaseCells, "No device is leased.");
    fill("reservation-rows", reservations.items, (item) => item.metadata.uid, reservationCells,
      "No reservations: fairlead reserve RUN --at TIME");
    fill("outcome-rows", outcomes.reverse().slice(0, OUTCOMES_MAX), (row) => String(row.outcome),
      outcomeCells, "No run was ever preempted.");
    byId("head").replaceChildren(...headLines(head));
    say(live ? "Live" : "Waiting for events…");
  } catch (error) {
    say(`No answer from the control plane (${error.message}); trying again`, true);
  } finally {
    reading = false;
    if (again) { again = false; soon(); }
  }
}

let timer = 0;
function soon() {
  if (!timer) timer = setTimeout(() => { timer = 0; refresh(); }, SOON_MS);
}

function say(text, lost) {
  const state = byId("state");
  if (state.textContent !== text) state.textContent = text;
  state.classList.toggle("lost", Boolean(lost));
}

let paused = false;
const waiting = [];
function show(event) {
  const about = event.object ? `${event.object.kind.toLowerCase()}/${event.object.name}` : "";
  const line = element("li");
  line.value = event.seq;
  line.append(element("span", `#${event.seq}`, "soft"), moment(event.time), element("b", event.kind),
    element("span", about), element("span", [event.reason, event.message].filter(Boolean).join(": ")));
  const list = byId("event-list");
  list.prepend(line);
  while (list.childElementCount > EVENTS_MAX) list.lastElementChild.remove();
}

function hear(event) {
  if (paused) {
    waiting.push(event);
    if (waiting.length > EVENTS_MAX) waiting.shift();
  } else {
    show(event);
  }
  soon();
}

function togglePause() {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
  byId("pause").textContent = paused ? "Go on" : "Pause";
  if (!paused) waiting.splice(0).forEach(show);
}

let live = false, heard = 0;
async function listen() {
  try {
    heard = Math.max(heard, (await read("/v1/head")).size - EVENTS_AT_FIRST);
  } catch {
    setTimeout(listen, EVERY_MS);
    return;
  }
  // Cut off, the browser connects again by itself and says which event it heard last.
  const source = new EventSource(`/v1/watch?after=${heard}`);
  source.onopen = () => { live = true; refresh(); };
  source.onerror = () => {
    live = false;
    say("Connection lost; trying again", true);
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, EVERY_MS);  // it gave up
  };
  source.onmessage = (message) => {
    const event = JSON.parse(message.data);
    heard = event.seq;
    hear(event);
  };
}

byId("pause").addEventListener("click", togglePause);
refresh();
listen();
setInterval(refresh, EVERY_MS);
