// Submit a run, by a form or by YAML; what it leads to is shown before.
import {effects, fundingPlan} from "../lib/actions.js";
import {read, send} from "../lib/api.js";
import {el, link} from "../lib/dom.js";
import {field, mark, notice, refusal} from "../lib/dialog.js";
import {onWho, who} from "../lib/session.js";

const API = "fairlead.dev/v1alpha1";
const EXAMPLE = `apiVersion: ${API}
kind: Run
metadata: {name: train-7}
spec:
  owner: team-a
  flavor: H100
  totalGPUs: 2
  duration: 2h
  command: [python, train.py]
`;

// A command line as a program's arguments: blanks separate, quotes keep together.
export function words(text) {
  const found = [];
  let word = null, quote = "";
  for (let at = 0; at < text.length; at++) {
    const sign = text[at];
    if (quote) { if (sign === quote) quote = ""; else if (sign === "\\" && quote === '"' && at + 1 < text.length) word += text[++at]; else word += sign; }
    else if (sign === "'" || sign === '"') { quote = sign; word = word || ""; }
    else if (sign === "\\" && at + 1 < text.length) word = (word || "") + text[++at];
    else if (/\s/.test(sign)) { if (word !== null) found.push(word); word = null; }
    else word = (word || "") + sign;
  }
  if (quote) throw Object.assign(new Error("has a quote that is not closed"), {status: 422, path: "spec.command", about: "has a quote that is not closed"});
  return word === null ? found : [...found, word];
}

function manifestOf(values) {
  const spec = {owner: values.owner.trim(), flavor: values.flavor.trim(), totalGPUs: Number(values.gpus), command: words(values.command)};
  if (values.duration.trim()) spec.duration = values.duration.trim();
  if (values.directory.trim()) spec.workingDirectory = values.directory.trim();
  if (values.borrow) spec.funding = {allowBorrow: true};
  return {apiVersion: API, kind: "Run", metadata: {name: values.name.trim()}, spec};
}

function formFields() {
  return [field("Name", "name", {required: true, path: "metadata.name", hint: "small letters, digits, - and ."}),
    field("Owner", "owner", {required: true, path: "spec.owner", list: "owners", value: who.owners[0] || ""}),
    field("Flavor", "flavor", {required: true, path: "spec.flavor", list: "flavors"}),
    field("GPUs", "gpus", {type: "number", min: 1, value: 1, required: true, path: "spec.totalGPUs"}),
    field("Expected duration", "duration", {path: "spec.duration", hint: "such as 2h or 30m; empty: unknown"}),
    field("Command", "command", {path: "spec.command", hint: "as in a shell; variables and pipes need sh -c '…'"}),
    field("Working directory", "directory", {path: "spec.workingDirectory", hint: "absolute, on the node"}),
    el("p", {class: "field check"}, el("input", {type: "checkbox", id: "field-borrow", name: "borrow", "data-path": "spec.funding"}),
      el("label", {for: "field-borrow"}, "Borrow from envelopes that lend")),
    el("datalist", {id: "owners"}), el("datalist", {id: "flavors"})];
}

async function fillChoices(root) {
  const rows = await read("/v1/budgets"), sorted = (name) => [...new Set(rows.map((row) => row[name]))].sort();
  const lists = {owners: who.admin ? sorted("owner") : who.owners, flavors: sorted("flavor")};
  for (const [id, values] of Object.entries(lists)) {
    const list = root.querySelector(`#${id}`);
    if (list) list.replaceChildren(...values.map((value) => el("option", {value})));
  }
  const flavor = root.querySelector("#field-flavor");
  if (flavor && !flavor.value && lists.flavors.length === 1) flavor.value = lists.flavors[0];
}

// A form whose manifests are shown as a plan, then submitted.
function panel(id, fields, manifests, context) {
  const shown = el("div", {class: "preview", "aria-live": "polite"}), refused = el("div", {role: "alert"});
  const submit = el("button", {type: "button", class: "primary", click: act, hidden: true}, "Submit");
  const form = el("form", {input: outdate,
    submit: (event) => { event.preventDefault(); attempt(look); }}, fields, shown, refused,
  el("p", {class: "buttons"}, el("button", {type: "submit"}, "Preview"), submit));
  const values = () => Object.fromEntries(new FormData(form));
  let turn = 0;

  async function attempt(what) {
    refused.replaceChildren();
    try { await what(); mark(form, null); } catch (error) { mark(form, error); outdate(); refused.replaceChildren(refusal(error)); }
  }

  // What was previewed is what is submitted: after a change it has to be looked at again.
  function outdate() {
    turn++;
    shown.replaceChildren();
    submit.hidden = true;
  }

  async function look() {
    const own = ++turn, wanted = await manifests(values()), {items} = await send("POST", "/v1/apply", {manifests: wanted, dry_run: true});
    const parts = items.map(async (change, at) => {
      const name = `${change.object.kind.toLowerCase()}/${change.object.metadata.name}`, words = {created: "would be created", configured: "would be changed", unchanged: "is so already"};
      const plan = change.object.kind === "Run" && items.length === 1 ? await send("POST", "/v1/plan", wanted[at]) : null;
      const shownPlan = plan ? [fundingPlan(plan), plan.warnings.map((text) => el("p", null, el("b", {class: "warn"}, "Warning: "), text))] : effects(change);
      return [el("h2", null, `${name} ${words[change.change]}`), shownPlan];
    });
    const said = (await Promise.all(parts)).flat(9).filter(Boolean);
    if (own !== turn) return;
    shown.replaceChildren(...said);
    submit.hidden = false;
  }

  function act() {
    submit.disabled = true;
    attempt(async () => {
      const {items} = await send("POST", "/v1/apply", {manifests: await manifests(values())});
      const first = items[0].object;
      notice([`${first.kind.toLowerCase()}/${first.metadata.name} ${items[0].change}`, items.length > 1 && `${items.length - 1} more`,
        ...items.flatMap((item) => item.warnings || [])].filter(Boolean).join("; "));
      context.go(first.kind === "Run" ? `/runs/${encodeURIComponent(first.metadata.name)}` : "/gpu");
    }).finally(() => { submit.disabled = false; });
  }

  return el("div", {id, class: "card", role: "tabpanel", "aria-labelledby": `tab-${id}`}, form);
}

export function open(root, context) {
  const body = el("div");
  root.append(el("h1", null, "Submit a run"), body);

  function show() {
    if (who.anonymous) { body.replaceChildren(el("p", null, link("/signin", "Sign in"), " to submit a run.")); return; }
    const panels = {
      form: panel("form", formFields(), async (values) => [manifestOf(values)], context),
      yaml: panel("yaml", [field("Manifests", "text", {rows: 18, cols: 80, required: true, path: "text", value: EXAMPLE, hint: "YAML or JSON, several separated by ---; all are applied, or none"})],
        async ({text}) => (await send("POST", "/v1/manifests", {text})).manifests, context),
    };
    const tabs = Object.entries({form: "Form", yaml: "YAML"}).map(([id, label]) =>
      el("button", {type: "button", role: "tab", id: `tab-${id}`, "aria-controls": id, click: () => choose(id), keydown: (event) => {
        if (["ArrowLeft", "ArrowRight"].includes(event.key)) { const other = id === "form" ? "yaml" : "form"; choose(other); body.querySelector(`#tab-${other}`).focus(); }
      }}, label));
    body.replaceChildren(el("div", {role: "tablist", class: "tabs", "aria-label": "How to write the run"}, tabs), panels.form, panels.yaml);
    const choose = (id) => {
      for (const [each, one] of Object.entries(panels)) {
        const chosen = each === id, tab = body.querySelector(`#tab-${each}`);
        one.hidden = !chosen;
        tab.setAttribute("aria-selected", String(chosen));
        tab.setAttribute("tabindex", chosen ? "0" : "-1");
      }
    };
    choose(context.query.as === "yaml" ? "yaml" : "form");
    fillChoices(body).catch(() => { /* the server is away: names can be typed, and it says what is wrong */ });
  }

  show();
  return {close: onWho(show), async refresh() { /* what was typed stays */ }};
}
