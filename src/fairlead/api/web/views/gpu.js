// The GPU governor: what each device does, leases over time, envelopes, the queue, debts, runs, reservations.
import {envelopeActions, reservationActions} from "../lib/actions.js";
import {readdress} from "../lib/address.js";
import {read} from "../lib/api.js";
import {burnDown} from "../lib/burndown.js";
import {DeviceMap} from "../lib/devices.js";
import {bar, count, el, hours, link, moment, number, onPhone, pace, section, soft, Table} from "../lib/dom.js";
import {Gantt, ganttKey} from "../lib/gantt.js";
import {debtGraph} from "../lib/graph.js";
import {NodePages} from "../lib/nodes.js";
import {introduce, ownerKey} from "../lib/owners.js";
import {amount, RunList, runLink, whyCell} from "../lib/runs.js";
import {conditions, plain} from "../lib/words.js";

const WAITS = {NotDue: "not due yet"};
const STATES = {Pending: "warn", Active: "good", Released: "soft", Blocked: "bad"};
const PARTS = [["devices", "Devices"], ["timeline", "Timeline"], ["budgets", "Budgets"], ["queue", "Queue"], ["runs", "Runs"], ["reservations", "Reservations"], ["owes", "Who owes whom"]];
const MINUTE = 60000, RANGES = {"20min": 20 * MINUTE, "3h": 180 * MINUTE, "1d": 1440 * MINUTE, "7d": 10080 * MINUTE};
const FIT = "fit", LEAST = 2 * MINUTE, AHEAD = 2;
const PACE_MS = 1000, NODES = onPhone ? 24 : 48, TIMELINE_NODES = onPhone ? 8 : 16, QUEUE = 10, RESERVATIONS = 100;

function budgetCells(row) {
  const name = `${row.budget}/${row.envelope}`, more = row.more;
  const where = Object.entries(row.location).map((pair) => pair.join("=")).join(", ");
  const parts = [["used", row.used_gpu_hours], ["held", row.held_gpu_hours], ["overdraft", row.overdraft_gpu_hours]].filter(([, used]) => used);
  return [[name, where && el("div", {class: "soft"}, where), envelopeActions(row)], ownerKey(row.owner), row.flavor,
    bar(`GPUs of ${name}`, row.used_gpus, row.limit_gpus, "GPUs"),
    [bar(`GPU-hours of ${name}`, row.used_gpu_hours + row.held_gpu_hours, row.limit_gpu_hours, "GPU-hours"),
      parts.map(([word, used]) => el("div", {class: word === "overdraft" ? "bad" : "soft"}, `${hours(used)} ${word}`))],
    more ? burnDown(more) : "–", number(row.lent_gpus), conditions(row.conditions).map(([style, words, name]) => el("div", {class: style, title: name}, words))];
}

function queueCells(run) {
  const start = run.earliest_start && [moment(run.earliest_start), run.after && [" after ", runLink(run.after)], run.assumed && el("div", {class: "soft"}, "its end is assumed")];
  return [String(run.position), runLink(run.name), ownerKey(run.owner), amount(`${run.gpus} ${run.flavor}`), whyCell(run), start || soft("not known"), moment(run.submitted)];
}

function reservationCells(item) {
  const status = item.status, short = status.shortfallGPUs;
  const why = plain(status.message || WAITS[status.reason] || status.reason || "");
  return [[item.metadata.name, reservationActions(item)], runLink(item.spec.run), moment(item.spec.earliestStart),
    el("span", {class: STATES[status.state] || "warn"}, status.state),
    short ? `${why} (${count(short, "GPU")} short)` : why,
    status.outcome === null ? "–" : link(`/preemption/${status.outcome}`, `#${status.outcome}`)];
}

const owesCells = (row) => [ownerKey(row.borrower), ownerKey(row.lender), number(row.gpus), hours(row.gpu_hours)];

// Ask again only after so long: a busy ledger has several events a second.
function every(ms, ask) {
  let last = -Infinity;
  return async (known) => {
    if (performance.now() - last < ms) return;
    last = performance.now();
    await ask(known);
  };
}

// From the oldest lease of the last day to the last end that is expected: a young ledger would be a stripe in two
// days, and so would short leases beside a reservation for tomorrow.
function fitted(data) {
  const time = (text) => new Date(text).getTime(), now = time(data.now);
  const from = Math.max(time(data.since), Math.min(now - LEAST, ...data.leases.map((lease) => time(lease.start))));
  const ends = [...data.leases.filter((lease) => !lease.end && lease.expected_end).map((lease) => time(lease.expected_end)),
    ...[...data.reservations, ...data.forecast].map((each) => time(each.end || each.start))];
  const to = Math.min(time(data.until), now + AHEAD * (now - from), Math.max(now + LEAST, ...ends));
  return {...data, since: new Date(from).toISOString(), until: new Date(to).toISOString()};
}

class Timeline {
  constructor(query, nodes) {
    this.nodes = nodes;
    this.range = RANGES[query.range] ? query.range : null;
    this.gantt = new Gantt();
    this.buttons = el("div", {class: "choices", role: "group", "aria-label": "Range"});
    this.root = el("div", null, this.buttons, this.gantt.root, ganttKey(), this.gantt.notes);
  }

  async refresh(known) {
    const now = Date.now(), half = RANGES[this.range || "1d"], asked = JSON.stringify([this.range, this.nodes.query]);
    const data = await read("/v1/timeline", {since: new Date(now - half).toISOString(), until: new Date(now + half).toISOString(), limit: TIMELINE_NODES, ...this.nodes.query});
    await known;
    if (asked !== JSON.stringify([this.range, this.nodes.query])) return;
    this.show(this.range ? data : fitted(data), this.range || FIT);
  }

  show(data, shown) {
    this.gantt.show(data);
    if (this.shown === shown) return;
    this.shown = shown;
    this.buttons.replaceChildren(...[FIT, ...Object.keys(RANGES)].map((range) => el("button", {type: "button", class: "chip", "aria-pressed": String(range === shown), click: () => {
      this.range = range === FIT ? null : range;
      readdress({range: this.range});
      this.refresh();
    }}, range === FIT ? "What there is" : `± ${range.replace(/(\d+)/, "$1 ")}`)));
  }
}

export function open(root, context) {
  const budgets = new Table("Budgets", ["Envelope", "Owner", "Flavor", "GPUs in use", "GPU-hours used and held", "Hours left over the period", "Lent", "Conditions"],
    {key: (row) => `${row.budget}/${row.envelope}`, cells: budgetCells, nothing: "No budgets yet: fairlead apply -f budgets.yaml"});
  const waiting = new Table("Queue", ["Place", "Run", "Owner", "GPUs", "Why it waits", "Earliest start", "Submitted"],
    {key: (run) => run.uid, cells: queueCells, nothing: "No run waits.", brief: true});
  const reservations = new Table("Reservations", ["Reservation", "Run", "Start", "State", "Why", "Outcome"],
    {key: (item) => item.metadata.uid, cells: reservationCells, nothing: "No reservations: fairlead reserve RUN --at TIME"});
  const debts = new Table("Who owes whom", ["Borrower", "Lender", "GPUs now", "GPU-hours ever"],
    {key: (row) => `${row.borrower} ${row.lender}`, cells: owesCells, numbers: ["GPUs now", "GPU-hours ever"], nothing: "No owner ever borrowed."});
  for (const [table, name] of [[budgets, "budget"], [waiting, "queue"], [reservations, "reservation"], [debts, "owes"]]) table.body.id = `${name}-rows`;
  const showNodes = async (known) => {
    const asked = nodes.query, [page] = await Promise.all([read("/v1/devices", {limit: NODES, ...asked}), known]);
    if (JSON.stringify(asked) !== JSON.stringify(nodes.query)) return;
    map.show(page);
    nodes.show(page);
  };
  const nodes = new NodePages(context.query, () => Promise.all([showNodes(), time.refresh()]).catch(() => { /* the next refresh says why */ }));
  const map = new DeviceMap(), time = new Timeline(context.query, nodes), runs = new RunList(context.query), graph = el("div"), more = el("p", {class: "soft"}), booked = el("p", {class: "soft"});
  root.append(el("h1", null, "GPU"), el("nav", {class: "parts", "aria-label": "Parts of this view"}, PARTS.map(([id, words]) => el("a", {href: `#${id}`}, words))),
    section("devices", "Devices", nodes.filter, map.root, nodes.pages), section("timeline", "Timeline", time.root), section("budgets", "Budgets", budgets.root),
    section("queue", "Queue", waiting.root, more), section("runs", "Runs", runs.root),
    section("reservations", "Reservations", reservations.root, booked), section("owes", "Who owes whom", el("div", {class: "beside"}, graph, debts.root)));
  let rows = [], series = new Map(), owed = "";
  const showBudgets = () => budgets.show(rows.map((row) => ({...row, more: series.get(`${row.budget}/${row.envelope}`)})));
  const burning = every(10_000, async () => {
    series = new Map((await read("/v1/burndown")).map((row) => [`${row.budget}/${row.envelope}`, row]));
    showBudgets();
  });
  const owing = every(5_000, async (known) => {
    const [found] = await Promise.all([read("/v1/owes"), known]), said = JSON.stringify(found);
    debts.show(found);
    if (said !== owed) graph.replaceChildren(...(found.length ? [debtGraph(found)] : []));
    owed = said;
  });
  const paced = pace(PACE_MS), drawing = every(2_000, (known) => time.refresh(known));
  return {
    async refresh() {
      await paced();
      // Owners are introduced before anything of theirs is drawn; all is asked for at once.
      const known = read("/v1/budgets").then((found) => { introduce(found.map((row) => row.owner)); rows = found; showBudgets(); });
      const after = async (asked) => { const [found] = await Promise.all([asked, known]); return found; };
      const parts = [known,
        showNodes(known),
        after(read("/v1/queue", {limit: QUEUE})).then((page) => {
          waiting.show(page.items);
          more.textContent = page.next === null ? "" : `The first ${page.items.length} of ${count(page.total, "waiting run")}; Pending in the list below has all.`;
        }),
        runs.refresh(known),
        read("/v1/objects/Reservation", {limit: RESERVATIONS}).then((found) => {
          reservations.show(found.items);
          booked.textContent = found.next === null ? "" : `The first ${RESERVATIONS} by name; fairlead get reservations lists all.`;
        }),
      ];
      await Promise.all([...parts, drawing(known), burning(), owing(known)]);
    },
  };
}
