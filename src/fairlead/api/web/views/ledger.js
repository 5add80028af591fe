// The ledger: its checkpoint, checked here and kept; and a search of its entries, done by the server.
import {read} from "../lib/api.js";
import {examine} from "../lib/checkpoint.js";
import {el, link, moment, number, section, soft, Table} from "../lib/dom.js";
import {about, saying} from "../lib/events.js";
import {save} from "../lib/files.js";
import {standing} from "../lib/standing.js";
import {plain} from "../lib/words.js";

const FILTERS = [["kind", "Kind", "gpu.resolve"], ["object", "Object", "Run/train-7"], ["author", "Author", "alice"], ["text", "Text", "preempted"],
  ["since", "From", null], ["until", "To", null]];
const ROWS = 50;

function cells(row) {
  return [link(`/ledger/${row.seq}`, `#${row.seq}`), moment(row.time), el("code", null, row.kind), about(row) || soft("–"),
    row.author, row.message ? plain(row.message) : soft(saying(row) || "–")];
}

// What a field of the form has, as the server wants it.
function value(name, text) {
  if (!text || (name !== "since" && name !== "until")) return text || null;
  return new Date(text).toISOString();
}

function local(text) {
  const at = new Date(text);
  return Number.isNaN(at.getTime()) ? "" : new Date(at.getTime() - at.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
}

export function open(root, {query, go}) {
  const head = el("dl", {id: "head", class: "facts"}), place = el("div");
  let now = null;
  const keep = el("button", {type: "button", id: "keep", click: () => save(`checkpoint-${now.size}.json`, `${JSON.stringify(now)}\n`)}, "Download the checkpoint");
  const fields = FILTERS.map(([name, label, example]) => el("label", null, label, el("input", {name, id: `filter-${name}`, type: example === null ? "datetime-local" : "text",
    placeholder: example && `such as ${example}`, value: example === null && query[name] ? local(query[name]) : query[name] || ""})));
  const search = (event) => {
    event.preventDefault();
    const given = [...new FormData(form)].map(([name, text]) => [name, value(name, text)]).filter(([, text]) => text);
    go(given.length ? `/ledger?${new URLSearchParams(given)}` : "/ledger", {replace: true});
  };
  const form = el("form", {class: "filters", role: "search", submit: search}, fields, el("div", {class: "buttons"}, el("button", {type: "submit"}, "Search"),
    Object.keys(query).length ? link("/ledger", "Clear") : null));
  const entries = new Table("Entries", ["Entry", "Time", "Kind", "About", "By", "What"], {key: (row) => row.seq, cells, nothing: "No such entry.", brief: true});
  entries.body.id = "entry-rows";
  const more = el("p", {class: "buttons", id: "more"});
  const asked = Object.fromEntries(FILTERS.map(([name]) => [name, query[name]]));
  const page = async (before) => read("/v1/entries", {...asked, before});
  let rows = [], room = 0;  // newest first; how many the reader asked for
  let before = null, offered = "";
  const onward = ({next, oldest}) => {
    const words = next === null ? oldest > 1 ? `Entries before ${number(oldest)} are in the archive.` : "These are all." : rows.length ? "Older entries" : `Search before entry ${number(next)}`;
    before = next;
    if (words === offered) return;
    offered = words;
    more.replaceChildren(next === null ? soft(words) : el("button", {type: "button", id: "older", click: () => older()}, words));
  };
  const older = async () => {
    const found = await page(before);
    rows = [...rows, ...found.items];
    room = rows.length;
    entries.show(rows);
    onward(found);
  };
  const renew = async () => {
    const found = await page(null);
    if (rows.length && (found.next === null || found.next <= rows[0].seq + 1)) {
      rows = [...found.items.filter((row) => row.seq > rows[0].seq), ...rows];
      if (rows.length > Math.max(ROWS, room)) {  // else a view that stays open would grow for good
        rows = rows.slice(0, Math.max(ROWS, room));
        onward({next: rows.at(-1).seq});
      }
    } else {  // the first time, or so much is new that there would be a gap
      rows = found.items;
      onward(found);
    }
    entries.show(rows);
  };
  root.append(el("h1", null, "Ledger"), el("p", null, "Every decision is written here before it is carried out. Keep a checkpoint where this machine’s operator cannot write: relative to it, ",
    "every change of the past is found (", el("code", null, "fairlead audit verify --head FILE"), ")."),
  el("section", {class: "panel", "aria-labelledby": "checkpoint"}, el("h2", {id: "checkpoint"}, "Checkpoint"), place, head, el("p", {class: "buttons"}, keep)),
  section("entries", "Entries", form, entries.root, more));
  const refresh = async () => {
    now = await read("/v1/head");
    const lines = [["Entries", number(now.size)], ["Root", now.root], ["Ledger", now.ledger], ["Epoch", String(now.epoch)],
      ["Newest entry", moment(now.time_ms)], ["Signed by key", now.key_id]];
    head.replaceChildren(...lines.flatMap(([name, text]) => [el("dt", null, name), el("dd", null, text)]));
    const found = await examine(now), said = JSON.stringify([found.state, found.why, found.before && found.before.seen]);
    if (place.dataset.said !== said) { place.dataset.said = said; place.replaceChildren(standing(found, refresh)); }
    await renew();
  };
  return {refresh};
}
