// The CPU governor: every node that reports.
import {read} from "../lib/api.js";
import {bar, count, el, link, number, pace, soft, Table} from "../lib/dom.js";
import {aged, cores, freshness, percent, Recent, Rows, serial, Shortlist} from "../lib/fleet.js";
import {followReports} from "../lib/live.js";

const PACE_MS = 1000;
export const MODES = {
  uncongested: ["good", "uncongested", "every pod gets its need"],
  congested: ["warn", "congested", "needs pass the capacity: the policy decides which pods are cut"],
  overloaded: ["bad", "overloaded", "not even the minimums fit: they are scaled down"],
};

export function mode(name) {
  const [style, word, why] = Object.hasOwn(MODES, name) ? MODES[name] : ["warn", name, ""];
  return el("span", {class: style, title: why}, word);
}

const key = (row) => `${row.name}/${row.cpu ? row.cpu.agent : ""}`;

function cells({name, gpu, cpu}, recent) {
  const capacity = cores(cpu.capacity_millicores);
  return [link(`/cpu/${encodeURIComponent(name)}?agent=${encodeURIComponent(cpu.agent)}`, name), [mode(cpu.mode), cpu.observed_only && el("div", {class: "warn"}, "observes only")],
    bar(`Need of ${name}`, cores(cpu.need_millicores), capacity, "cores"), recent.draw(key({name, cpu}), `Need of ${name}`, {unit: "cores", scale: 0.001, mark: capacity}), bar(`Usage of ${name}`, cores(cpu.usage_millicores), capacity, "cores"),
    percent(cpu.throttling), cpu.shadow_price === null ? "–" : number(cpu.shadow_price, 3), number(cpu.pods),
    gpu ? `${number(gpu.devices)} ${gpu.flavor}` : "–", [freshness(cpu), cpu.problems.length > 0 && el("div", {class: "bad"}, count(cpu.problems.length, "limit"), " not written")]];
}

export function open(root, {query}) {
  const recent = new Recent(), list = new Shortlist("node", query, () => all.draw());
  const nodes = new Table("Nodes", ["Node", "Mode", "Need", "Need, recently", "Usage", "Throttled", "Shadow price", "Pods", "GPUs", "Report"],
    {key, cells: (row) => cells(row, recent), numbers: ["Throttled", "Shadow price", "Pods"], nothing: "No node agent reports here: fairlead up --node node.yaml, or fairlead node run --report-to"});
  nodes.body.id = "node-rows";
  const said = el("p", {id: "cpu-summary"}), paced = pace(PACE_MS);
  root.append(el("h1", null, "CPU"), said, list.filter, nodes.root, list.pages,
    el("p", {class: "soft"}, "The dashed line is the capacity. Throttled is the share of scheduling periods in which the most throttled pod had to wait. The shadow price is what one more core would be worth while the node is congested."));
  const all = new Rows(key, (found) => {
    const rows = found.filter((row) => row.cpu), worst = (row) => ["overloaded", "congested"].indexOf(row.cpu.mode) + 1 || (row.cpu.stale_since || row.cpu.problems.length ? 3 : 9);
    rows.sort((a, b) => worst(a) - worst(b) || (a.name < b.name ? -1 : 1));
    const scarce = rows.filter((row) => row.cpu.mode !== "uncongested").length, stale = rows.filter((row) => row.cpu.stale_since).length;
    said.replaceChildren(`${count(rows.length, "node")}, ${number(scarce)} short of CPU, ${number(stale)} stale`, rows.length < found.length ? soft(`; ${count(found.length - rows.length, "node")} with GPUs and without a CPU agent`) : "");
    for (const row of rows) recent.add(key(row), row.cpu, row.cpu.need_millicores);
    if (rows.length) nodes.nothing = "No node matches.";
    nodes.show(list.pick(rows).map((row) => ({...row, age: aged(row.cpu)})));
  });
  const refresh = serial(async () => {
    await paced();
    all.replace(await read("/v1/nodes", {recent: recent.points.size ? null : true}));
  });
  return {refresh, close: followReports({kind: "node"}, ({name, cpu}) => { if (!all.put({name, cpu})) refresh().catch(() => { /* the shell says what is wrong */ }); })};
}
