// The traffic governor: every route group that reports.
import {read} from "../lib/api.js";
import {count, el, link, number, pace, Table} from "../lib/dom.js";
import {aged, freshness, percent, Recent, Rows, serial, Shortlist} from "../lib/fleet.js";
import {followReports} from "../lib/live.js";
import {said} from "../lib/words.js";

const PACE_MS = 1000;
const ADMISSION = {normal: ["good", "open", "every request is admitted"], soft: ["warn", "soft", "sheds load: some requests are rejected with Retry-After"], hard: ["bad", "hard", "closed but for a drip"]};

export function admission(mode) {
  const [style, word, why] = Object.hasOwn(ADMISSION, mode) ? ADMISSION[mode] : ["warn", mode, ""];
  return el("span", {class: style, title: why}, word);
}

export const REASONS = {
  failsafe: "the proxy had no heartbeat for a while", full: "as many requests are inside as can be served in time", no_backends: "the group is empty",
  all_isolated: "every backend is ejected", psi_stall: "a machine stands still", ttf: "something runs out soon", retry_storm: "clients retry too often",
  errors: "a backend in service fails too often", conductance: "all backends are under pressure", skew: "requests go elsewhere than the weights want",
  "signal_missing.latency": "latency is unknown for some", "signal_missing.errors": "error rates are unknown for some", "signal_missing.queue": "queues are unknown for some",
  "signal_missing.both": "neither latency nor errors are known", isolation: "a backend is ejected", guard_hold: "a step was held back",
  "pressure.errors": "slots move because of errors", "pressure.latency": "slots move because of latency", "pressure.queue": "slots move because of queues",
  monopoly: "one backend: nothing to choose from", steady: "steady",
};
export const why = (codes) => codes.map((code) => el("div", {title: code}, said(REASONS, code)));

const key = (row) => `${row.name}/${row.agent}`;

function cells(row, recent) {
  const serving = row.backends - row.ejected.length;
  return [link(`/traffic/${encodeURIComponent(row.name)}?agent=${encodeURIComponent(row.agent)}`, row.name), admission(row.mode),
    [el("span", {class: serving < row.backends ? "warn" : null}, `${number(serving)} of ${number(row.backends)}`), row.ejected.length > 0 && el("div", {class: "soft"}, `ejected: ${row.ejected.slice(0, 5).join(", ")}`)],
    row.p95_ms === null ? "–" : `${number(row.p95_ms, 0)} ms`, recent.draw(key(row), `p95 of ${row.name}`, {unit: "ms"}), el("span", {class: row.error_rate > 0.05 ? "bad" : null}, percent(row.error_rate)),
    [row.admitted === null ? "–" : number(row.admitted), row.refused ? el("div", {class: "warn"}, `${number(row.refused)} rejected`) : null],
    why(row.reasons), [freshness(row), row.fault && el("div", {class: "bad"}, row.fault)]];
}

export function open(root, {query}) {
  const recent = new Recent(), list = new Shortlist("route group", query, () => all.draw());
  const groups = new Table("Route groups", ["Group", "Admission", "Backends in service", "p95", "p95, recently", "Errors", "Admitted", "Why", "Report"],
    {key, cells: (row) => cells(row, recent), numbers: ["p95", "Errors", "Admitted"], nothing: "No traffic agent reports here: fairlead up --traffic web.yaml, or fairlead traffic run --report-to"});
  groups.body.id = "group-rows";
  const summary = el("p", {id: "traffic-summary"}), paced = pace(PACE_MS);
  root.append(el("h1", null, "Traffic"), summary, list.filter, groups.root, list.pages, el("p", {class: "soft"}, "p95 and errors are of the worst backend in service."));
  const all = new Rows(key, (rows) => {
    const rank = (row) => ["hard", "soft"].indexOf(row.mode) + 1 || (row.stale_since || row.fault ? 3 : 9);
    rows.sort((a, b) => rank(a) - rank(b) || b.ejected.length - a.ejected.length || (a.name < b.name ? -1 : 1));
    const shedding = rows.filter((row) => row.mode !== "normal").length, ejected = rows.reduce((sum, row) => sum + row.ejected.length, 0);
    summary.textContent = `${count(rows.length, "route group")}, ${number(shedding)} shedding load, ${count(ejected, "backend")} ejected, ${number(rows.filter((row) => row.stale_since).length)} stale`;
    for (const row of rows) recent.add(key(row), row, row.p95_ms);
    if (rows.length) groups.nothing = "No route group matches.";
    groups.show(list.pick(rows).map((row) => ({...row, age: aged(row)})));
  });
  const refresh = serial(async () => {
    await paced();
    all.replace(await read("/v1/groups", {recent: recent.points.size ? null : true}));
  });
  return {refresh, close: followReports({kind: "group"}, ({group}) => { if (!all.put(group)) refresh().catch(() => { /* the shell says what is wrong */ }); })};
}
