// The three governors at a glance, what needs attention now, and what happened last.
import {read} from "../lib/api.js";
import {ago, count, el, link, moment, number, redraw, section, soft} from "../lib/dom.js";
import {about, saying} from "../lib/events.js";
import {followReports, onEvent, recent} from "../lib/live.js";
import {EVENTS, plain, said} from "../lib/words.js";

const EVENTS_MAX = 60, PACE_MS = 1000, SIGNS = {bad: "!", warn: "▲", note: "i"};
const WORDS = {bad: "urgent", warn: "warning", note: "note"};

function event(item) {
  return el("li", {value: item.seq}, link(`/ledger/${item.seq}`, `#${item.seq}`), moment(item.time), el("b", {title: item.kind}, said(EVENTS, item.kind)),
    el("span", null, about(item)), el("span", null, saying(item)));
}

// Parts of a whole as one bar, and the same in words below it.
function parts(label, total, rows) {
  let at = 0;
  const words = rows.map(([name, value]) => `${number(value)} ${name}`).join(", ");
  const bars = rows.map(([, value, kind]) => {
    const made = el("rect", {class: `part ${kind}`, x: at, y: 0, width: total ? value / total * 100 : 0, height: 6});
    at += total ? value / total * 100 : 0;
    return made;
  });
  return [el("svg", {class: "split-bar", viewBox: "0 0 100 6", preserveAspectRatio: "none", role: "img", "aria-label": `${label}: ${words}`}, ...bars),
    el("ul", {class: "keys"}, ...rows.map(([name, value, kind]) =>
      el("li", null, el("span", {class: `key part ${kind}`, "aria-hidden": "true"}), el("b", null, number(value)), ` ${name}`)))];
}

const fact = (name, ...content) => [el("dt", null, name), el("dd", null, ...content)];

function gpu(sums) {
  const {devices, queue, reservations, hours} = sums;
  return [parts("Devices", devices.total, [["used", devices.used, "used"], ["held as spares", devices.held, "held"],
    ["free", devices.free, "free"], ["unavailable", devices.unavailable, "out"]]),
  el("dl", null,
    fact("Runs", link("/gpu#runs", `${number(queue.running)} running, ${number(queue.waiting)} waiting`),
      queue.oldestWaitMs !== null && el("div", {class: "soft"}, `waiting for ${count(queue.waitingGPUs, "GPU")}, the oldest for ${ago(queue.oldestWaitMs)}`),
      queue.notFunded > 0 && el("div", {class: "warn"}, `${number(queue.notFunded)} not funded`)),
    fact("Reservations", reservations.waiting ? [`${reservations.waiting} wait, next `, moment(reservations.next)] : "none"),
    fact("GPU-hours", `${number(hours.used)} used, ${number(hours.held)} held`,
      hours.overdraft > 0 && el("span", {class: "warn"}, `, ${number(hours.overdraft)} overdraft`)))];
}

const percent = (value) => `${number(value * 100, 0)} %`;
const cores = (value) => number(value / 1000, 1);
const stale = (sums) => sums.stale > 0 && fact("Stale", el("span", {class: "bad"}, count(sums.stale, "agent does", "agents do"), " not report"));

function cpu(sums) {
  if (!sums.nodes) return el("p", {class: "empty"}, "No node agent reports: fairlead node run, with report: in its file.");
  const calm = sums.nodes - sums.congested - sums.overloaded - sums.stale;
  return [parts("Nodes", sums.nodes, [["uncongested", calm, "free"], ["congested", sums.congested, "warm"], ["overloaded", sums.overloaded, "hot"],
    ["stale", sums.stale, "out"]]),
  el("dl", null,
    sums.stale < sums.nodes && fact("Cores", `${cores(sums.needMillicores)} needed, ${cores(sums.usageMillicores)} used of ${cores(sums.capacityMillicores)}`),
    sums.throttling !== null && fact("Throttling", el("span", {class: sums.throttling >= 0.5 ? "warn" : null}, `${percent(sums.throttling)} of periods, worst pod`)),
    stale(sums))];
}

function traffic(sums) {
  if (!sums.groups) return el("p", {class: "empty"}, "No traffic agent reports: fairlead traffic run, with report: in its file.");
  const admission = sums.hard ? el("span", {class: "bad"}, `${count(sums.hard, "service admits", "services admit")} nothing`)
    : sums.soft ? el("span", {class: "warn"}, `${count(sums.soft, "service sheds", "services shed")} load`) : `open, ${count(sums.groups - sums.stale, "service")}`;
  if (sums.stale === sums.groups) return el("dl", null, fact("Services", `${number(sums.groups)}, none reports now`), stale(sums));
  return [parts("Backends", sums.backends, [["in service", sums.backends - sums.ejected, "free"], ["ejected", sums.ejected, "warm"]]),
    el("dl", null, fact("Admission", admission),
      fact("Worst", sums.p95Ms === null ? "no latency yet" : `p95 ${number(sums.p95Ms, 0)} ms`, sums.errorRate > 0 && el("span", {class: "warn"}, `, ${percent(sums.errorRate)} errors`)),
      stale(sums))];
}

function card(id, title, path) {
  const body = el("div");
  return [el("section", {class: "glance", "aria-labelledby": id}, el("h2", {id}, link(path, title)), body), body];
}

function attention(row) {
  return el("li", {class: row.severity}, el("span", {class: "sign", "aria-hidden": "true"}, SIGNS[row.severity]),
    el("span", {class: "hidden"}, `${WORDS[row.severity]}: `), link(row.path, plain(row.text)),
    row.since && soft("since ", moment(row.since)));
}

// Replaced only where it says something new, so that focus stays where it is.
function show(root, value, make) {
  const said = JSON.stringify(value);
  if (root.dataset.said === said) return;
  root.dataset.said = said;
  redraw(root, () => root.replaceChildren(...[make(value)].flat(9).filter(Boolean)));
}

export function open(root) {
  const events = el("ol", {id: "event-list", reversed: true}), [gpuCard, gpuBody] = card("at-gpu", "GPU", "/gpu");
  const [cpuCard, cpuBody] = card("at-cpu", "CPU", "/cpu"), [trafficCard, trafficBody] = card("at-traffic", "Traffic", "/traffic");
  const needs = el("ul", {id: "attention", class: "attention"});
  root.append(el("h1", {class: "hidden"}, "Overview"), el("div", {class: "glances"}, gpuCard, cpuCard, trafficCard),
    section("needs", "Needs attention", needs),
    section("events", "Events", el("div", {class: "scroll log", role: "group", "aria-labelledby": "events", tabindex: "0"}, events)));
  events.append(...recent.slice(0, EVENTS_MAX).map(event));
  const heard = onEvent((item) => { events.prepend(event(item)); if (events.childElementCount > EVENTS_MAX) events.lastChild.remove(); });
  const refresh = async () => {
    const now = await read("/v1/overview");
    show(gpuBody, now.gpu, gpu);
    show(cpuBody, now.cpu, cpu);
    show(trafficBody, now.traffic, traffic);
    show(needs, now.attention, (rows) => rows.length ? rows.map(attention) : el("li", {class: "empty"}, "Nothing needs attention."));
  };
  // A fleet reports many times a second: what comes meanwhile is asked for together.
  let timer = 0;
  const reported = followReports({}, () => { timer = timer || setTimeout(() => { timer = 0; refresh().catch(() => { /* the shell says what is wrong */ }); }, PACE_MS); });
  return {refresh, close() { heard(); reported(); clearTimeout(timer); }};
}
