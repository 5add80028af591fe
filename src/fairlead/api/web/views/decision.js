// One decision: input, output, reasons, and its replay. /decision/ledger/NUMBER is one of the control plane's;
// /decision/node/NAME/NUMBER and /decision/group/NAME/NUMBER are agents', as they reported them.
import {Failed, read} from "../lib/api.js";
import {el, link, moment, number, section} from "../lib/dom.js";
import {pretty} from "./entry.js";

const VERDICTS = {
  same: ["good", "✓ The same, byte for byte."],
  different: ["bad", "✗ Another decision than the one that was recorded."],
  unknown: ["warn", "Nothing can be said."],
};

function replayPanel(path, query) {
  const verdict = el("p", {role: "status", class: "verdict"}), facts = el("dl", {class: "facts"}), differs = el("div");
  const run = async () => {
    button.disabled = true;
    verdict.className = "verdict";
    verdict.textContent = "Deciding again…";
    facts.replaceChildren();
    differs.replaceChildren();
    try {
      const found = await read(`${path}/replay`, query), [style, words] = VERDICTS[found.verdict];
      verdict.className = `verdict ${style}`;
      verdict.textContent = `${words} ${found.detail}`.trim();
      const lines = [["Recorded then", found.recordedSHA256], ["Decided now", found.decidedSHA256], ["Compared", found.bytes === null ? null : `${number(found.bytes)} bytes of canonical JSON`]];
      facts.replaceChildren(...lines.filter(([, value]) => value).flatMap(([name, value]) => [el("dt", null, name), el("dd", null, value)]));
      if (found.verdict === "different" && found.decided) differs.replaceChildren(el("h3", null, "Decided now"), el("pre", {tabindex: "0"}, pretty(found.decided)));
    } catch (error) {
      verdict.className = "verdict warn";
      verdict.textContent = `Could not be replayed. ${error.message}`;
    } finally {
      button.disabled = false;
    }
  };
  const button = el("button", {type: "button", id: "replay", click: run}, "Replay");
  return el("section", {class: "panel", "aria-labelledby": "replay-title"}, el("h2", {id: "replay-title"}, "Replay"),
    el("p", null, "The server decides again from the recorded input, and compares every byte with the recorded output."), el("p", {class: "buttons"}, button), verdict, facts, differs);
}

function part(id, title, document, hidden, why) {
  return section(id, title, hidden ? el("p", {class: "warn"}, why) : document === null ? el("p", {class: "empty"}, "It is not kept here.")
    : el("pre", {id: `${id}-document`, tabindex: "0"}, pretty(document)));
}

// A decision never changes: it is read once. `show(found)` gives what is shown; `otherwise` where to go where it is not.
function once(root, title, path, query, show, otherwise) {
  const body = el("div");
  root.append(el("h1", null, title), body);
  let done = false;
  return {
    async refresh() {
      if (done) return;
      try {
        body.replaceChildren(...show(await read(path, query)));
      } catch (error) {
        if (!(error instanceof Failed) || error.status !== 404) throw error;
        body.replaceChildren(el("p", {class: "empty"}, `${error.message}. `, otherwise));
      }
      done = true;
    },
  };
}

const list = (facts) => el("dl", {class: "facts"}, facts.filter(([, value]) => value).map(([name, value]) => [el("dt", null, name), el("dd", null, value)]));

function ledgerDecision(root, seq) {
  const path = `/v1/decisions/ledger/${encodeURIComponent(seq)}`;
  const show = (found) => {
    const {event} = found;
    return [el("p", {class: "buttons"}, link(`/ledger/${event.seq}`, `Entry ${event.seq}, with its proof`)),
      list([["Decision", `${found.kind}, version ${found.version}`], ["Time", moment(event.time)], ["About", event.object && `${event.object.kind.toLowerCase()}/${event.object.name}`],
        ["Reasons", found.reasons.join(", ") || event.reason], ["Message", event.message], ["Hash of the input", found.inputDigest]]), replayPanel(path),
      el("div", {class: "twins"},
        part("input", "Input", found.input, found.hidden.includes("input"), "The input has rows of all tenants: it is shown to admins. The replay uses it all the same."),
        part("output", "Output", found.output, found.hidden.includes("output"), "The output has rows of all tenants: it is shown to admins."))];
  };
  return once(root, `Decision #${seq}`, path, null, show, link(`/ledger/${encodeURIComponent(seq)}`, "The entry"));
}

const AGENTS = {node: ["nodes", "/cpu", "Node"], group: ["groups", "/traffic", "Route group"]};

function agentDecision(root, source, name, number, query) {
  const [kind, place, word] = AGENTS[source], back = link(`${place}/${encodeURIComponent(name)}`, `${word} ${name}`);
  const path = `/v1/${kind}/${encodeURIComponent(name)}/decisions/${encodeURIComponent(number)}`, asked = {agent: query.agent, at: query.at};
  const show = (found) => [el("p", {class: "buttons"}, back),
    list([["Decision", `${found.kind}, version ${found.version}`], ["Time", moment(found.time)], ["Reported by agent", found.agent],
      ["Applied", found.applied ? "yes" : "no: it was decided, and not carried out"], ["Note", found.note]]), replayPanel(path, asked),
    el("div", {class: "twins"}, part("input", "Input", found.input, false), part("output", "Output", found.output, false))];
  return once(root, `Decision ${name} #${number}`, path, asked, show, back);
}

export function open(root, {params, query}) {
  const [source, ...rest] = params.id.split("/");
  if (source === "ledger" && rest.length === 1) return ledgerDecision(root, rest[0]);
  if (Object.hasOwn(AGENTS, source) && rest.length >= 2) return agentDecision(root, source, rest.slice(0, -1).join("/"), rest.at(-1), query);
  root.append(el("h1", null, "Decision"), el("p", {class: "empty"}, `There is no decision ${params.id}.`));
  return {async refresh() { /* there is nothing to read */ }};
}
