// What a checkpoint is to this browser, in words: as kept before, new, or an alarm.
import {forget} from "./checkpoint.js";
import {el, moment, number} from "./dom.js";

// `again` is called after the reader told the browser to forget what it kept.
export function standing(found, again) {
  const shown = verdict(found, again);
  if (found.other) shown.append(el("span", {class: "warn"}, ` This server says that it is a demo: it is not compared with ledger ${found.other}, which this browser saw at this address.`));
  return shown;
}

function verdict(found, again) {
  const {state, before, head} = found;
  if (state === "unchecked") return el("p", {class: "standing warn", id: "standing"}, "Not checked. ", found.why);
  if (state === "alarm")
    return el("div", {class: "standing alarm", id: "standing", role: "alert"},
      el("p", null, el("strong", null, "This ledger cannot be trusted: "), `${found.why}.`),
      before && el("p", null, `Seen here before: ${number(before.head.size)} entries, root ${before.head.root}, on `, moment(before.seen), "."),
      el("p", null, `Now: ${number(head.size)} entries, root ${head.root}. Ask the operator what happened.`),
      el("button", {type: "button", click: () => { forget(); again(); }}, "Forget what this browser kept"));
  if (state === "first")
    return el("p", {class: "standing good", id: "standing"}, "✓ Signed by the ledger’s own key. ",
      found.demo ? "A demo’s ledger ends with it: this tab keeps the checkpoint as long as it is open." : found.keeps ? "This browser keeps the checkpoint from now on, and will notice if the past is changed." : "This browser keeps nothing, so it cannot notice later changes.");
  return el("p", {class: "standing good", id: "standing"}, "✓ Signed, and it continues what you saw on ", moment(before.seen),
    ` (${number(before.head.size)} entries).`);
}
