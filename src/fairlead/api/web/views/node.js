// One node: need, allocation, usage and throttling over time, and every decision that is kept.
import {nodeActions} from "../lib/actions.js";
import {readdress} from "../lib/address.js";
import {read} from "../lib/api.js";
import {lineChart} from "../lib/chart.js";
import {el, link, moment, number, section, Table} from "../lib/dom.js";
import {cores, facts, freshness, percent, serial, Series, stretches} from "../lib/fleet.js";
import {followReports} from "../lib/live.js";
import {Scrubber} from "../lib/scrubber.js";
import {said} from "../lib/words.js";
import {mode} from "./cpu.js";

export const WHY = {
  "demand-driven": "the need follows its demand",
  "usage-fallback": "demand reads 0 although it is used: usage decides",
  "signal-missing.usage": "no demand signal: the need follows usage",
  "signal-missing.hold": "no signal: the limit is held",
  "signal-missing.min": "no signal: the minimum",
  "min-above-max": "its request is above its limit: the limit wins",
  "guardrail-relaxed": "a guardrail was lowered, for the node has no room",
  "cooldown": "changed a moment ago: held",
  "dead-band": "so near that a write is not worth it: held",
  "step": "one step at a time",
  "grace": "young: it keeps its limit where there is room",
  "newcomer": "first limit of ours",
  "unlimited": "no limit was in force",
  "lending": "it uses what others leave: what it lacks is off its guarantee",
  "latency-target": "its threads wait longer than its target allows: raised",
};

const PRICELESS = {uncongested: "none: every pod gets its need", overloaded: "none: not even the minimums fit"};
export const reasons = (codes, words) => codes.map((code) => el("div", {title: code}, said(words, code)));
const millicores = (value) => value === null || value === undefined ? "–" : number(value);

function podCells(row) {
  const cut = row.allocation < row.need, limit = row.before === undefined || row.before === row.limit ? millicores(row.limit) : `${millicores(row.before)} → ${millicores(row.limit)}`;
  return [row.pod, number(row.need), el("span", {class: cut ? "warn" : null}, number(row.allocation), cut && ` (−${percent(1 - row.allocation / row.need, 0)})`),
    limit, millicores(row.usage), percent(row.throttling), `${number(row.min)} to ${number(row.max)}`, reasons(row.why, WHY)];
}

const ofReport = (pod) => ({pod: pod.pod, need: pod.need_millicores, allocation: pod.allocation_millicores, limit: pod.limit_millicores, usage: pod.usage_millicores,
  throttling: pod.throttling, min: pod.min_millicores, max: pod.max_millicores, why: [...pod.reasons, ...pod.bounds]});

function ofDecision({input, output}) {
  const before = {}, after = {};
  for (const write of output.writes) {
    before[write.uid] = (before[write.uid] || 0) + (write.before || 0);
    after[write.uid] = (after[write.uid] || 0) + write.after;
  }
  return input.pods.map((pod) => ({pod: pod.uid, need: output.needs[pod.uid], allocation: output.allocations[pod.uid], limit: after[pod.uid] ?? output.allocations[pod.uid], before: before[pod.uid],
    usage: pod.usage_millicores, throttling: pod.throttling, min: pod.min_millicores, max: pod.max_millicores, why: [...output.reasons[pod.uid], ...output.bounds[pod.uid].reasons]}));
}

export function open(root, {params, query, again}) {
  const name = params.node, path = `/v1/nodes/${encodeURIComponent(name)}`, agent = {agent: query.agent};
  const about = el("dl", {class: "facts plain"}), charts = el("div", {class: "charts"}), choice = el("select", {id: "pod", change: () => { readdress({pod: choice.value}); refresh(); }}, el("option", {value: query.pod || ""}, query.pod || "the whole node"));
  const pods = new Table("Pods", ["Pod", "Need", "Allocation", "Limit", "Usage", "Throttled", "Bounds", "Why"], {key: (row) => row.pod, cells: podCells, numbers: ["Need", "Allocation", "Limit", "Usage", "Throttled", "Bounds"], nothing: "No pod is governed here."});
  pods.body.id = "pod-rows";
  const about2 = el("p", {id: "decision-summary"}), series = new Series(`${path}/series`);
  let newest = null;
  const scrubber = new Scrubber("Moment", () => { draw(); look().catch(() => { /* the next refresh says why */ }); }, query.at);
  const acts = el("div");
  let offered = "";
  const measured = el("div", {hidden: true}, section("over-time", "Over time", el("p", null, el("label", {for: "pod"}, "Show "), choice), charts,
      el("p", {class: "soft"}, "Shaded: the node is congested, or, darker and red, overloaded.")),
    section("decisions", "Decisions", el("p", {class: "soft"}, "Drag to a moment, here or in a chart, or use the arrow keys, to see what the governor saw and decided."), scrubber.root, about2, pods.root,
      el("p", {class: "soft"}, "In millicores: 1000 are one core.")));
  root.append(el("h1", null, name), acts, about, measured);

  function draw() {
    const points = series.points, at = scrubber.time === null ? null : scrubber.point && scrubber.point.time_ms;
    const line = (title, key, more) => ({name: title, points: points.map((point) => [point.time_ms, cores(point[key])]), ...more});
    const bands = stretches(points, (point) => point.mode === "uncongested" ? "" : point.mode).map(([from, to, word]) => [from, to, `band-${word}`, word]);
    const gap = newest && newest.cpu ? 4 * Math.max(newest.cpu.every_ms, 1000) : null, options = {bands, at, gap, pick: (time) => scrubber.seek(time)};
    const whole = !choice.value;
    charts.replaceChildren(
      lineChart(`CPU of ${whole ? name : choice.value}, cores`, [line("need", "need"), line("allocation", "allocation"), line("usage", "usage"), ...(whole ? [line("capacity", "capacity", {dashed: true})] : [line("limit", "limit", {dashed: true})])], options),
      lineChart(whole ? "Throttled periods of the most throttled pod, %" : "Throttled periods, %", [{name: "throttled", points: points.map((point) => [point.time_ms, point.throttling === null ? null : point.throttling * 100])}], {...options, high: 1, digits: 1}),
      lineChart("Shadow price", [{name: "price", points: points.map((point) => [point.time_ms, point.price === null ? 0 : point.price])}], {...options, high: 0.1, digits: 3}));
  }

  async function look() {
    const point = scrubber.point;
    if (!point || point.decision === null) {
      about2.replaceChildren(newest && newest.state ? "No decision is kept of this moment; these are the newest figures." : "");
      if (newest && newest.state) pods.show(newest.state.pods.map(ofReport));
      return;
    }
    if (scrubber.time === null && newest.state && newest.cpu.decision === point.decision) {
      pods.show(newest.state.pods.map(ofReport));
      summary(point, null);
      return;
    }
    const found = await read(`${path}/decisions/${point.decision}`, {agent: series.agent, at: point.time_ms});
    if (scrubber.point !== point) return;
    pods.show(ofDecision(found));
    summary(point, found);
  }

  function summary(point, found) {
    about2.replaceChildren(mode(point.mode), `: pods need ${number(point.need / 1000)} of ${number(point.capacity / 1000)} cores`, point.price ? `, shadow price ${number(point.price, 3)}` : "",
      found && !found.applied ? ` – not applied: ${found.note}` : "", found && found.applied && found.note ? ` – ${found.note}` : "", " ",
      link(`/decision/node/${encodeURIComponent(name)}/${point.decision}?agent=${encodeURIComponent(series.agent)}&at=${point.time_ms}`, `Decision ${number(point.decision)}: input, output, replay`));
  }

  // Of a node whose GPUs are given out here: cordon and drain.
  function offer(gpu) {
    const text = String(gpu && gpu.cordoned);
    if (text === offered) return;
    offered = text;
    acts.replaceChildren(gpu ? nodeActions({metadata: {name}, spec: {cordoned: gpu.cordoned}}) : "");
  }

  const refresh = serial(async () => {
    newest = await read(path, agent);
    const {cpu, gpu, state} = newest;
    offer(gpu);
    measured.hidden = !cpu;
    if (!cpu) {
      about.replaceChildren(...facts([["GPUs", gpu && [`${number(gpu.devices)} ${gpu.flavor}, ${number(gpu.free || 0)} free: `, link("/gpu#devices", "which runs have them")]], ["CPU", "no agent reports this node: fairlead node run --report-to"]]));
      return;
    }
    about.replaceChildren(...facts([["Mode", mode(cpu.mode)], ["Report", [freshness(cpu), " from ", cpu.agent, ", ", moment(cpu.time)]], ["Capacity", `${number(cores(cpu.capacity_millicores))} of ${number(cores(state.node_millicores))} cores`], ["Policy", cpu.policy],
      ["Shadow price", cpu.shadow_price === null ? said(PRICELESS, cpu.mode) : number(cpu.shadow_price, 3)], ["GPUs", gpu && `${number(gpu.devices)} ${gpu.flavor}`],
      ["Observes only", cpu.observed_only ? "yes: it writes no limit" : null], ["Not written", cpu.problems.join("; ")], ["Dropped", cpu.dropped ? `${number(cpu.dropped)} moments that could not be sent` : null]]));
    const names = ["", ...state.pods.map((pod) => pod.pod).sort()];
    if (names.join("\n") !== [...choice.options].map((option) => option.value).join("\n")) {
      const chosen = choice.value;
      choice.replaceChildren(...names.map((pod) => el("option", {value: pod, selected: pod === chosen}, pod || "the whole node")));
    }
    await series.refresh({agent: cpu.agent, pod: choice.value});
    scrubber.show(series.points);
    draw();
    await look();
  });
  return {refresh, close: followReports({kind: "node", name}, (report) => { if (!query.agent || query.agent === report.agent) again(); })};
}
