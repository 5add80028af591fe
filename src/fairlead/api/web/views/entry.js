// One entry of the ledger, with its inclusion proof checked here against the signed checkpoint.
import {read} from "../lib/api.js";
import {cannotSign, examine, isIn, unable, verifier} from "../lib/checkpoint.js";
import {el, link, moment, number, section} from "../lib/dom.js";
import {save} from "../lib/files.js";
import {standing} from "../lib/standing.js";
import {plain} from "../lib/words.js";

async function proved({event, entry, leaf, proof, head}) {
  if (unable()) return ["warn", `Not checked. ${unable()}`];
  try {
    const v = await verifier();
    if (entry !== null && JSON.parse(entry).seq !== event.seq) return ["bad", "✗ The bytes are those of another entry."];
    if (!await isIn(v, head, event.seq, entry, leaf, proof)) return ["bad", `✗ This entry is not in the log of ${number(head.size)} entries: it was changed.`];
    const what = entry === null ? "An entry with this hash" : "This entry, byte by byte,";
    return ["good", `✓ ${what} is number ${number(event.seq)} in the log of ${number(head.size)} entries (${proof.length} hashes lead to its root).`];
  } catch (error) {
    return ["warn", `Not checked. ${cannotSign(error) || error.message}`];
  }
}

// As text, with every control character as an escape: what others wrote must not redraw the page.
export const pretty = (document) => JSON.stringify(document, null, 2).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (each) => (each === "\n" ? each : `\\u{${each.codePointAt(0).toString(16)}}`));

export function open(root, {params}) {
  const name = params.seq, title = el("h1", null, `Entry #${name}`), body = el("div"), place = el("div");
  root.append(title, body);
  let done = false;
  const show = async () => {
    const found = await read(`/v1/entries/${encodeURIComponent(name)}`), {event, entry} = found, seq = Number(name);
    const [style, words] = await proved(found);
    place.replaceChildren(standing(await examine(found.head), show));
    const about = event.object && `${event.object.kind.toLowerCase()}/${event.object.name}`;
    const facts = [["Kind", event.kind], ["Time", moment(event.time)], ["Author", event.author], ["About", about], ["Owner", event.owner], ["Reason", event.reason],
      ["Message", event.message && plain(event.message)]].filter(([, value]) => value);
    const shown = entry === null ? event.body : JSON.parse(entry);
    body.replaceChildren(el("div", null,
      el("nav", {class: "buttons", "aria-label": "Entries"}, seq > 1 ? link(`/ledger/${seq - 1}`, `‹ ${seq - 1}`) : null,
        seq < found.head.size ? link(`/ledger/${seq + 1}`, `${seq + 1} ›`) : null, link("/ledger", "All entries"),
        event.object ? link(`/ledger?${new URLSearchParams({object: `${event.object.kind}/${event.object.name}`})}`, `All about ${about}`) : null),
      el("dl", {class: "facts"}, facts.map(([key, value]) => [el("dt", null, key), el("dd", null, value)])),
      found.decision ? el("p", null, link(`/decision/ledger/${seq}`, "The decision: input, output, replay")) : null,
      event.kind === "gpu.resolve.commit" ? el("p", null, link(`/preemption/${seq}`, `Outcome #${seq}`)) : null,
      el("section", {class: "panel", "aria-labelledby": "proof"}, el("h2", {id: "proof"}, "Proof"),
        el("p", {class: `${style} standing`, id: "inclusion"}, words), place,
        el("details", null, el("summary", null, "Hashes"), el("dl", {class: "facts"}, el("dt", null, "Hash of the entry"), el("dd", null, found.leaf),
          el("dt", null, "Path"), el("dd", null, found.proof.map((step) => el("div", null, step))), el("dt", null, "Root"), el("dd", null, found.head.root))),
        el("p", {class: "buttons"}, el("button", {type: "button", id: "keep-proof", click: () => save(`entry-${seq}.json`, `${JSON.stringify(found)}\n`)}, "Download entry and proof"))),
      section("document", "Document", entry === null ? el("p", {class: "warn"}, "Part of this entry is not yours to see, so its bytes are not shown: the proof is of its hash, and what follows is what the server says of it.") : null,
        el("pre", {id: "entry-document", tabindex: "0"}, pretty(shown)))));
    done = true;
  };
  // An entry never changes: one look is enough, and the page does not jump while it is read.
  return {async refresh() { if (!done) await show(); }};
}
