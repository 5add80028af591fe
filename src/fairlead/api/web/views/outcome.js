// One outcome of the resolver, step by step: what was missing, the candidates, with which odds, what was
// promised before, what was drawn, and what follows. Names are shown as far as the server opens them.
import {read} from "../lib/api.js";
import {verifier} from "../lib/checkpoint.js";
import {bar, count, el, link, moment, number, section, soft, Table} from "../lib/dom.js";
import {verifyPanel} from "../lib/verify.js";

export const LABELS = {
  "operator-trusted": "Only the operator contributed to the seed. The operator promised it before the conflict, and could not choose it afterwards; that the operator told no owner, you have to believe.",
  "owner-nonced": "An owner with a run in the conflict contributed a signed nonce. Relative to that owner, neither the operator nor another owner could know the seed before; to others it is operator-trusted.",
  beacon: "The seed depends on a public beacon’s round that was still to come when the conflict was frozen: neither the operator nor an owner could know it.",
  verifiable: "Drawn by the first protocol: the arithmetic can be checked; that the operator did not choose among outcomes cannot.",
};
const RULES = {
  owners: "Every owner was as likely as the next, then every run of that owner.",
  tokens: "Every run was as likely as the next, however many its owner had.",
  stake: "Every GPU was as likely as the next, however its owner divided them into runs.",
};
const KINDS = {DropSpare: "spare dropped", Shrink: "shrunk", RandomPreempt: "preempted"};
export const FOR = {scope: "an operator", cap: "a cap of a budget", reservation: "a reservation", run: "a run started at once", drain: "a drained node", admission: "a funded run"};
const CAUSES = {
  scope: "Freed by hand, on an operator’s request", cap: "A cap of a budget was exceeded", reservation: "A reservation fell due",
  run: "A run was started at once", drain: "A node is drained", admission: "A funded run lacked devices that unfunded runs held",
};
const SHOWN = 300;

const place = (scope) => Object.entries(scope.location).map(([key, value]) => ` ${key}=${value}`).join("");
const step = (id, title, ...children) => el("li", {class: "step"}, section(id, title, ...children));
const mono = (text) => el("code", {class: "hash"}, text);

class Names {
  constructor(names) { Object.assign(this, {names, hidden: !Object.keys(names).length}); }

  // A name that is the reader's to know, or the start of its pseudonym.
  of(id) {
    const known = Object.hasOwn(this.names, id) ? this.names[id] : null;
    if (known === null) return el("span", {class: "pseudonym", title: `Pseudonym ${id}`}, `${id.slice(0, 10)}…`);
    return id.startsWith("r-") ? link(`/runs/${encodeURIComponent(known)}`, known) : el("span", {title: id}, known);
  }
}

function odds(token) {
  if (!token) return "not in the lottery";
  const first = token.times === undefined ? `1 in ${number(token.one_in)}` : `${token.times} in ${number(token.one_in)}`;
  return first;
}

function total(token) {
  if (!token) return null;
  const percent = `${number(token.chance * 100, 1)} %${token.chance_error ? ` ± ${number(token.chance_error * 100, 1)}` : ""}`;
  return el("div", {class: "chance"}, bar("Odds", token.chance * 100, 100, "%")[0], el("span", null, percent));
}

function missing(told) {
  const wanted = told.run ? [" for ", link(`/runs/${encodeURIComponent(told.run)}`, told.run)] : [];
  return step("missing", "What was missing", el("p", {class: "big"}, `${count(told.deficitGPUs, "GPU")} `, soft(`${told.scope.flavor}${place(told.scope)}`)),
    el("p", null, CAUSES[told.cause] || `Cause: ${told.cause}`, wanted, told.reservation ? `, reservation ${told.reservation}` : "", ". The conflict was frozen ",
      moment(told.committed), " in ", link(`/ledger/${told.outcome}`, `entry ${told.outcome}`), "."));
}

function promised(x) {
  const {entry: before} = x.previous, {entry: commit} = x.commit;
  return step("promise", "What was promised before", el("p", null, "The hash of the operator’s entropy was out since ", moment(before.time_ms), " (",
    link(`/ledger/${before.seq}`, `entry ${before.seq}`), "), before anybody knew this conflict."),
  el("dl", {class: "facts"}, el("dt", null, "Hash of the entropy"), el("dd", null, before.body.next_commitment),
    el("dt", null, "Hash of the conflict"), el("dd", null, commit.body.conflict_digest),
    el("dt", null, "Hash of candidates and odds"), el("dd", null, commit.body.notice_digest)));
}

function candidates(x, told, names, v) {
  const inside = x.conflict.leases.filter((lease) => v.difference(lease, x.conflict.scope) === null);
  const mine = Map.groupBy ? Map.groupBy(inside, (lease) => lease.run) : inside.reduce((all, each) => all.set(each.run, [...(all.get(each.run) || []), each]), new Map());
  const tokens = new Map(told.tokens.map((token) => [token.token, token]));
  const acts = new Map((told.result ? told.result.actions : []).map((action) => [action.run, action]));
  const fate = (run) => (acts.has(run) ? acts.get(run).draw === null ? KINDS[acts.get(run).kind] : `drawn, number ${acts.get(run).draw + 1}`
    : told.result ? "stays" : "open");
  const parts = v.TIERS.map((tier) => [tier, x.conflict.runs.filter((run) => v.tierOf(run, mine.get(run.id) || []) === tier)]).filter(([, runs]) => runs.length);
  const tables = parts.map(([tier, runs]) => {
    const table = new Table(`Candidates, ${tier}`, ["Run", "Owner", "GPUs", "First draw", "All draws", "Result"], {key: (run) => run.id, nothing: "None.",
      cells: (run) => [names.of(run.id), names.of(run.owner), number((mine.get(run.id) || []).reduce((sum, lease) => sum + lease.gpus, 0)),
        odds(tokens.get(run.id)), total(tokens.get(run.id)), el("span", {class: acts.has(run.id) ? "warn" : "soft"}, fate(run.id))]});
    const order = [...runs].sort((a, b) => acts.has(b.id) - acts.has(a.id));
    table.show(order.slice(0, SHOWN));
    return [el("h3", null, `${tier[0].toUpperCase()}${tier.slice(1)} `, soft(count(runs.length, "run"))), table.root,
      runs.length > SHOWN ? el("p", {class: "soft"}, `${SHOWN} of ${number(runs.length)} are shown; the export has all.`) : null];
  });
  const spared = x.notice.exclusions.map((row) => el("li", null, names.of(row.lease), soft(row.reason)));
  return step("candidates", "Candidates for preemption", el("p", null, "The resolver preempts unfunded runs first, then nominated ones, then funded ones. ", RULES[told.ownerWeighting]),
    names.hidden ? el("p", {class: "soft"}, "Runs and owners have pseudonyms here, so that an outcome can be published. Sign in to see the names of your own; admins see all.") : null, tables, spared.length ? el("details", null, el("summary", null, `${count(spared.length, "lease")} left out`), el("ul", {class: "plain"}, spared.slice(0, SHOWN))) : null);
}

function seed(x, told, names) {
  const {nonces, beacon} = x.commit.entry.body, final = x.draw || x.void;
  const lines = nonces.map((each) => [el("span", null, "Nonce of ", names.of(each.owner)), each.nonce]);
  if (final) lines.unshift(["Operator’s entropy", final.entry.body.entropy]);
  if (beacon) lines.push([`${beacon.source}, round ${beacon.round}`, final && final.entry.body.beacon_value ? final.entry.body.beacon_value : "not recorded yet"]);
  if (told.seed) lines.push([el("strong", null, "Seed"), told.seed]);
  const label = told.label && el("p", null, el("span", {class: "badge"}, told.label), " ", LABELS[told.label]);
  return step("seed", "Where the seed came from", label, el("dl", {class: "facts"}, lines.map(([name, value]) => [el("dt", null, name), el("dd", null, value)])),
    final ? el("p", null, "Revealed ", moment(told.answered), " in ", link(`/ledger/${told.finalSeq}`, `entry ${told.finalSeq}`), ".") : el("p", {class: "empty"}, "Not revealed yet."));
}

function chips(label, all, chosen, names) {
  const shown = all.slice(0, 40), rest = all.length - shown.length;
  if (!shown.includes(chosen)) shown.push(chosen);
  return el("ul", {class: "chips", "aria-label": label}, shown.map((id) => el("li", {class: id === chosen ? "chosen" : null},
    id === chosen ? el("span", {"aria-label": "drawn"}, "▶ ") : null, names.of(id))), rest > 0 ? el("li", {class: "soft"}, `and ${number(rest)} more`) : null);
}

function draws(told, names) {
  const made = told.result ? told.result.draws : [];
  const rows = made.slice(0, SHOWN).map((draw) => el("li", {class: "draw"}, el("h3", null, `Draw ${draw.index + 1} `, soft(`among ${draw.tier} runs`)),
    chips("Owners", draw.owners, draw.owner, names), chips("Runs of the drawn owner", draw.tokens, draw.token, names)));
  return step("draws", "The draws, in order", made.length ? el("ol", {class: "draws"}, rows) : el("p", {class: "empty"}, told.result
    ? "No draw was needed: spares and malleable runs freed enough." : "Nothing was drawn."),
  made.length > SHOWN ? el("p", {class: "soft"}, `${SHOWN} of ${number(made.length)} are shown; the export has all.`) : null);
}

function effects(told, names) {
  if (told.reason) return step("effects", "What followed", el("p", {class: "warn"}, "The outcome was voided, and no run was preempted: ", told.reason));
  if (!told.result) return step("effects", "What followed", el("p", {class: "empty"}, "Nothing yet."));
  const result = told.result, columns = ["Lease", "Run", "What", "GPUs", "Tier", "Draw"];
  const cells = (row) => [names.of(row.lease), names.of(row.run), KINDS[row.kind] || row.kind, number(row.gpus), row.tier, row.draw === null ? "–" : String(row.draw + 1)];
  const actions = new Table("Preempted", columns, {key: (row) => row.lease, cells, nothing: "No run was preempted."});
  actions.body.id = "action-rows";
  actions.show(result.actions.slice(0, SHOWN));
  const back = new Table("Given back", columns, {key: (row) => row.lease, cells, nothing: "Nothing."});
  back.show(result.withdrawn.slice(0, SHOWN));
  return step("effects", "What followed", el("p", null, `${count(result.freed_gpus, "GPU")} freed of ${number(result.deficit_gpus)} missing`,
    result.shortfall_gpus ? el("strong", null, `; ${number(result.shortfall_gpus)} could not be freed`) : "", `. Stage: ${told.stage}.`), actions.root,
  result.withdrawn.length ? [el("h3", null, "Given back, because it was not needed in the end"), back.root] : null);
}

export async function open(root, {params}) {
  const name = params.outcome, body = el("div");
  root.append(el("h1", null, `Outcome #${name}`), body);
  const v = await verifier(), panel = verifyPanel(name);
  let shown = null;
  return {
    async refresh() {
      const told = await read(`/v1/outcomes/${encodeURIComponent(name)}`), said = JSON.stringify(told);
      if (said === shown) return;
      const x = await read(`/v1/outcomes/${encodeURIComponent(name)}/export`, {public: true});
      const names = new Names(told.names);
      body.replaceChildren(panel, el("ol", {class: "steps"}, missing(told), promised(x), candidates(x, told, names, v), seed(x, told, names),
        draws(told, names), effects(told, names)));
      shown = said;
    },
  };
}
