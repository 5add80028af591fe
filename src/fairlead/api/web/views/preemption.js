// Outcomes of the resolver: what was missing, for whom, and how it was drawn.
import {resolvePreview} from "../lib/actions.js";
import {read} from "../lib/api.js";
import {el, link, moment, number, Table} from "../lib/dom.js";
import {serial} from "../lib/fleet.js";
import {said as word} from "../lib/words.js";
import {FOR, LABELS} from "./outcome.js";

const PAGE = 50;

function cells(row) {
  return [link(`/preemption/${row.outcome}`, `#${row.outcome}`), el("span", {class: row.stage === "void" ? "soft" : null}, row.stage),
    `${row.deficitGPUs} ${row.flavor}`, word(FOR, row.cause),
    row.label ? el("span", {title: LABELS[row.label]}, row.label) : "not drawn yet", moment(row.committed)];
}

export function open(root) {
  const outcomes = new Table("Outcomes", ["Outcome", "Stage", "Missing", "For", "Entropy", "Committed"],
    {key: (row) => row.outcome, cells, nothing: "No run was ever preempted."});
  outcomes.body.id = "outcome-rows";
  const said = el("p", {class: "soft"}), more = el("button", {type: "button", hidden: true, click: () => { pages += 1; refresh(); }}, "Older outcomes");
  let pages = 1;
  root.append(el("h1", null, "Preemption"), el("p", null, "When GPUs are missing, spares go first, then malleable runs shrink, then a lottery ",
    "decides. Open an outcome to see how, and to verify it in your browser."), resolvePreview(), outcomes.root, said, more);
  const refresh = serial(async () => {
    const items = [];
    let next = null, total = 0;
    do {
      const page = await read("/v1/outcomes", {limit: PAGE, cursor: next});
      items.push(...page.items);
      ({next, total} = page);
    } while (next !== null && items.length < pages * PAGE);
    outcomes.show(items);
    more.hidden = next === null;
    said.textContent = total > items.length ? `The newest ${number(items.length)} of ${number(total)}.` : "";
  });
  return {refresh};
}
