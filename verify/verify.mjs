#!/usr/bin/env node
// Check the outcome of a Fairlead lottery: a second implementation, which shares nothing with
// fairlead_verify.py but docs/reference/outcome-export.md. Node 18 or later, built-in modules only.
//
//     node verify.mjs outcome.json [--head SIZE:ROOT]... [--key HEX]...
//
// Exit status: 0 everything holds; 1 something does not; 2 this is no export, or was edited.
// The signatures are checked by the cryptography of Node, the proofs with the loops of RFC 9162, the
// decision by doing one step after the other; where the two implementations agree, it is not
// because they make the same mistake.

import { createHash, createHmac, createPublicKey, verify as verifySignature } from "node:crypto";
import { readFileSync, realpathSync } from "node:fs";
import { fileURLToPath } from "node:url";

class Malformed extends Error {}
class DoesNotHold extends Error {}

function need(good, sentence) {
  if (!good) throw new DoesNotHold(sentence);
}

// --- bytes ---------------------------------------------------------------------------------------

const LONE_SURROGATE = /\p{Surrogate}/u;

/** RFC 8785. JavaScript's own order of keys and its own numbers are what that RFC is made of. */
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value !== null && typeof value === "object") {
    const members = Object.keys(value).sort().map((key) => `${canonical(key)}:${canonical(value[key])}`);
    return `{${members.join(",")}}`;
  }
  if (typeof value === "number" && !Number.isSafeInteger(value)) throw new Malformed(`no number of an export: ${value}`);
  if (typeof value === "string" && LONE_SURROGATE.test(value)) throw new Malformed("half a character");
  return JSON.stringify(value);
}

const same = (a, b) => canonical(a) === canonical(b);
const utf8 = (text) => Buffer.from(text, "utf8");
const hex = (text) => Buffer.from(text, "hex");
const sha256 = (...parts) => parts.reduce((hash, part) => hash.update(part), createHash("sha256")).digest();
export const digest = (document) => sha256(canonical(document)).toString("hex");
const hmac = (key, ...parts) => parts.reduce((mac, part) => mac.update(part), createHmac("sha256", key)).digest();

function eight(number) {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64BE(BigInt(number));
  return bytes;
}

function lp(part) {
  const bytes = typeof part === "string" ? utf8(part) : part;
  return Buffer.concat([eight(bytes.length), bytes]);
}

/** By code point, which is the order of UTF-8 and not that of JavaScript. Lists compare item by item. */
export function compare(a, b) {
  if (Array.isArray(a)) {
    for (let i = 0; i < Math.min(a.length, b.length); i++) {
      const order = compare(a[i], b[i]);
      if (order) return order;
    }
    return a.length - b.length;
  }
  return typeof a === "number" ? a - b : Buffer.compare(utf8(a), utf8(b));
}

const sortedBy = (list, key) => [...list].sort((a, b) => compare(key(a), key(b)));
const rises = (keys) => keys.every((key, i) => i === 0 || compare(keys[i - 1], key) < 0);

// --- chance --------------------------------------------------------------------------------------

export function seedOf(conflictDigest, k, entropy, beaconValue, nonces) {
  const parts = [lp("fairlead/seed/v1"), lp(conflictDigest), lp(eight(k)), lp(entropy), lp(beaconValue)];
  for (const [owner, nonce] of sortedBy(nonces, ([name]) => name)) parts.push(lp(owner), lp(nonce));
  return sha256(...parts);
}

export function fairNumber(n, seed, stage, k) {
  const limit = 2n ** 64n - (2n ** 64n % BigInt(n));
  for (let counter = 0; ; counter++) {
    const mac = hmac(seed, "fairlead/lottery/v1\0", stage, "\0", eight(k), eight(counter));
    const x = mac.readBigUInt64BE(0);
    if (x < limit) return Number(x % BigInt(n));
  }
}

export function pseudonym(secret, chain, k, kind, parts) {
  const key = hmac(secret, lp("fairlead/pseudonym/v1"), lp(hex(chain)), lp(eight(k)));
  return `${kind[0]}-${hmac(key, lp(kind), ...parts.map(lp)).toString("hex").slice(0, 32)}`;
}

// --- the decision: gpu.resolve -------------------------------------------------------------------

export function difference(lease, scope) {
  if (lease.flavor !== scope.flavor) return "flavor";
  for (const [key, value] of Object.entries(scope.location)) {
    if (!Object.hasOwn(lease.location, key) || lease.location[key] !== value) return "location";
  }
  const cap = scope.cap;
  if (cap && (lease.budget !== cap.budget || !cap.envelopes.includes(lease.envelope))) return "payer";
  return null;
}

const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
const inOrder = (leases) => [...leases].sort((a, b) => b.group - a.group || compare(a.id, b.id));

/** The output of gpu.resolve, and the tokens of the first draw as {one_in, owner, token}.
 *  Where tokens are equal, and not owners, an owner is found at the place of any of its tokens. */
export function resolve(conflict, seed, weighting = "owners") {
  const deficit = conflict.deficit_gpus;
  const inside = new Map(conflict.leases.map((lease) => [lease.id, difference(lease, conflict.scope) === null]));
  const runs = sortedBy(conflict.runs, (run) => run.id).map((run) => ({ ...run, leases: [] }));
  const byId = new Map(runs.map((run) => [run.id, run]));
  for (const lease of conflict.leases) byId.get(lease.run).leases.push(lease);
  for (const run of runs) run.leases = inOrder(run.leases); // what is open, in the order of actions
  const gpus = (leases) => sum(leases.filter((lease) => inside.get(lease.id)).map((lease) => lease.gpus));

  const candidates = gpus(conflict.leases);
  const cuts = [];
  const draws = [];
  let first = [];
  let freed = 0;

  function cut(run, kind, tier, draw, chosen) {
    const leases = run.leases.filter(chosen);
    run.leases = run.leases.filter((lease) => !chosen(lease));
    cuts.push({ run, kind, tier, draw, leases, gpus: gpus(leases), withdrawn: false });
    freed += gpus(leases);
  }

  function tierOf(run) {
    const mine = run.leases.filter((lease) => inside.get(lease.id));
    if (mine.length === 0) return null;
    if (mine.some((lease) => !lease.funded)) return "unfunded";
    return run.nominated ? "nominated" : "funded";
  }

  /** What one more step would take from a run now: {above, groups}; null if it cannot shrink. */
  function stepOf(run) {
    if (!run.malleable) return null;
    const active = run.leases.filter((lease) => lease.role === "active");
    const above = sum(active.map((lease) => lease.gpus)) - run.malleable.min_gpus;
    const groups = [];
    let total = 0;
    for (const group of new Set(active.map((lease) => lease.group))) { // descending, as leases are
      const members = active.filter((lease) => lease.group === group);
      if (!members.every((lease) => inside.get(lease.id))) continue;
      groups.push(group);
      total += sum(members.map((lease) => lease.gpus));
      if (total <= above && total % run.malleable.step_gpus === 0) return { above, groups };
    }
    return null;
  }

  const byTokens = weighting === "tokens";
  function lottery(members, tier) {
    let tokens = members.filter((run) => gpus(run.leases) > 0);
    while (freed < deficit && tokens.length > 0) {
      const index = draws.length;
      const owners = sortedBy(new Set(tokens.map((run) => run.owner)), (owner) => owner);
      const held = new Map(owners.map((owner) => [owner, []]));
      for (const run of tokens) held.get(run.owner).push(run.id);
      if (index === 0) {
        const oneIn = (owner) => (byTokens ? tokens.length : owners.length * held.get(owner).length);
        first = tokens.map(({ id, owner }) => ({ one_in: oneIn(owner), owner, token: id }));
      }
      let place = fairNumber(byTokens ? tokens.length : owners.length, seed, "owner", index);
      const owner = owners.find((each) => {
        place -= byTokens ? held.get(each).length : 1;
        return place < 0;
      });
      const mine = held.get(owner);
      const token = mine[fairNumber(mine.length, seed, "token", index)];
      draws.push({ index, tier, owners, owner, tokens: mine, token });
      cut(byId.get(token), "RandomPreempt", tier, index, () => true);
      tokens = tokens.filter((run) => run.id !== token);
    }
  }

  if (candidates >= deficit) {
    const tiers = new Map(runs.map((run) => [run.id, tierOf(run)]));
    for (const tier of ["unfunded", "nominated", "funded"]) {
      const members = runs.filter((run) => tiers.get(run.id) === tier);
      for (const run of members) {
        for (const spare of run.leases.filter((lease) => lease.role === "spare" && inside.get(lease.id))) {
          if (freed < deficit) cut(run, "DropSpare", tier, null, (lease) => lease === spare);
        }
      }
      const steps = new Map(members.map((run) => [run, stepOf(run)]).filter(([, step]) => step));
      while (freed < deficit && steps.size > 0) {
        let best = null; // members are sorted by id, so the first of equals stays
        for (const [run, step] of steps) {
          if (best === null || step.above > steps.get(best).above) best = run;
        }
        const { groups } = steps.get(best);
        cut(best, "Shrink", tier, null, (lease) => groups.includes(lease.group));
        const following = stepOf(best);
        if (following) steps.set(best, following);
        else steps.delete(best);
      }
      lottery(members, tier);
    }
  }

  // Give-back. What stays cut of a run keeps its earlier steps and the spares of its groups cut.
  const drawn = new Set(draws.map((draw) => draw.token));
  const staying = new Map(runs.map((run) => [run, new Set()]));
  for (const each of [...cuts].reverse()) {
    const shrunk = staying.get(each.run);
    const groups = each.leases.map((lease) => lease.group);
    const held = drawn.has(each.run.id)
      || (each.kind === "Shrink" ? shrunk.size > 0 : groups.some((group) => shrunk.has(group)));
    if (!held && freed - each.gpus >= deficit) {
      each.withdrawn = true;
      freed -= each.gpus;
    } else if (each.kind === "Shrink") {
      for (const group of groups) shrunk.add(group);
    }
  }

  const lines = (withdrawn) => cuts.filter((each) => each.withdrawn === withdrawn).flatMap(({ run, kind, tier, draw, leases }) =>
    leases.map((lease) => ({
      lease: lease.id, run: run.id, kind, gpus: lease.gpus, in_scope: inside.get(lease.id), tier, draw,
    })));
  const result = {
    resolved: candidates >= deficit, deficit_gpus: deficit, freed_gpus: freed, actions: lines(false), withdrawn: lines(true),
    draws, conflict_digest: digest(conflict), shortfall_gpus: Math.max(0, deficit - candidates),
  };
  return { result, first };
}

function noticeOf(conflict, leftOut, weighting) {
  const why = conflict.leases.map((lease) => ({ lease: lease.id, reason: difference(lease, conflict.scope) }));
  return {
    candidates: sortedBy(why.filter((row) => row.reason === null).map((row) => row.lease), (lease) => lease),
    exclusions: sortedBy([...why.filter((row) => row.reason !== null), ...leftOut], (row) => row.lease),
    tokens: sortedBy(resolve(conflict, Buffer.alloc(32), weighting).first, (row) => row.token),
  };
}

// --- the log -------------------------------------------------------------------------------------

const leafHash = (data) => sha256(Buffer.from([0]), data);
const nodeHash = (left, right) => sha256(Buffer.from([1]), left, right);

/** RFC 9162, 2.1.3.2. Sizes up to 2^53 need division where the RFC shifts. */
export function includes(leaf, index, size, proof, root) {
  if (index >= size) return false;
  let [fn, sn, r] = [index, size - 1, leaf];
  for (const p of proof) {
    if (sn === 0) return false;
    if (fn % 2 === 1 || fn === sn) {
      r = nodeHash(p, r);
      while (fn % 2 === 0 && fn !== 0) [fn, sn] = [Math.floor(fn / 2), Math.floor(sn / 2)];
    } else {
      r = nodeHash(r, p);
    }
    [fn, sn] = [Math.floor(fn / 2), Math.floor(sn / 2)];
  }
  return sn === 0 && r.equals(root);
}

/** RFC 9162, 2.1.4.2. */
export function continues(oldSize, oldRoot, newSize, newRoot, proof) {
  if (oldSize === newSize) return proof.length === 0 && oldRoot.equals(newRoot);
  if (oldSize < 1 || oldSize > newSize) return false;
  if (proof.length === 0) return false;
  const isPowerOfTwo = (BigInt(oldSize) & BigInt(oldSize - 1)) === 0n;
  const path = isPowerOfTwo ? [oldRoot, ...proof] : [...proof];
  let [fn, sn] = [oldSize - 1, newSize - 1];
  while (fn % 2 === 1) [fn, sn] = [Math.floor(fn / 2), Math.floor(sn / 2)];
  let [fr, sr] = [path[0], path[0]];
  for (const c of path.slice(1)) {
    if (sn === 0) return false;
    if (fn % 2 === 1 || fn === sn) {
      [fr, sr] = [nodeHash(c, fr), nodeHash(c, sr)];
      while (fn % 2 === 0 && fn !== 0) [fn, sn] = [Math.floor(fn / 2), Math.floor(sn / 2)];
    } else {
      sr = nodeHash(sr, c);
    }
    [fn, sn] = [Math.floor(fn / 2), Math.floor(sn / 2)];
  }
  return sn === 0 && fr.equals(oldRoot) && sr.equals(newRoot);
}

export function signatureHolds(publicKey, message, signature) {
  try {
    const key = createPublicKey({ key: { kty: "OKP", crv: "Ed25519", x: publicKey.toString("base64url") }, format: "jwk" });
    return verifySignature(null, message, key, signature);
  } catch {
    return false; // not a point of the curve
  }
}

// --- the form ------------------------------------------------------------------------------------
// A form is a function of a value and its path that throws.

const refuse = (path) => { throw new Malformed(`${path} is not as an export has it`); };
const when = (good) => (value, path) => { if (!good(value)) refuse(path); };
const like = (pattern) => when((value) => typeof value === "string" && pattern.test(value));
const atLeast = (least) => when((value) => Number.isSafeInteger(value) && value >= least);
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const text = when((value) => typeof value === "string");
const bool = when((value) => typeof value === "boolean");
const any = when(isObject);
const hash = like(/^[0-9a-f]{64}$/);
const bytes = like(/^([0-9a-f]{2})+$/);
const named = (letter) => like(new RegExp(`^${letter}-[0-9a-f]{32}$`));
const [ownerId, runId, leaseId, budgetId, envelopeId, capId] = [..."orlbec"].map(named);
const maybe = (form) => (value, path) => { if (value !== null) form(value, path); };
const list = (form) => (value, path) => {
  if (!Array.isArray(value)) refuse(path);
  value.forEach((item, i) => form(item, `${path}[${i}]`));
};
const map = (keyForm, form) => (value, path) => {
  any(value, path);
  for (const key of Object.keys(value)) {
    keyForm(key, `${path}.${key}`);
    form(value[key], `${path}.${key}`);
  }
};
const object = (fields, open = false) => (value, path) => {
  any(value, path);
  const names = Object.keys(fields);
  if (!names.every((name) => Object.hasOwn(value, name))) refuse(path);
  if (!open && Object.keys(value).length !== names.length) refuse(path);
  for (const name of names) fields[name](value[name], `${path}.${name}`);
};

const location = map(text, text);
const scope = object({
  flavor: text, location, cap: maybe(object({ budget: budgetId, envelopes: list(envelopeId), name: capId })),
});
const head = object({
  ledger: text, epoch: atLeast(0), size: atLeast(1), root: hash, time_ms: atLeast(0),
  key_id: like(/^[0-9a-f]{16}$/), signature: like(/^[0-9a-f]{128}$/),
});
const answer = {
  chain: hash, k: atLeast(0), commit_seq: atLeast(1), commit_head: head, entropy: hash, beacon_value: maybe(bytes),
  seed: maybe(hash), result_digest: maybe(hash), label: text, next_commitment: hash,
};
const bodies = new Map(Object.entries({
  "gpu.resolve.scope": { chain: hash, flavor: text, location, capped: bool, next_commitment: hash },
  "gpu.resolve.commit": {
    chain: hash, k: atLeast(0), previous_seq: atLeast(1), scope, deficit_gpus: atLeast(0), conflict_digest: hash,
    notice_digest: hash, nonces: list(object({ owner: ownerId, nonce: bytes })),
    beacon: maybe(object({ source: text, round: atLeast(0) })),
  },
  "gpu.resolve.draw": answer,
  "gpu.resolve.void": { ...answer, reason: text },
  "lease.close": { lease: text, run: text, reason: text, outcome: atLeast(1) },
  "owner.pseudonym": { commitment: hash, owner: text },
}));
const entry = object({
  author: text, body: any, effect: maybe(text), input_digest: maybe(hash), kind: text, plan_id: maybe(text),
  reasons: list(text), seq: atLeast(1), time_ms: atLeast(0), version: atLeast(0),
});
const proved = (...kinds) => (value, path) => {
  object({ entry, proof: list(hash) })(value, path);
  if (!kinds.includes(value.entry.kind)) refuse(`${path}.entry.kind`);
  object(bodies.get(value.entry.kind), true)(value.entry.body, `${path}.entry.body`);
};
const exported = object({
  format: like(/^fairlead-outcome\/1$/), chain: hash, k: atLeast(0), scope,
  previous: proved("gpu.resolve.scope", "gpu.resolve.draw", "gpu.resolve.void"),
  commit: proved("gpu.resolve.commit"),
  draw: maybe(proved("gpu.resolve.draw")),
  void: maybe(proved("gpu.resolve.void")),
  conflict: object({
    scope, deficit_gpus: atLeast(0),
    runs: list(object({
      id: runId, owner: ownerId, nominated: bool,
      malleable: maybe(object({ min_gpus: atLeast(1), step_gpus: atLeast(1) })),
    })),
    leases: list(object({
      id: leaseId, run: runId, role: like(/^(active|spare)$/), group: atLeast(0), gpus: atLeast(1), flavor: text,
      location, funded: bool, budget: budgetId, envelope: envelopeId,
    })),
  }),
  notice: object({
    candidates: list(leaseId), exclusions: list(object({ lease: leaseId, reason: text })),
    tokens: list(object({ one_in: atLeast(1), owner: ownerId, token: runId })),
  }),
  result: maybe(any),
  closures: list(proved("lease.close")),
  openings: list(object({
    owner: text, secret: hash, entry: proved("owner.pseudonym"),
    names: list(object({ kind: like(/^(run|lease|budget|envelope|cap)$/), parts: list(text) })),
  })),
  head, keys: map(like(/^[0-9a-f]{16}$/), hash),
  consistency: list(object({
    old_size: atLeast(1), old_root: hash, new_size: atLeast(1), new_root: hash, proof: list(hash),
  })),
});

function readExport(data) {
  let document;
  try {
    document = JSON.parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data));
    if (utf8(`${canonical(document)}\n`).equals(data)) return document;
  } catch (error) {
    throw new Malformed(`the file is not JSON in UTF-8: ${error.message}`);
  }
  throw new Malformed("the file is not canonical JSON and one line feed; it was edited");
}

const PAIRS = ["envelope", "cap"]; // named with their budget
const RULES = new Map([["owners", 1], ["tokens", 2]]); // between whom chance is fair, and the version of the rules

/** Early commitments do not say it: owners are equal. */
function weightingOf({ body }) {
  return Object.hasOwn(body, "owner_weighting") ? body.owner_weighting : "owners";
}

function checkForm(x) {
  exported(x, "$");
  const runs = new Set(x.conflict.runs.map((run) => run.id));
  const good = !(x.draw && x.void)
    && rises(x.conflict.runs.map((run) => run.id))
    && rises(x.conflict.leases.map((lease) => lease.id))
    && x.conflict.leases.every((lease) => runs.has(lease.run))
    && rises(x.scope.cap?.envelopes ?? [])
    && rises(x.commit.entry.body.nonces.map((each) => each.owner))
    && rises(x.closures.map((each) => each.entry.seq))
    && rises(x.openings.map((each) => each.owner))
    && x.openings.every((each) => rises(each.names.map((name) => [name.kind, name.parts])))
    && x.openings.every((each) => each.names.every(({ kind, parts }) => parts.length === (PAIRS.includes(kind) ? 2 : 1)));
  if (!good) throw new Malformed("a list is not sorted, names something twice, or something unknown");
  if (!RULES.has(weightingOf(x.commit.entry))) throw new Malformed("the commitment does not say between whom chance is fair");
}

// --- the checks ----------------------------------------------------------------------------------

const at = (each) => new Date(Math.min(each.time_ms, 253402300799000)).toISOString();

const CHECKS = {
  proofs({ x, say }) {
    const shown = [x.previous, x.commit, x.draw, x.void, ...x.closures, ...x.openings.map((each) => each.entry)]
      .filter((each) => each !== null);
    for (const each of shown) {
      const leaf = leafHash(canonical(each.entry));
      const good = includes(leaf, each.entry.seq - 1, x.head.size, each.proof.map(hex), hex(x.head.root));
      need(good, `entry ${each.entry.seq} is not in the log of the head`);
    }
    say(`All ${shown.length} entries shown are in the log of ${x.head.size} entries.`);
  },

  consistency({ x, say, answered, trees }) {
    const here = `${x.head.size}:${x.head.root}`;
    trees.add(here);
    for (const link of x.consistency) {
      const ends = [`${link.old_size}:${link.old_root}`, `${link.new_size}:${link.new_root}`];
      need(ends.includes(here), "a consistency proof is of other heads");
      const good = continues(link.old_size, hex(link.old_root), link.new_size, hex(link.new_root), link.proof.map(hex));
      need(good, `the log of ${link.new_size} entries does not continue that of ${link.old_size}`);
      ends.forEach((end) => trees.add(end));
    }
    if (!answered) return;
    const then = answered.body.commit_head;
    need(trees.has(`${then.size}:${then.root}`) && then.ledger === x.head.ledger,
      "the head under the commitment does not lead to the head");
    need(x.commit.entry.seq <= then.size && then.size < answered.seq,
      "the commitment was not under a head before its outcome");
    say(`The commitment was under a head of ${then.size} entries before entry ${answered.seq} revealed the outcome.`);
  },

  digests({ x, say, commit, answered }) {
    const { body } = commit;
    need(digest(x.conflict) === body.conflict_digest && body.conflict_digest === commit.input_digest,
      "the conflict is not the one that was frozen");
    need(same(body.scope, x.conflict.scope) && same(x.scope, x.conflict.scope)
      && body.deficit_gpus === x.conflict.deficit_gpus, "scope or deficit are not those of the conflict");
    need(digest(x.notice) === body.notice_digest, "the notice is not the one that was given");
    const recorded = answered ? answered.body.result_digest : null;
    need(recorded === (x.result && digest(x.result)), "the result is not the one that was recorded");
    say(`Entry ${commit.seq} froze the conflict at ${at(commit)}: ${body.deficit_gpus} GPUs missing, `
      + `${x.conflict.runs.length} runs with ${x.conflict.leases.length} leases.`);
  },

  order({ x, previous, commit, answered }) {
    const before = previous.body;
    for (const [each, effect] of [[commit, "commit"], [answered, "outcome"]]) {
      if (!each) continue;
      need(each.body.chain === x.chain && each.body.k === x.k && each.effect === effect
        && each.plan_id === `resolve.${x.chain.slice(0, 16)}.${x.k}`, `entry ${each.seq} is of another outcome`);
      need(each.version === RULES.get(weightingOf(commit)), "the rules are of a version unknown here");
    }
    need(before.chain === x.chain && commit.body.previous_seq === previous.seq && previous.seq < commit.seq,
      "the commitment does not follow the entry before in its sequence");
    const sequence = `resolve.${x.chain.slice(0, 16)}`;
    // By plan and effect: of those a ledger has one, so that there is one entropy to choose from.
    const follows = previous.kind === "gpu.resolve.scope"
      ? x.k === 0 && before.flavor === x.scope.flavor && same(before.location, x.scope.location)
        && before.capped === (x.scope.cap !== null) && previous.plan_id === sequence && previous.effect === "scope"
      : before.k === x.k - 1 && previous.plan_id === `${sequence}.${x.k - 1}` && previous.effect === "outcome";
    need(follows, "the entry before is of another scope or outcome");
    need(!answered || (answered.body.commit_seq === commit.seq && commit.seq < answered.seq),
      "the outcome answers another commitment");
  },

  commitment({ say, previous, answered }) {
    if (!answered) return say("Its entropy is not revealed: nobody may have been cut for it yet.");
    need(sha256(hex(answered.body.entropy)).toString("hex") === previous.body.next_commitment,
      "the entropy is not the one promised before the conflict");
    return say(`The hash of its entropy was out since ${at(previous)} (entry ${previous.seq}).`);
  },

  seed({ x, say, commit, answered }) {
    if (!answered) return undefined;
    const { body } = answered;
    const { beacon, nonces } = commit.body;
    const owners = new Set(x.conflict.runs.map((run) => run.owner));
    need(nonces.every((each) => owners.has(each.owner)), "there is a nonce of somebody without a run in the conflict: a free salt");
    const label = beacon || nonces.length > 0 ? "verifiable" : "operator-trusted";
    need(body.label === label, `the outcome is called ${body.label}, and is ${label}`);
    if (beacon && body.beacon_value === null) {
      need(x.void && body.seed === null && body.result_digest === null,
        "there is an outcome without the beacon that it was to depend on");
      return say("The beacon's round never came, so there is no outcome to disclose.");
    }
    need(beacon || body.beacon_value === null, "there is a beacon that was not announced");
    const seed = seedOf(hex(commit.body.conflict_digest), x.k, hex(body.entropy), hex(body.beacon_value ?? ""),
      nonces.map((each) => [each.owner, hex(each.nonce)]));
    need(body.seed === seed.toString("hex") && x.result !== null, "the seed is another one");
    const from = beacon ? `round ${beacon.round} of ${beacon.source}` : "no beacon";
    say(`The seed follows from conflict, entropy, ${nonces.length} nonces and ${from}.`);
    if (beacon) say(`That round is said to be ${body.beacon_value}; compare it with the source.`);
    return undefined;
  },

  decision({ x, say, commit, answered }) {
    const weighting = weightingOf(commit);
    const known = new Set(x.conflict.leases.map((lease) => lease.id));
    const leftOut = x.notice.exclusions.filter((row) => !known.has(row.lease));
    need(same(x.notice, noticeOf(x.conflict, leftOut, weighting)), "candidates, exclusions or odds were not announced as they were");
    const atStake = new Set(x.conflict.leases.filter((lease) => !difference(lease, x.scope)).map((lease) => lease.run));
    need(x.conflict.runs.every((run) => atStake.has(run.id)), "there is a run without a candidate in the conflict: a free salt");
    for (const row of leftOut) say(`Lease ${row.lease} was left out: ${row.reason}.`);
    if (x.result === null) return;
    if (weighting === "tokens") say("Every run was as likely as the next, however many its owner had.");
    const { result } = resolve(x.conflict, hex(answered.body.seed), weighting);
    need(same(result, x.result), "decided again, the result is another");
    say(`Decided again, the result is the same: ${result.freed_gpus} GPUs freed, ${result.actions.length} leases cut, `
      + `${result.draws.length} draws.`);
    if (x.void) say(`It was voided, nobody was cut. The reason given: ${answered.body.reason}.`);
  },

  openings({ x, say, commit, opened }) {
    const ownerOf = new Map(x.conflict.runs.map((run) => [run.id, run.owner]));
    const owners = new Set(ownerOf.values());
    for (const lease of x.conflict.leases) ownerOf.set(lease.id, ownerOf.get(lease.run));
    const cap = x.scope.cap;
    const there = new Set([
      ...ownerOf.keys(), ...x.notice.exclusions.map((row) => row.lease),
      ...x.conflict.leases.flatMap((lease) => [lease.budget, lease.envelope]),
      ...(cap ? [cap.budget, cap.name, ...cap.envelopes] : []),
    ]);
    for (const { entry: { entry: fixing }, owner, secret: text_, names } of x.openings) {
      const secret = hex(text_);
      const fixed = sha256(lp("fairlead/owner/v1"), lp(secret)).toString("hex");
      need(fixing.body.owner === owner && fixing.body.commitment === fixed,
        `the secret of ${owner} is not the one that was fixed`);
      need(fixing.seq < commit.seq, `the secret of ${owner} was fixed too late`);
      const me = pseudonym(secret, x.chain, x.k, "owner", [owner]);
      need(names.length > 0 || owners.has(me), `nothing of ${owner} is in this outcome`);
      for (const { kind, parts } of names) {
        const hidden = pseudonym(secret, x.chain, x.k, kind, parts);
        need(there.has(hidden) && (ownerOf.get(hidden) ?? me) === me, `${kind} ${parts.join("/")} of ${owner} is not here`);
        opened.set(hidden, { kind, parts, secret });
      }
      const mine = [...ownerOf.keys()].filter((each) => ownerOf.get(each) === me);
      need(mine.every((each) => opened.has(each)), `there are runs or leases of ${owner} that are not opened`);
      say(`${owner} is ${me} here; its pseudonyms are fixed since ${at(fixing)} (entry ${fixing.seq}), `
        + "which should be before its first run.");
      say(`The nonce of ${owner} in the seed: ${commit.body.nonces.find((each) => each.owner === me)?.nonce ?? "none"}.`);
    }
  },

  scope({ x, say, opened }) {
    let [clear, salt] = [x.scope, Buffer.alloc(0)];
    const { cap } = x.scope;
    if (cap) {
      if (![cap.budget, cap.name, ...cap.envelopes].every((each) => opened.has(each))) {
        return say("The scope is a cap of another's budget; you cannot check its name.");
      }
      const nameOf = (hidden) => opened.get(hidden).parts.at(-1);
      const envelopes = sortedBy(cap.envelopes.map(nameOf), (name) => name);
      clear = { ...x.scope, cap: { budget: nameOf(cap.budget), name: nameOf(cap.name), envelopes } };
      salt = hmac(opened.get(cap.budget).secret, lp("fairlead/chain-salt/v1"));
    }
    const chain = sha256(lp("fairlead/chain/v1"), lp(salt), lp(canonical(clear))).toString("hex");
    return need(chain === x.chain, "the sequence is not the one of this scope");
  },

  closures({ x, say, commit, answered, opened }) {
    const nameOf = (hidden) => opened.get(hidden)?.parts[0];
    const actions = x.draw ? x.result.actions.filter((action) => opened.has(action.lease)) : [];
    const cut = new Map(actions.map((action) => [nameOf(action.lease), action]));
    const ended = new Map();
    for (const { entry: each } of x.closures) {
      const { body } = each;
      const action = cut.get(body.lease);
      const good = action && body.reason === action.kind && body.run === nameOf(action.run)
        && body.outcome === commit.seq && answered.seq < each.seq;
      need(good, `lease ${body.lease} was not to end like this`);
      ended.set(body.lease, `ended ${at(each)}`);
    }
    for (const [lease, action] of cut) {
      const draw = action.draw === null ? "" : ` in draw ${action.draw}`;
      say(`Yours: lease ${lease}, ${action.gpus} GPUs, ${action.kind}${draw}; ${ended.get(lease) ?? "not ended yet"}.`);
    }
  },

  signatures({ x, say, answered }) {
    const heads = answered ? [x.head, answered.body.commit_head] : [x.head];
    const ids = [...new Set(heads.map((each) => each.key_id))].sort();
    need(same(ids, Object.keys(x.keys).sort()), "a key is missing or useless");
    for (const { signature, ...unsigned } of heads) {
      const key = hex(x.keys[unsigned.key_id]);
      need(sha256(key).toString("hex").startsWith(unsigned.key_id), "a key does not have the id it is given");
      const message = utf8(`fairlead/head/v1\n${canonical(unsigned)}`);
      need(signatureHolds(key, message, hex(signature)), `the signature of the head of ${unsigned.size} entries does not hold`);
    }
    say(`The heads of ledger ${x.head.ledger} are signed with key ${ids.join(" and ")}.`);
  },

  kept({ x, say, answered, trees, keptHeads, keptKeys }) {
    for (const each of keptHeads) {
      const [size] = each.split(":");
      need([...trees].some((tree) => tree.startsWith(`${size}:`)), `nothing leads to your head; ask for an export with --head ${each}`);
      need(trees.has(each), `this is not the log that you saw when it had ${size} entries`);
      say(`This is the log that you saw when it had ${size} entries.`);
    }
    for (const key of keptKeys) {
      const heads = [["the head", x.head]];
      if (answered) heads.push(["the head under the commitment", answered.body.commit_head]);
      const signed = heads.filter(([, each]) => key === each.key_id || key === x.keys[each.key_id]).map(([name]) => name);
      need(signed.length > 0, `${key} did not sign this`);
      say(`The key that you know, ${key}, signed ${signed.join(" and ")}.`);
    }
    if (keptHeads.length + keptKeys.length === 0) {
      say("You named no head and no key that you kept: this is true in itself, and may still be another story "
        + "than others are told.");
    }
  },
};

/** A line as it may be printed: names and reasons are others' words, and could redraw it. */
const plain = (sentence) => sentence.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (each) => `\\u{${each.codePointAt(0).toString(16)}}`);

/** Check the bytes of an export. Heads as "SIZE:ROOT", keys as public keys or key ids in hex. */
export function verify(data, keptHeads = [], keptKeys = []) {
  const account = [];
  let check = "bytes";
  try {
    const x = readExport(data);
    check = "form";
    checkForm(x);
    account.push(`Outcome ${x.k} of ${x.scope.flavor} ${canonical(x.scope.location)}, sequence ${x.chain.slice(0, 16)}.`);
    const answered = (x.draw ?? x.void)?.entry ?? null;
    const state = {
      x, answered, previous: x.previous.entry, commit: x.commit.entry, trees: new Set(), opened: new Map(),
      say: (sentence) => { account.push(sentence); }, keptHeads, keptKeys,
    };
    for (check of Object.keys(CHECKS)) CHECKS[check](state);
    account.push(`Everything holds; ${answered ? `this outcome is ${answered.body.label}` : "the outcome is open"}.`);
    return { code: 0, check: "", account: account.map(plain) };
  } catch (error) {
    if (error instanceof DoesNotHold) account.push(`DOES NOT HOLD (${check}): ${error.message}.`);
    else if (error instanceof Malformed) account.push(`CANNOT BE CHECKED (${check}): ${error.message}.`);
    else throw error;
    return { code: error instanceof DoesNotHold ? 1 : 2, check, account: account.map(plain) };
  }
}

function main(words) {
  const given = { "--head": [], "--key": [], file: [] };
  for (let i = 0; i < words.length; i++) {
    if (words[i] === "--head" || words[i] === "--key") given[words[i]].push(words[++i]);
    else given.file.push(words[i]);
  }
  const badHead = given["--head"].some((each) => !/^[1-9][0-9]{0,15}:[0-9a-f]{64}$/.test(each));
  if (given.file.length !== 1 || given.file[0].startsWith("-") || badHead || given["--key"].includes(undefined)) {
    console.error("usage: node verify.mjs OUTCOME.json [--head SIZE:ROOT]... [--key HEX]...");
    return 2;
  }
  let data;
  try {
    data = readFileSync(given.file[0]);
  } catch (error) {
    console.error(error.message);
    return 2;
  }
  const { code, account } = verify(data, given["--head"], given["--key"]);
  console.log(account.join("\n"));
  return code;
}

if (process.argv[1] && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  process.exitCode = main(process.argv.slice(2));
}
