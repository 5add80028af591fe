// Nodes and their devices: who has each, and which are idle, cordoned, quarantined or others'. Neighbouring
// devices of one run are one link with a cell for each.
import {nodeActions} from "./actions.js";
import {count, el, link, number, redraw, soft} from "./dom.js";
import {ownerKey, ownerMark} from "./owners.js";

// More nodes than these are drawn as tiles side by side, without the names of runs.
const COLUMNS_MAX = 16, ROWS_MAX = 12, TILE_COLUMNS = 8;
const SIGNS = {idle: "·", cordoned: "–", quarantined: "!", foreign: "×"};
const WORDS = {leased: "leased", idle: "idle", cordoned: "cordoned", quarantined: "quarantined", foreign: "used by others"};

function spans(slots) {
  const found = [];
  for (const slot of slots) {
    const last = found.at(-1), same = last && last.state === slot.state && last.run === slot.run && ["role", "funded", "borrowed"].every((field) => last[field] === slot[field]);
    if (same) last.devices.push(slot.device); else found.push({...slot, devices: [slot.device]});
  }
  return found;
}

const range = (devices) => devices.length > 1 ? `devices ${devices[0]} to ${devices.at(-1)}` : `device ${devices[0]}`;

function block(node, span, columns) {
  const leased = span.state === "leased", mark = leased && ownerMark(span.owner), size = span.devices.length;
  const details = [leased ? `run ${span.run} of ${span.owner}` : WORDS[span.state],
    leased && span.role !== "Active" && span.role.toLowerCase(), span.borrowed && "borrowed", span.funded === false && "not funded"].filter(Boolean).join(", ");
  const words = `${node}, ${range(span.devices)}: ${details}`;
  const cells = span.devices.map((device) => el("span", {class: "cell"}, leased ? mark.letters : SIGNS[span.state], el("small", null, device)));
  const name = leased && el("span", {class: "run-name"}, span.run);
  const kind = `block ${leased ? mark.colour : span.state}${span.funded === false ? " unfunded" : ""}${span.borrowed ? " borrowed" : ""}`;
  const made = leased ? el("a", {class: kind, href: `/runs/${encodeURIComponent(span.run)}`, title: words, "aria-label": words}, el("span", {class: "cells", "aria-hidden": "true"}, cells), name)
    : el("span", {class: kind, title: words, role: "img", "aria-label": words}, el("span", {class: "cells", "aria-hidden": "true"}, cells));
  made.style.flexBasis = `calc(${Math.min(1, size / columns) * 100}% - 3px)`;
  return made;
}

// The name leads to the node's own view, which has its actions, too.
function nodeRow(row, columns, dense) {
  const where = Object.entries(row.location).map((pair) => pair.join("=")).join(", ");
  const facts = [row.flavor, where, row.cordoned && "cordoned", row.virtual && "virtual"].filter(Boolean).join(" · ");
  return el("li", {class: "node"}, el("div", {class: "node-name"}, el("strong", null, link(`/cpu/${encodeURIComponent(row.node)}`, row.node)),
    soft(dense ? row.cordoned && "cordoned" : facts), !dense && nodeActions({metadata: {name: row.node}, spec: {cordoned: row.cordoned}})),
    el("div", {class: "blocks"}, spans(row.slots).map((span) => block(row.node, span, columns)),
      !row.slots.length && soft("no devices")));
}

export class DeviceMap {
  constructor() {
    this.summary = el("p", {class: "summary"});
    this.legend = el("p", {class: "legend"});
    this.list = el("ul", {class: "nodes"});
    this.root = el("div", null, this.summary, this.list, this.legend);
  }

  show(page) {
    const said = JSON.stringify(page);
    if (said === this.said) return;
    this.said = said;
    const all = Object.values(page.devices).reduce((sum, each) => sum + each, 0);
    this.summary.replaceChildren(`${count(page.nodes, "node")}, ${count(all, "device")}: `,
      Object.entries(page.devices).filter(([state, amount]) => amount || state === "leased" || state === "idle")
        .map(([state, amount]) => `${number(amount)} ${WORDS[state]}`).join(", "));
    const dense = page.nodes > ROWS_MAX, columns = dense ? TILE_COLUMNS : Math.min(COLUMNS_MAX, Math.max(4, ...page.items.map((row) => row.slots.length)));
    const held = new Map();
    this.list.classList.toggle("dense", dense);
    for (const slot of page.items.flatMap((row) => row.slots)) if (slot.owner) held.set(slot.owner, (held.get(slot.owner) || 0) + 1);
    const states = Object.keys(SIGNS).filter((state) => page.devices[state]);
    this.legend.replaceChildren(...[...held].sort().map(([owner, amount]) => ownerKey(owner, soft(` ${amount}`))),
      ...states.map((state) => el("span", {class: "owner"}, el("span", {class: `swatch ${state}`, "aria-hidden": "true"}, SIGNS[state]), WORDS[state])));
    if (page.items.length) redraw(this.list, () => this.list.replaceChildren(...page.items.map((row) => nodeRow(row, columns, dense))));
    else this.list.replaceChildren(el("li", {class: "empty"}, page.nodes ? "No node matches." : "No nodes yet: fairlead apply -f nodes.yaml"));
  }
}

