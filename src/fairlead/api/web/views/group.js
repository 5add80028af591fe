// One route group: slots, pressure, admission, latency and errors over time, and every decision that is kept.
import {BackendOrders} from "../lib/actions.js";
import {readdress} from "../lib/address.js";
import {read} from "../lib/api.js";
import {lineChart} from "../lib/chart.js";
import {el, link, moment, number, section, Table} from "../lib/dom.js";
import {facts, freshness, percent, serial, Series, stretches} from "../lib/fleet.js";
import {followReports} from "../lib/live.js";
import {Scrubber} from "../lib/scrubber.js";
import {said} from "../lib/words.js";
import {admission, REASONS, why} from "./traffic.js";

const TERMS = ["total", "queue", "latency", "error", "penalty"], LINES_MAX = 6, RATE_MS = 900;
const BANDS = {soft: "band-congested", hard: "band-overloaded"};
const REGIMES = {laminar: "requests flow freely", transition: "pressure rises", crisis: "in crisis", recovery: "recovering"};
const PLANES = {haproxy: "HAProxy", envoy: "Envoy", ebpf: "eBPF", memory: "none: simulated, in memory"};
const CAUSES = {operator: "by the operator", "health-check": "its health check fails", "connect-failures": "connections fail", outlier: "an outlier"};

function backendCells(row) {
  const slots = row.before === undefined || row.before === row.slots ? number(row.slots) : `${number(row.before)} → ${number(row.slots)}`;
  const terms = Object.entries(row.pressure).filter(([term, value]) => term !== "total" && value > 0.005).map(([term, value]) => `${term} ${number(value)}`);
  return [row.backend, slots, number(row.target), [number(row.pressure.total), el("div", {class: "soft"}, terms.join(", "))], row.p95_ms === null ? "–" : `${number(row.p95_ms, 0)} ms`,
    percent(row.error_rate), row.queue === null ? "–" : number(row.queue, 1),
    row.isolated ? el("span", {class: "bad"}, `ejected: ${said(CAUSES, row.isolated)}`) : el("span", {class: "good"}, "in service")];
}

function ofDecision({input, output}, point) {
  const before = input.state ? Object.fromEntries(input.state.backends.map((row) => [row.id, row.slots])) : {};
  return input.backends.map((row) => ({backend: row.id, slots: output.slots[row.id], before: before[row.id], target: output.target[row.id], pressure: output.pressure[row.id],
    p95_ms: row.p95_ms ?? null, error_rate: row.error_rate ?? null, queue: row.queue ?? null, isolated: row.isolated ? (point.backends[row.id] && point.backends[row.id].isolated) || "isolated" : null}));
}

// What was counted, per second, since a point of most of a second ago or more: a tick that changed something is
// reported at once, and a few milliseconds make no rate. null where the counter began anew.
function rates(points, key) {
  let last = 0;
  return points.map((point, index) => {
    while (last + 1 < index && point.time_ms - points[last + 1].time_ms >= RATE_MS) last += 1;
    const before = points[last], passed = point.time_ms - before.time_ms, known = point[key] !== null && before[key] !== null;
    return [point.time_ms, passed < RATE_MS || !known || point[key] < before[key] ? null : (point[key] - before[key]) / passed * 1000];
  });
}

export function open(root, {params, query, again}) {
  const name = params.group, path = `/v1/groups/${encodeURIComponent(name)}`, agent = {agent: query.agent};
  const about = el("dl", {class: "facts plain"}), charts = el("div", {class: "charts"}), summed = el("div", {id: "decision-summary"});
  const term = el("select", {id: "term", change: () => { readdress({term: term.value}); draw(); }}, TERMS.map((word) => el("option", {value: word, selected: word === query.term}, word)));
  const backends = new Table("Backends", ["Backend", "Slots", "Target", "Pressure", "p95", "Errors", "Queue", "State"], {key: (row) => row.backend, cells: backendCells, numbers: ["Slots", "Target", "p95", "Errors", "Queue"], nothing: "The group has no backends."});
  backends.body.id = "backend-rows";
  const series = new Series(`${path}/series`), orders = new BackendOrders(name);
  let newest = null;
  const scrubber = new Scrubber("Moment", () => { draw(); look().catch(() => { /* the next refresh says why */ }); }, query.at);
  root.append(el("h1", null, name), about, orders.root, section("over-time", "Over time", el("p", null, el("label", {for: "term"}, "Pressure by "), term), charts,
      el("p", {class: "soft"}, "Shaded among the slots: a backend is ejected. Shaded elsewhere: admission is soft, or, darker and red, hard.")),
    section("decisions", "Decisions", el("p", {class: "soft"}, "Drag to a moment, here or in a chart, or use the arrow keys, to see what the governor saw and decided. One tick a second is kept here, and each that changed something; the agent's record has all."),
      scrubber.root, summed, backends.root));

  function draw() {
    const points = series.points, at = scrubber.time === null ? null : scrubber.point && scrubber.point.time_ms;
    const last = points.at(-1), names = last ? Object.keys(last.backends) : [];
    const shown = names.length <= LINES_MAX ? names : [...names].sort((a, b) => last.backends[b].pressure.total - last.backends[a].pressure.total).slice(0, LINES_MAX).sort();
    const lines = (value) => shown.map((id) => ({name: id, points: points.map((point) => [point.time_ms, point.backends[id] ? value(point.backends[id]) : null])}));
    const bands = stretches(points, (point) => BANDS[point.mode] ? point.mode : "").map(([from, to, word]) => [from, to, BANDS[word], `admission ${word}`]);
    const ejected = stretches(points, (point) => Object.values(point.backends).some((row) => row.isolated) ? "ejected" : "").map(([from, to]) => [from, to, "band-ejected", "a backend is ejected"]);
    const options = {bands, at, gap: newest ? 4 * Math.max(newest.every_ms, 1000) : null, pick: (time) => scrubber.seek(time)};
    charts.replaceChildren(lineChart("Slots by backend", lines((row) => row.slots), {...options, bands: ejected, digits: 0}),
      lineChart(`Pressure by backend: ${term.value}`, lines((row) => row.pressure[term.value] ?? null), options),
      lineChart("Latency p95, ms", lines((row) => row.p95_ms), {...options, digits: 0}),
      lineChart("Errors, %", lines((row) => row.error_rate === null ? null : row.error_rate * 100), {...options, high: 1, digits: 1}),
      lineChart("Requests per second", [{name: "admitted", points: rates(points, "admitted")}, {name: "rejected, soft", points: rates(points, "refused_soft")}, {name: "rejected, hard", points: rates(points, "refused_hard")}], {...options, high: 1, digits: 1}),
      lineChart("Conductance", [{name: "conductance", points: points.map((point) => [point.time_ms, point.conductance])}], {...options, high: 1}),
      ...(shown.length < names.length ? [el("p", {class: "soft"}, `The ${LINES_MAX} backends with the highest pressure of ${names.length}.`)] : []));
  }

  function summary(point, found) {
    summed.replaceChildren(el("p", null, "Admission ", admission(point.mode), `, ${said(REGIMES, point.regime)}`, point.stall ? ", a machine stalls" : "", found && !found.applied ? ` – not applied: ${found.note}` : "", " ",
      point.decision === null ? "" : link(`/decision/group/${encodeURIComponent(name)}/${point.decision}?agent=${encodeURIComponent(series.agent)}&at=${point.time_ms}`, `Decision ${number(point.decision)}: input, output, replay`)),
    el("p", null, "Why: ", point.reasons.map((code) => said(REASONS, code)).join("; ") || "–"));
  }

  async function look() {
    const point = scrubber.point;
    if (!point) return;
    if (scrubber.time === null || point.decision === null) {
      backends.show(newest.state.backends);
      summary(point, null);
      return;
    }
    const found = await read(`${path}/decisions/${point.decision}`, {agent: series.agent, at: point.time_ms});
    if (scrubber.point !== point) return;
    backends.show(ofDecision(found, point));
    summary(point, found);
  }

  const refresh = serial(async () => {
    newest = await read(path, agent);
    about.replaceChildren(...facts([["Admission", admission(newest.mode)], ["Report", [freshness(newest), " from ", newest.agent, ", ", moment(newest.time)]], ["Dataplane", `${said(PLANES, newest.plane)}${newest.liveness && newest.liveness !== "normal" ? `, ${newest.liveness}` : ""}`],
      ["Backends", `${number(newest.backends - newest.ejected.length)} of ${number(newest.backends)} in service`], ["Ejected", newest.ejected.join(", ")], ["Admits", newest.rate_per_s === null ? null : `${number(newest.rate_per_s)} requests per second`],
      ["Runs out in", newest.ttf_s === null ? null : `${number(newest.ttf_s, 0)} s`], ["Needs more backends", newest.scale_hint ? "yes" : null], ["Fault", newest.fault], ["Why", why(newest.reasons)],
      ["Dropped", newest.dropped ? `${number(newest.dropped)} moments that could not be sent` : null]]));
    orders.show(newest.state.backends.map((row) => row.backend), newest.orders);
    await series.refresh({agent: newest.agent});
    scrubber.show(series.points);
    draw();
    await look();
  });
  return {refresh, close: followReports({kind: "group", name}, (report) => { if (!query.agent || query.agent === report.agent) again(); })};
}
