#!/usr/bin/env node
// Check the outcome of a Fairlead lottery: a second implementation, which shares nothing with
// fairlead_verify.py but docs/reference/outcome-export.md. It needs nothing but this file and Node 18 or later; the page of
// a control plane runs the same file in the browser ("Verify" beside an outcome).
//
//     node verify.mjs outcome.json [--head SIZE:ROOT]... [--key HEX]... [--network HEX]... [--owner-key HEX]...
//
// Exit status: 0 everything holds; 1 something does not; 2 this is no export, or was edited.
// SHA-256, HMAC and Ed25519 are those of the Web Cryptography API, which Node and browsers have; BLS12-381 (drand) with towers of fields, the proofs with the
// loops of RFC 9162, the decision by doing one step after the other; where the two implementations agree, it is not
// because they make the same mistake.

class Malformed extends Error {}
class DoesNotHold extends Error {}

/** Nothing but `true` will do: a promise that was not awaited is no proof. */
function need(good, sentence) {
  if (good !== true) throw new DoesNotHold(sentence);
}

function counted(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
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
const encoder = new TextEncoder();
const utf8 = (text) => encoder.encode(text);
export const hex = (text) => Uint8Array.from(text.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
export const toHex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

function joined(parts) {
  const all = parts.map((part) => (typeof part === "string" ? utf8(part) : part));
  const whole = new Uint8Array(all.reduce((total, part) => total + part.length, 0));
  let place = 0;
  for (const part of all) {
    whole.set(part, place);
    place += part.length;
  }
  return whole;
}

/** The order of bytes: below, at or above 0. */
function order(a, b) {
  for (let i = 0; i < Math.min(a.length, b.length); i++) if (a[i] !== b[i]) return a[i] - b[i];
  return a.length - b.length;
}

const equal = (a, b) => order(a, b) === 0;

// Node 18 has it as a module only. A browser has it where the page came over HTTPS, or from the same machine.
const { subtle } = globalThis.crypto ?? (await import("node:crypto")).webcrypto;
const SHA256 = "SHA-256";
const HMAC = { name: "HMAC", hash: SHA256 };
const sha256 = async (...parts) => new Uint8Array(await subtle.digest(SHA256, joined(parts)));
/** The id of a public key. */
export const idOfKey = async (key) => toHex(await sha256(key)).slice(0, 16);
export const digest = async (document) => toHex(await sha256(canonical(document)));

async function hmac(key, ...parts) {
  const imported = await subtle.importKey("raw", key, HMAC, false, ["sign"]);
  return new Uint8Array(await subtle.sign(HMAC, imported, joined(parts)));
}

function eight(number) {
  const bytes = new Uint8Array(8);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(number));
  return bytes;
}

function lp(part) {
  const bytes = typeof part === "string" ? utf8(part) : part;
  return joined([eight(bytes.length), bytes]);
}

/** By code point, which is the order of UTF-8 and not that of JavaScript. Lists compare item by item. */
export function compare(a, b) {
  if (Array.isArray(a)) {
    for (let i = 0; i < Math.min(a.length, b.length); i++) {
      const found = compare(a[i], b[i]);
      if (found) return found;
    }
    return a.length - b.length;
  }
  return typeof a === "number" ? a - b : order(utf8(a), utf8(b));
}

const sortedBy = (list, key) => [...list].sort((a, b) => compare(key(a), key(b)));
const rises = (keys) => keys.every((key, i) => i === 0 || compare(keys[i - 1], key) < 0);

// --- lottery -------------------------------------------------------------------------------------

export function seedOf(conflictDigest, k, entropy, beaconValue, nonces) {
  const parts = [lp("fairlead/seed/v1"), lp(conflictDigest), lp(eight(k)), lp(entropy), lp(beaconValue)];
  for (const [owner, nonce] of sortedBy(nonces, ([name]) => name)) parts.push(lp(owner), lp(nonce));
  return sha256(...parts);
}

/** The seed of a turn: nothing that the conflict says is in it. */
export function turnSeedOf(chain, turn, entropy, beaconValue, nonces) {
  const parts = [lp("fairlead/seed/v2"), lp(chain), lp(eight(turn)), lp(entropy), lp(beaconValue)];
  for (const [owner, nonce] of sortedBy(nonces, ([name]) => name)) parts.push(lp(owner), lp(nonce));
  return sha256(...parts);
}

export async function fairNumber(n, seed, stage, k) {
  const limit = 2n ** 64n - (2n ** 64n % BigInt(n));
  for (let counter = 0; ; counter++) {
    const mac = await hmac(seed, "fairlead/lottery/v1\0", stage, "\0", eight(k), eight(counter));
    const x = new DataView(mac.buffer).getBigUint64(0);
    if (x < limit) return Number(x % BigInt(n));
  }
}

export async function pseudonym(secret, chain, k, kind, parts) {
  const key = await hmac(secret, lp("fairlead/pseudonym/v1"), lp(hex(chain)), lp(eight(k)));
  return `${kind[0]}-${toHex(await hmac(key, lp(kind), ...parts.map(lp))).slice(0, 32)}`;
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

/** Where every GPU is as likely as the next: {needed, heaps, stays}. Each run but the needed is in one heap; the heap
 *  that is drawn is lost, or, if `stays`, it alone is not. Runs are {id, gpus}. */
export function heapsOf(runs, missing) {
  const total = (list) => sum(list.map((run) => run.gpus));
  const spare = total(runs) - missing;
  const order = [...runs].sort((a, b) => b.gpus - a.gpus || compare(a.id, b.id));
  const needed = order.filter((run) => run.gpus > spare); // without it all others are not enough
  const rest = order.filter((run) => run.gpus <= spare);
  const short = missing - total(needed);
  if (short <= 0) return { needed, heaps: [], stays: false };
  let [first, last, left] = [0, rest.length, total(rest)];
  const enough = [];
  while (left >= short) { // the largest run left, then the smallest
    const heap = [rest[first++]];
    let size = heap[0].gpus;
    while (size < short) {
      heap.push(rest[--last]);
      size += heap.at(-1).gpus;
    }
    enough.push(heap);
    left -= size;
  }
  if (enough.length > 1) {
    enough.at(-1).push(...rest.slice(first, last));
    return { needed, heaps: enough, stays: false };
  }
  const spared = [];
  let size = 0;
  for (const run of rest) {
    if (spared.length > 0 && size + run.gpus <= spare) {
      spared.at(-1).push(run);
      size += run.gpus;
    } else {
      spared.push([run]);
      size = run.gpus;
    }
  }
  return { needed, heaps: spared, stays: true };
}

export const TIERS = ["unfunded", "nominated", "funded"]; // in this order they are preempted

/** The tier of a run with these leases in scope; null: it is no candidate. */
export function tierOf(run, leases) {
  if (leases.length === 0) return null;
  if (leases.some((lease) => !lease.funded)) return "unfunded";
  return run.nominated ? "nominated" : "funded";
}

/** The output of gpu.resolve, and the tokens of the first draw as {one_in, owner, token}.
 *  Where tokens are equal, and not owners, an owner is found at the place of any of its tokens. */
export async function resolve(conflict, seed, weighting = "owners") {
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
  async function lottery(members, tier) {
    let tokens = members.filter((run) => gpus(run.leases) > 0);
    if (weighting === "stake") return stakes(tokens, tier);
    while (freed < deficit && tokens.length > 0) {
      const index = draws.length;
      const owners = sortedBy(new Set(tokens.map((run) => run.owner)), (owner) => owner);
      const held = new Map(owners.map((owner) => [owner, []]));
      for (const run of tokens) held.get(run.owner).push(run.id);
      if (index === 0) {
        const oneIn = (owner) => (byTokens ? tokens.length : owners.length * held.get(owner).length);
        first = tokens.map(({ id, owner }) => ({ one_in: oneIn(owner), owner, token: id }));
      }
      let place = await fairNumber(byTokens ? tokens.length : owners.length, seed, "owner", index);
      const owner = owners.find((each) => {
        place -= byTokens ? held.get(each).length : 1;
        return place < 0;
      });
      const mine = held.get(owner);
      const token = mine[await fairNumber(mine.length, seed, "token", index)];
      draws.push({ index, tier, owners, owner, tokens: mine, token });
      cut(byId.get(token), "RandomPreempt", tier, index, () => true);
      tokens = tokens.filter((run) => run.id !== token);
    }
    return undefined;
  }

  async function stakes(tokens, tier) {
    if (freed >= deficit || tokens.length === 0) return;
    const held = tokens.map((run) => ({ id: run.id, gpus: gpus(run.leases) }));
    const { needed, heaps, stays } = heapsOf(held, Math.min(deficit - freed, sum(held.map((each) => each.gpus))));
    const certain = new Set(needed.map((each) => each.id));
    if (draws.length === 0) {
      const odds = (id) => (certain.has(id) ? { one_in: 1, times: 1 }
        : heaps.length === 0 ? { one_in: 1, times: 0 }
          : { one_in: heaps.length, times: stays ? heaps.length - 1 : 1 });
      first = tokens.map(({ id, owner }) => ({ ...odds(id), owner, token: id }));
    }
    const number = heaps.length > 0 ? await fairNumber(heaps.length, seed, "heap", draws.length) : -1;
    const lost = [...needed, ...heaps.filter((_, place) => (place === number) !== stays).flat()];
    let left = tokens;
    for (const { id } of sortedBy(lost, (each) => each.id)) {
      const { owner } = byId.get(id);
      draws.push({
        index: draws.length, tier, owner, token: id,
        owners: sortedBy(new Set(left.map((run) => run.owner)), (each) => each),
        tokens: left.filter((run) => run.owner === owner).map((run) => run.id),
      });
      cut(byId.get(id), "RandomPreempt", tier, draws.length - 1, () => true);
      left = left.filter((run) => run.id !== id);
    }
  }

  if (candidates >= deficit) {
    const tiers = new Map(runs.map((run) => [run.id, tierOf(run, run.leases.filter((lease) => inside.get(lease.id)))]));
    for (const tier of TIERS) {
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
      await lottery(members, tier);
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
    draws, conflict_digest: await digest(conflict), shortfall_gpus: Math.max(0, deficit - candidates),
  };
  return { result, first };
}

async function noticeOf(conflict, leftOut, weighting) {
  const why = conflict.leases.map((lease) => ({ lease: lease.id, reason: difference(lease, conflict.scope) }));
  return {
    candidates: sortedBy(why.filter((row) => row.reason === null).map((row) => row.lease), (lease) => lease),
    exclusions: sortedBy([...why.filter((row) => row.reason !== null), ...leftOut], (row) => row.lease),
    tokens: sortedBy((await resolve(conflict, new Uint8Array(32), weighting)).first, (row) => row.token),
  };
}

// --- the log -------------------------------------------------------------------------------------

export const leafHash = (data) => sha256([0], data);
const nodeHash = (left, right) => sha256([1], left, right);

/** RFC 9162, 2.1.3.2. Sizes up to 2^53 need division where the RFC shifts. */
export async function includes(leaf, index, size, proof, root) {
  if (index >= size) return false;
  let [fn, sn, r] = [index, size - 1, leaf];
  for (const p of proof) {
    if (sn === 0) return false;
    if (fn % 2 === 1 || fn === sn) {
      r = await nodeHash(p, r);
      while (fn % 2 === 0 && fn !== 0) [fn, sn] = [Math.floor(fn / 2), Math.floor(sn / 2)];
    } else {
      r = await nodeHash(r, p);
    }
    [fn, sn] = [Math.floor(fn / 2), Math.floor(sn / 2)];
  }
  return sn === 0 && equal(r, root);
}

/** RFC 9162, 2.1.4.2. */
export async function continues(oldSize, oldRoot, newSize, newRoot, proof) {
  if (oldSize === newSize) return proof.length === 0 && equal(oldRoot, newRoot);
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
      [fr, sr] = [await nodeHash(c, fr), await nodeHash(c, sr)];
      while (fn % 2 === 0 && fn !== 0) [fn, sn] = [Math.floor(fn / 2), Math.floor(sn / 2)];
    } else {
      sr = await nodeHash(sr, c);
    }
    [fn, sn] = [Math.floor(fn / 2), Math.floor(sn / 2)];
  }
  return sn === 0 && equal(fr, oldRoot) && equal(sr, newRoot);
}

export async function signatureHolds(publicKey, message, signature) {
  try {
    const key = await subtle.importKey("raw", publicKey, "Ed25519", false, ["verify"]);
    return await subtle.verify("Ed25519", key, signature, message);
  } catch (error) {
    if (error.name === "NotSupportedError") throw error; // an old browser: neither true nor false
    return false; // not a point of the curve
  }
}

// --- the beacon: BLS12-381 as drand's quicknet signs ---------------------------------------------
// Fp2 is [a, b] for a + b·u, u² = -1. Fp12 is six Fp2, the coefficients of powers of w, w⁶ = 1 + u. Points are in Jacobian
// coordinates [X, Y, Z] for x = X/Z², y = Y/Z³, over Fp2 for both groups; Z = 0 at infinity.

const NETWORKS = new Map([["drand-quicknet", {
  genesis_ms: 1692803367000,
  period_ms: 3000,
  public_key: "83cf0f2896adee7eb8b5f01fcad3912212c437e0073e911fb90022d3e760183c8c4b450b6a0a6c3ac6a5776a2d106451"
    + "0d1fec758c921cc22b0e17e63aaf4bcb5ed66304de9cf809bd274ca73bab4af5a6e9c76a4bc09e76eae8991ef5ece45a",
}]]);
const Q = 0x1a0111ea397fe69a4b1ba7b6434bacd764774b84f38512bf6730d2a0f6b0f6241eabfffeb153ffffb9feffffffffaaabn;
const R = 0x73eda753299d7d483339d80809a1d80553bda402fffe5bfeffffffff00000001n;
const LOOP = 0xd201000000010000n;
const G2 = "93e02b6052719f607dacd3a088274f65596bd0d09920b61ab5da61bbdc7f5049334cf11213945d57e5ac7d055d042b7e"
  + "024aa2b2f08f0a91260805272dc51051c6e47ad4fa403b02b4510b647ae3d1770bac0326a805bbefd48056c8c121bdb8";
// The isogeny of RFC 9380, E.2: A and B, then the coefficients of four polynomials, constants first.
const ISOGENY = [
  "00144698a3b8e9433d693a02c96d4982b0ea985383ee66a8d8e8981aefd881ac98936f8da0e0f97f5cf428082d584c1d",
  "12e2908d11688030018b12e8753eee3b2016c1f0f24f4070a0b9c14fcef35ef55a23215a316ceaa5d1cc48e98e172be0",
  "11a05f2b1e833340b809101dd99815856b303e88a2d7005ff2627b56cdb4e2c85610c2d5f2e62d6eaeac1662734649b7",
  "17294ed3e943ab2f0588bab22147a81c7c17e75b2f6a8417f565e33c70d1e86b4838f2a6f318c356e834eef1b3cb83bb",
  "0d54005db97678ec1d1048c5d10a9a1bce032473295983e56878e501ec68e25c958c3e3d2a09729fe0179f9dac9edcb0",
  "1778e7166fcc6db74e0609d307e55412d7f5e4656a8dbf25f1b33289f1b330835336e25ce3107193c5b388641d9b6861",
  "0e99726a3199f4436642b4b3e4118e5499db995a1257fb3f086eeb65982fac18985a286f301e77c451154ce9ac8895d9",
  "1630c3250d7313ff01d1201bf7a74ab5db3cb17dd952799b9ed3ab9097e68f90a0870d2dcae73d19cd13c1c66f652983",
  "0d6ed6553fe44d296a3726c38ae652bfb11586264f0f8ce19008e218f9c86b2a8da25128c1052ecaddd7f225a139ed84",
  "17b81e7701abdbe2e8743884d1117e53356de5ab275b4db1a682c62ef0f2753339b7c8f8c8f475af9ccb5618e3f0c88e",
  "080d3cf1f9a78fc47b90b33563be990dc43b756ce79f5574a2c596c928c5d1de4fa295f296b74e956d71986a8497e317",
  "169b1f8e1bcfa7c42e0c37515d138f22dd2ecb803a0c5c99676314baf4bb1b7fa3190b2edc0327797f241067be390c9e",
  "10321da079ce07e272d8ec09d2565b0dfa7dccdde6787f96d50af36003b14866f69b771f8c285decca67df3f1605fb7b",
  "06e08c248e260e70bd1e962381edee3d31d79d7e22c837bc23c0bf1bc24c6b68c24b1b80b64d391fa9c8ba2e8ba2d229",
  "08ca8d548cff19ae18b2e62f4bd3fa6f01d5ef4ba35b48ba9c9588617fc8ac62b558d681be343df8993cf9fa40d21b1c",
  "12561a5deb559c4348b4711298e536367041e8ca0cf0800c0126c2588c48bf5713daa8846cb026e9e5c8276ec82b3bff",
  "0b2962fe57a3225e8137e629bff2991f6f89416f5a718cd1fca64e00b11aceacd6a3d0967c94fedcfcc239ba5cb83e19",
  "03425581a58ae2fec83aafef7c40eb545b08243f16b1655154cca8abc28d6fd04976d5243eecf5c4130de8938dc62cd8",
  "13a8e162022914a80a6f1d5f43e7a07dffdfc759a12062bb8d6b44e833b306da9bd29ba81f35781d539d395b3532a21e",
  "0e7355f8e4e667b955390f7f0506c6e9395735e9ce9cad4d0a43bcef24b8982f7400d24bc4228f11c02df9a29f6304a5",
  "0772caacf16936190f3e0c63e0596721570f5799af53a1894e2e073062aede9cea73b3538f0de06cec2574496ee84a3a",
  "14a7ac2a9d64a8b230b3f5b074cf01996e7f63c21bca68a81996e1cdf9822c580fa5b9489d11e2d311f7d99bbdcc5a5e",
  "0a10ecf6ada54f825e920b3dafc7a3cce07f8d1d7161366b74100da67f39883503826692abba43704776ec3a79a1d641",
  "095fc13ab9e92ad4476d6e3eb3a56680f682b4ee96f7d03776df533978f31c1593174e4b4b7865002d6384d168ecdd0a",
  "000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000001",
  "090d97c81ba24ee0259d1f094980dcfa11ad138e48a869522b52af6c956543d3cd0c7aee9b3ba3c2be9845719707bb33",
  "134996a104ee5811d51036d776fb46831223e96c254f383d0f906343eb67ad34d6c56711962fa8bfe097e75a2e41c696",
  "00cc786baa966e66f4a384c86a3b49942552e2d658a31ce2c344be4b91400da7d26d521628b00523b8dfe240c72de1f6",
  "01f86376e8981c217898751ad8746757d42aa7b90eeb791c09e4a3ec03251cf9de405aba9ec61deca6355c77b0e5f4cb",
  "08cc03fdefe0ff135caf4fe2a21529c4195536fbe3ce50b879833fd221351adc2ee7f8dc099040a841b6daecf2e8fedb",
  "16603fca40634b6a2211e11db8f0a6a074a7d0d4afadb7bd76505c3d3ad5544e203f6326c95a807299b23ab13633a5f0",
  "04ab0b9bcfac1bbcb2c977d027796b3ce75bb8ca2be184cb5231413c4d634f3747a87ac2460f415ec961f8855fe9d6f2",
  "0987c8d5333ab86fde9926bd2ca6c674170a05bfe3bdd81ffd038da6c26c842642f64550fedfe935a15e4ca31870fb29",
  "09fc4018bd96684be88c9e221e4da1bb8f3abd16679dc26c1e8b6e6a1f20cabe69d65201c78607a360370e577bdba587",
  "0e1bba7a1186bdb5223abde7ada14a23c42a0ca7915af6fe06985e7ed1e4d43b9b3f7055dd4eba6f2bafaaebca731c30",
  "19713e47937cd1be0dfd0b8f1d43fb93cd2fcbcb6caf493fd1183e416389e61031bf3a5cce3fbafce813711ad011c132",
  "18b46a908f36f6deb918c143fed2edcc523559b8aaf0c2462e6bfe7f911f643249d9cdf41b44d606ce07c8a4d0074d8e",
  "0b182cac101b9399d155096004f53f447aa7b12a3426b08ec02710e807b4633f06c851c1919211f20d4c04f00b971ef8",
  "0245a394ad1eca9b72fc00ae7be315dc757b3b080d4c158013e6632d3c40659cc6cf90ad1c232a6442d9d3f5db980133",
  "05c129645e44cf1102a159f748c4a3fc5e673d81d7e86568d9ab0f5d396a7ce46ba1049b6579afb7866b1e715475224b",
  "15e6be4e990f03ce4ea50b3b42df2eb5cb181d8f84965a3957add4fa95af01b2b665027efec01c7704b456be69c8b604",
  "16112c4c3a9c98b252181140fad0eae9601a6de578980be6eec3232b5be72e7a07f3688ef60c206d01479253b03663c1",
  "1962d75c2381201e1a0cbd6c43c348b885c84ff731c4d59ca4a10356f453e01f78a4260763529e3532f6102c2e49a03d",
  "058df3306640da276faaae7d6e8eb15778c4855551ae7f310c35a5dd279cd2eca6757cd636f96f891e2538b53dbf67f2",
  "16b7d288798e5395f20d23bf89edb4d1d115c5dbddbcd30e123da489e726af41727364f2c28297ada8d26d98445f5416",
  "0be0e079545f43e4b00cc912f8228ddcc6d19c9f0f69bbb0542eda0fc9dec916a20b15dc0fd2ededda39142311a5001d",
  "08d9e5297186db2d9fb266eaac783182b70152c65550d881c5ecd87b6f0f5a6449f38db9dfa9cce202c6477faaf9b7ac",
  "166007c08a99db2fc3ba8734ace9824b5eecfdfa8d0cf8ef5dd365bc400a0051d5fa9c01a58b1fb93d1a1399126a775c",
  "16a3ef08be3ea7ea03bcddfabba6ff6ee5a4375efa1f4fd7feb34fd206357132b920f5b00801dee460ee415a15812ed9",
  "1866c8ed336c61231a1be54fd1d74cc4f9fb0ce4c6af5920abc5750c4bf39b4852cfe2f7bb9248836b233d9d55535d4a",
  "167a55cda70a6e1cea820597d94a84903216f763e13d87bb5308592e7ea7d4fbc7385ea3d529b35e346ef48bb8913f55",
  "04d2f259eea405bd48f010a01ad2911d9c6dd039bb61a6290e591b36e636a5c871a5c29f4f83060400f8b49cba8f6aa8",
  "0accbb67481d033ff5852c1e48c50c477f94ff8aefce42d28c0f9a88cea7913516f968986f7ebbea9684b529e2561092",
  "0ad6b9514c767fe3c3613144b45f1496543346d98adf02267d5ceef9a00d9b8693000763e3b90ac11e99b138573345cc",
  "02660400eb2e4f3b628bdd0d53cd76f2bf565b94e72927c1cb748df27942480e420517bd8714cc80d1fadc1326ed06f7",
  "0e0fa1d816ddc03e6b24255e0d7819c171c40f65e273b853324efcd6356caa205ca2f570f13497804415473a1d634b8f",
  "000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000001",
].map((text_) => BigInt(`0x${text_}`));
const [A, B] = ISOGENY;
const POLYNOMIALS = [[2, 14], [14, 25], [25, 41], [41, 57]].map(([from, to]) => ISOGENY.slice(from, to));

const mod = (a) => ((a % Q) + Q) % Q;

function power(base, exponent) {
  let [result, square] = [1n, mod(base)];
  for (let e = exponent; e > 0n; e >>= 1n) {
    if (e & 1n) result = (result * square) % Q;
    square = (square * square) % Q;
  }
  return result;
}

const invert = (a) => power(a, Q - 2n);
const add2 = ([a, b], [c, d]) => [mod(a + c), mod(b + d)];
const sub2 = ([a, b], [c, d]) => [mod(a - c), mod(b - d)];
const mul2 = ([a, b], [c, d]) => [mod(a * c - b * d), mod(a * d + b * c)];
const times2 = (n, [a, b]) => [mod(n * a), mod(n * b)];
const inv2 = ([a, b]) => { const i = invert(a * a + b * b); return [mod(a * i), mod(-b * i)]; };
const same2 = ([a, b], [c, d]) => a === c && b === d;
const ZERO = [0n, 0n];
const ONE = [1n, 0n];

function pow2(base, exponent) {
  let [result, square] = [ONE, base];
  for (let e = exponent; e > 0n; e >>= 1n) {
    if (e & 1n) result = mul2(result, square);
    square = mul2(square, square);
  }
  return result;
}

/** A square root in Fp2 by those of the norm, or null. */
function root2([a, b]) {
  const root = (n) => { const found = power(n, (Q + 1n) / 4n); return (found * found) % Q === mod(n) ? found : null; };
  const half = (n) => mod(n * invert(2n));
  const norm = root(a * a + b * b);
  if (norm === null) return null;
  if (b === 0n) {
    const real = root(a);
    return real !== null ? [real, 0n] : [0n, root(-a)];
  }
  const x = root(half(a + norm)) ?? root(half(a - norm));
  return x === null ? null : [x, mod(b * invert(2n * x))];
}

function double([x, y, z]) {
  const [xx, yy] = [mul2(x, x), mul2(y, y)];
  const s = times2(4n, mul2(x, yy));
  const m = times2(3n, xx);
  const x3 = sub2(mul2(m, m), times2(2n, s));
  return [x3, sub2(mul2(m, sub2(s, x3)), times2(8n, mul2(yy, yy))), times2(2n, mul2(y, z))];
}

function plus(p, q) {
  if (same2(p[2], ZERO)) return q;
  if (same2(q[2], ZERO)) return p;
  const [pz, qz] = [mul2(p[2], p[2]), mul2(q[2], q[2])];
  const [u1, u2] = [mul2(p[0], qz), mul2(q[0], pz)];
  const [s1, s2] = [mul2(p[1], mul2(qz, q[2])), mul2(q[1], mul2(pz, p[2]))];
  if (same2(u1, u2)) return same2(s1, s2) ? double(p) : [ONE, ONE, ZERO];
  const [h, r] = [sub2(u2, u1), sub2(s2, s1)];
  const hh = mul2(h, h);
  const hhh = mul2(h, hh);
  const v = mul2(u1, hh);
  const x = sub2(sub2(mul2(r, r), hhh), times2(2n, v));
  return [x, sub2(mul2(r, sub2(v, x)), mul2(s1, hhh)), mul2(h, mul2(p[2], q[2]))];
}

function multiple(number, point) {
  let [result, doubled] = [[ONE, ONE, ZERO], point];
  for (let n = number; n > 0n; n >>= 1n) {
    if (n & 1n) result = plus(result, doubled);
    doubled = double(doubled);
  }
  return result;
}

function affine([x, y, z]) {
  const i = inv2(z);
  const ii = mul2(i, i);
  return [mul2(x, ii), mul2(y, mul2(ii, i))];
}

const bigint = (bytes_) => BigInt(`0x${toHex(bytes_)}`);

/** A compressed point of the group of order R, as [x, y]; null for anything else. G2 has two numbers, G1 one. */
function groupPoint(data, b) {
  if (data[0] >> 6 !== 2) return null;
  const high = bigint(joined([[data[0] & 31], data.subarray(1, 48)]));
  const x = data.length === 96 ? [bigint(data.subarray(48)), high] : [high, 0n];
  if (x[0] >= Q || x[1] >= Q) return null;
  let y = root2(add2(mul2(mul2(x, x), x), b));
  if (y === null) return null;
  if (((y[1] || y[0]) > Q / 2n) !== ((data[0] & 32) !== 0)) y = sub2(ZERO, y);
  return same2(multiple(R, [x, y, ONE])[2], ZERO) ? [x, y] : null;
}

/** RFC 9380, 6.6.2 and 6.6.3. */
function mapToCurve(u) {
  const t = mod(11n * u * u);
  const below = mod(t * t + t);
  const square = (x_) => mod(x_ * x_ * x_ + A * x_ + B);
  let x = below === 0n ? mod(B * invert(11n * A)) : mod(-B * (below + 1n) * invert(A * below));
  if (power(square(x), (Q - 1n) / 2n) === Q - 1n) x = mod(t * x);
  let y = power(square(x), (Q + 1n) / 4n);
  if ((y & 1n) !== (u & 1n)) y = mod(-y);
  const [xOver, xUnder, yOver, yUnder] = POLYNOMIALS.map((all) => all.reduceRight((total, each) => mod(total * x + each), 0n));
  return [[mod(xOver * invert(xUnder)), 0n], [mod(y * yOver * invert(yUnder)), 0n], ONE];
}

/** RFC 9380, 5.3.1 and 8.8.1. */
async function hashToPoint(message) {
  const name = "BLS_SIG_BLS12381G1_XMD:SHA-256_SSWU_RO_NUL_";
  const tag = joined([name, [name.length]]);
  const whole = await sha256(new Uint8Array(64), message, [0, 128, 0], tag);
  const blocks = [new Uint8Array(32)];
  for (let i = 1; i <= 4; i++) {
    const mixed = whole.map((byte, place) => byte ^ blocks.at(-1)[place]);
    blocks.push(await sha256(mixed, [i], tag));
  }
  const [first, second] = [[1, 2], [3, 4]].map(([i, j]) => mapToCurve(mod(bigint(joined([blocks[i], blocks[j]])))));
  return affine(multiple(LOOP + 1n, plus(first, second)));
}

function mul12(a, b) {
  const real = Array(11).fill(0n);
  const imaginary = Array(11).fill(0n);
  a.forEach(([x, y], i) => {
    if (x === 0n && y === 0n) return;
    b.forEach(([c, d], j) => {
      real[i + j] += x * c - y * d;
      imaginary[i + j] += x * d + y * c;
    });
  });
  return [0, 1, 2, 3, 4, 5].map((i) => { // w⁶ = 1 + u
    const [x, y] = i < 5 ? [real[i + 6], imaginary[i + 6]] : [0n, 0n];
    return [mod(real[i] + x - y), mod(imaginary[i] + x + y)];
  });
}

const UNIT = [ONE, ZERO, ZERO, ZERO, ZERO, ZERO];

/** The loop of the pairing, without the final power; both points as [x, y]. */
function pairing([[px], [py]], twisted) {
  let [result, at_] = [UNIT, twisted];
  const step = (other) => {
    const [[x, y], [ox, oy]] = [at_, other];
    const slope = same2(x, ox) ? mul2(times2(3n, mul2(x, x)), inv2(times2(2n, y))) : mul2(sub2(oy, y), inv2(sub2(ox, x)));
    const line = [sub2(mul2(slope, x), y), ZERO, times2(-px, slope), [py, 0n], ZERO, ZERO];
    const nx = sub2(sub2(mul2(slope, slope), x), ox);
    result = mul12(result, line);
    at_ = [nx, sub2(mul2(slope, sub2(x, nx)), y)];
  };
  for (const bit of LOOP.toString(2).slice(1)) {
    result = mul12(result, result);
    step(at_);
    if (bit === "1") step(twisted);
  }
  return result;
}

/** e(signature, g2) = e(hash of the round, key): their quotient is 1 after the final power. */
export async function beaconHolds(publicKey, round, signature) {
  if (publicKey.length !== 96 || signature.length !== 48) return false;
  const [key, point] = [groupPoint(publicKey, [4n, 4n]), groupPoint(signature, [4n, 0n])];
  if (key === null || point === null) return false;
  const [x, y] = groupPoint(hex(G2), [4n, 4n]);
  const quotient = mul12(pairing(point, [x, sub2(ZERO, y)]), pairing(await hashToPoint(await sha256(eight(round))), key));
  // (Q¹² - 1) / R = (Q⁶ - 1) · (Q⁶ + 1) / R, and to the power of Q⁶ each w becomes -w: no odd power may be left.
  let [small, square] = [UNIT, quotient];
  for (let e = (Q ** 6n + 1n) / R; e > 0n; e >>= 1n) {
    if (e & 1n) small = mul12(small, square);
    square = mul12(square, square);
  }
  return [1, 3, 5].every((i) => same2(small[i], ZERO));
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
const object = (fields, open = false, optional = {}) => (value, path) => {
  any(value, path);
  const names = Object.keys(fields);
  for (const name of Object.keys(optional)) {
    if (!Object.hasOwn(value, name)) continue;
    optional[name](value[name], `${path}.${name}`);
    names.push(name);
  }
  if (!names.every((name) => Object.hasOwn(value, name))) refuse(path);
  if (!open && Object.keys(value).length !== names.length) refuse(path);
  for (const name of Object.keys(fields)) fields[name](value[name], `${path}.${name}`);
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
  "lease.close": { lease: text, run: text, reason: text, end_ms: atLeast(0), outcome: atLeast(1) },
  "owner.pseudonym": { commitment: hash, owner: text },
}));
// Outcomes with a turn have these fields and no others.
const sizes = map(hash, atLeast(1));
const signature = like(/^[0-9a-f]{128}$/);
const keyId = like(/^[0-9a-f]{16}$/);
const nonceList = list(object({ owner: ownerId, nonce: bytes }));
const networkRound = maybe(object({
  source: text, round: atLeast(1), public_key: like(/^[0-9a-f]{192}$/), genesis_ms: atLeast(0), period_ms: atLeast(1),
}));
const carried = object({ beacon: networkRound, nonces: nonceList });
const turned = { ...answer, turn: atLeast(0) };
const bodiesOfTurns = new Map(Object.entries({
  "gpu.resolve.commit": object({
    ...bodies.get("gpu.resolve.commit"), beacon: networkRound, turn: atLeast(0), continued: bool, owner_weighting: text,
    blobs: sizes,
  }),
  "gpu.resolve.draw": object(turned, false, { blobs: sizes }),
  "gpu.resolve.void": object({ ...turned, reason: text, carry: carried }, false, { blobs: sizes }),
  "owner.key": object({ owner: text, public_key: hash, signature, approval: maybe(signature) }),
  "gpu.resolve.nonce": object({ owner: text, nonce: bytes, size: atLeast(0), signature }),
  "key.rotated": object({ key_id: keyId, new_key_id: keyId, public_key: hash, signature }),
  "ledger.epoch": object({
    epoch: atLeast(1), key_id: keyId, lost: maybe(any), reason: text, root: hash, signature, size: atLeast(1),
  }),
}));
const hasTurn = (body) => Object.hasOwn(body, "turn");
const entry = object({
  author: text, body: any, effect: maybe(text), input_digest: maybe(hash), kind: text, plan_id: maybe(text),
  reasons: list(text), seq: atLeast(1), time_ms: atLeast(0), version: atLeast(0),
});
const proved = (...kinds) => (value, path) => {
  object({ entry, proof: list(hash) })(value, path);
  if (!kinds.includes(value.entry.kind)) refuse(`${path}.entry.kind`);
  const { kind, body } = value.entry;
  const exact = hasTurn(body) || !bodies.has(kind) ? bodiesOfTurns.get(kind) : undefined;
  if (hasTurn(body) && exact === undefined) refuse(`${path}.entry.body`);
  (exact ?? object(bodies.get(kind), true))(body, `${path}.entry.body`);
};
const opening = {
  owner: text, secret: hash, entry: proved("owner.pseudonym"),
  names: list(object({ kind: like(/^(run|lease|budget|envelope|cap)$/), parts: list(text) })),
};
const given = maybe(object({ entry: proved("gpu.resolve.nonce"), key: proved("owner.key") }));
const parts_ = {
  format: like(/^fairlead-outcome\/[12]$/), chain: hash, k: atLeast(0), scope,
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
    tokens: list(object({ one_in: atLeast(1), owner: ownerId, token: runId }, true)),
  }),
  result: maybe(any),
  closures: list(proved("lease.close")),
  openings: list(object(opening)),
  head, keys: map(like(/^[0-9a-f]{16}$/), hash),
  consistency: list(object({
    old_size: atLeast(1), old_root: hash, new_size: atLeast(1), new_root: hash, proof: list(hash),
  })),
};
const FORMAT = "fairlead-outcome/2";
const exported = (value, path) => {
  if (!isObject(value) || value.format !== FORMAT) return object(parts_)(value, path);
  const openings = list(object({ ...opening, nonce: given }));
  return object({ ...parts_, openings, changes: list(proved("key.rotated", "ledger.epoch")) })(value, path);
};

function readExport(data) {
  let document;
  try {
    document = JSON.parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data));
    if (equal(utf8(`${canonical(document)}\n`), data)) return document;
  } catch (error) {
    throw new Malformed(`the file is not JSON in UTF-8: ${error.message}`);
  }
  throw new Malformed("the file is not canonical JSON and one line feed; it was edited");
}

const PAIRS = ["envelope", "cap"]; // named with their budget
const RULES = new Map([["owners", 1], ["tokens", 2], ["stake", 3]]); // how the lottery weights its tokens, and the version of the rules

/** Early commitments do not say it: owners are equal. */
function weightingOf({ body }) {
  return Object.hasOwn(body, "owner_weighting") ? body.owner_weighting : "owners";
}

const LEFT_OUT = ["beneficiary", "ending", "min-runtime", "cooldown", "funded"]; // in scope, and spared
const BY_PEOPLE = ["gpu.resolve.void", "lease.close", "owner.key", "gpu.resolve.nonce", "key.rotated", "ledger.epoch"];
const OF_RULES = ["gpu.resolve.commit", "gpu.resolve.draw", "gpu.resolve.void"];
const turnOf = ({ body }) => (hasTurn(body) ? body.turn : null); // null: the first protocol

function checkForm(x) {
  exported(x, "$");
  const turns = [x.commit, x.draw, x.void].filter((each) => each !== null).map((each) => hasTurn(each.entry.body));
  if (new Set(turns).size !== 1 || (turns[0] && x.format !== FORMAT)) throw new Malformed("an entry is of another protocol");
  const runs = new Set(x.conflict.runs.map((run) => run.id));
  const good = !(x.draw && x.void)
    && rises(x.conflict.runs.map((run) => run.id))
    && rises(x.conflict.leases.map((lease) => lease.id))
    && x.conflict.leases.every((lease) => runs.has(lease.run))
    && rises(x.scope.cap?.envelopes ?? [])
    && rises(x.commit.entry.body.nonces.map((each) => each.owner))
    && rises(x.closures.map((each) => each.entry.seq))
    && rises((x.changes ?? []).map((each) => each.entry.seq))
    && rises(x.notice.exclusions.map((row) => row.lease))
    && rises(x.openings.map((each) => each.owner))
    && x.openings.every((each) => rises(each.names.map((name) => [name.kind, name.parts])))
    && x.openings.every((each) => each.names.every(({ kind, parts }) => parts.length === (PAIRS.includes(kind) ? 2 : 1)));
  if (!good) throw new Malformed("a list is not sorted, names something twice, or something unknown");
  if (!RULES.has(weightingOf(x.commit.entry))) throw new Malformed("the commitment does not name the lottery's weighting");
}

// --- the checks ----------------------------------------------------------------------------------

const at = (each) => new Date(Math.min(each.time_ms, 253402300799000)).toISOString();

/** All proved entries but the ledger's own. */
function shownIn(x) {
  const nonces = x.openings.flatMap((each) => (each.nonce ? [each.nonce.entry, each.nonce.key] : []));
  return [x.previous, x.commit, x.draw, x.void, ...x.closures, ...x.openings.map((each) => each.entry), ...nonces]
    .filter((each) => each !== null);
}

/** The round is signed by its network, and was to come when the conflict was frozen. */
async function checkRound(state, beacon, value) {
  const { say, commit, answered, networks } = state;
  need(await beaconHolds(hex(beacon.public_key), beacon.round, hex(value)),
    `round ${beacon.round} is not signed by the network that it is said to be of`);
  const due = beacon.genesis_ms + (beacon.round - 1) * beacon.period_ms;
  need(commit.body.continued || commit.time_ms < due, "the round had happened before the conflict was frozen");
  const known = NETWORKS.get(beacon.source);
  const { source, round, ...network } = beacon;
  for (const [name, each] of NETWORKS) {
    need(each.public_key !== beacon.public_key || (name === source && same(each, network)), `${name} has other rounds than this says`);
  }
  if (networks.includes(beacon.public_key) || (known && same(known, network))) {
    state.label = answered.body.label;
    say(`Round ${round} is signed by ${source}, and came after the conflict.`);
  } else {
    need(!known, `this is not the network ${source}`);
    say(`Round ${round} is signed by a network that is unknown here, ${beacon.public_key}: who has its secret knew the `
      + "round. Name it with --network if you trust it.");
  }
}

/** Your nonce is the one that you signed, with the key that you registered. */
async function checkNonce(state, { owner, nonce: shown }, used) {
  const { x, say, commit, answered, ownerKeys } = state;
  need((shown === null) === (used === undefined), `there is a nonce of ${owner} that ${owner} did not sign`);
  if (shown === null) return;
  const [each, key] = [shown.entry.entry, shown.key.entry];
  const { size, nonce, signature: signed } = each.body;
  need(each.body.owner === owner && nonce === used && key.body.owner === owner
    && size < each.seq && each.seq < commit.seq && key.seq < each.seq
    && each.plan_id === `owner.${owner}` && each.effect === `nonce ${size}`
    && key.plan_id === `owner.${owner}` && /^key [0-9]+$/.test(key.effect ?? ""), `the nonce of ${owner} is from another entry`);
  const publicKey = key.body.public_key;
  const registered = joined(["fairlead/owner-key/v1", x.head.ledger, owner, hex(publicKey)].map(lp));
  need(await signatureHolds(hex(publicKey), registered, hex(key.body.signature))
    && (key.effect === "key 0") === (key.body.approval === null), `key ${publicKey} was not registered by its holder`);
  const message = joined(["fairlead/nonce/v1", x.head.ledger, owner, hex(nonce), eight(size)].map(lp));
  need(await signatureHolds(hex(publicKey), message, hex(signed)), `${owner} did not sign the nonce that is in the seed`);
  need(ownerKeys.length === 0 || ownerKeys.includes(publicKey), `${publicKey} is not your key`);
  say(`${owner} signed that nonce with key ${publicKey} when the log had ${size} entries; compare both with what you did.`);
  if (answered && answered.body.label === "owner-nonced") state.label = "owner-nonced";
}

/** The head has the key and epoch of the commitment's, but for changes that are shown. */
async function checkChanges({ x, answered }) {
  const then = answered ? answered.body.commit_head : x.head;
  let [id, key, epoch] = [then.key_id, x.keys[then.key_id], then.epoch];
  for (const { entry: each } of x.changes ?? []) {
    const { signature: signed, ...unsigned } = each.body;
    const statement = canonical({ ledger: x.head.ledger, statement: { kind: each.kind, ...unsigned } });
    need(each.body.key_id === id && each.seq > then.size && each.plan_id === null && each.effect === null
      && await signatureHolds(hex(key), utf8(`fairlead/statement/v1\n${statement}`), hex(signed)),
    `entry ${each.seq} is not signed with the key in force`);
    let good;
    if (each.kind === "key.rotated") {
      [id, key] = [each.body.new_key_id, each.body.public_key];
      good = await idOfKey(hex(key)) === id;
    } else {
      epoch += 1;
      good = each.body.epoch === epoch && each.body.size === each.seq - 1;
    }
    need(good, `entry ${each.seq} introduces another key or epoch than it says`);
  }
  need(x.head.key_id === id && x.keys[id] === key && x.head.epoch === epoch,
    "the head has another key or epoch, and no entry says why; ask for a newer export");
}

const CHECKS = {
  async proofs({ x, say }) {
    const shown = [...shownIn(x), ...(x.changes ?? [])];
    for (const each of shown) {
      const leaf = await leafHash(canonical(each.entry));
      const good = await includes(leaf, each.entry.seq - 1, x.head.size, each.proof.map(hex), hex(x.head.root));
      need(good, `entry ${each.entry.seq} is not in the log of the head`);
    }
    say(`All ${shown.length} entries shown are in the log of ${x.head.size} entries.`);
  },

  entries({ x, answered }) {
    const entries = sortedBy([...shownIn(x), ...(x.changes ?? [])].map((each) => each.entry), (each) => each.seq);
    const heads = answered ? [x.head, answered.body.commit_head] : [x.head];
    const effects = new Set();
    entries.forEach((each, place) => {
      const before = place > 0 ? entries[place - 1] : null;
      need(before === null || before.seq < each.seq, `entry ${each.seq} is shown twice`);
      need(before === null || before.time_ms <= each.time_ms, `entry ${each.seq} says that it is earlier than the one before`);
      for (const { size, time_ms: time } of heads) {
        need(each.seq <= size ? each.time_ms <= time : each.time_ms >= time,
          `the head of ${size} entries has a time that is not theirs`);
      }
      need(BY_PEOPLE.includes(each.kind) || each.author === "fairlead", `entry ${each.seq} has another author`);
      need(each.reasons.length === 0, `entry ${each.seq} gives reasons, which its kind has none of`);
      need((each.input_digest !== null) === (each.kind === "gpu.resolve.commit"), `entry ${each.seq} has an input, or none, unlike its kind`);
      need(OF_RULES.includes(each.kind) || each.version === 1, `entry ${each.seq} is of a version unknown here`);
      const effect = canonical([each.plan_id, each.effect]);
      need(effect === "[null,null]" || !effects.has(effect), `${each.plan_id} has several entries for ${each.effect}; a ledger has one`);
      effects.add(effect);
    });
  },

  async consistency({ x, say, answered, trees }) {
    const here = `${x.head.size}:${x.head.root}`;
    trees.add(here);
    for (const link of x.consistency) {
      const ends = [`${link.old_size}:${link.old_root}`, `${link.new_size}:${link.new_root}`];
      need(ends.includes(here), "a consistency proof is of other heads");
      const good = await continues(link.old_size, hex(link.old_root), link.new_size, hex(link.new_root), link.proof.map(hex));
      need(good, `the log of ${link.new_size} entries does not continue that of ${link.old_size}`);
      ends.forEach((end) => trees.add(end));
    }
    if (!answered) return;
    const then = answered.body.commit_head;
    need(trees.has(`${then.size}:${then.root}`) && then.ledger === x.head.ledger,
      "the head under the commitment does not lead to the head");
    need(x.commit.entry.seq <= then.size && then.size < answered.seq,
      "the commitment was not under a head before its outcome");
    need(then.size <= x.head.size, "the head is older than that of the commitment");
    say(`The commitment was under a head of ${then.size} entries before entry ${answered.seq} revealed the outcome.`);
  },

  async digests({ x, say, commit, answered }) {
    const { body } = commit;
    need(await digest(x.conflict) === body.conflict_digest && body.conflict_digest === commit.input_digest,
      "the conflict is not the one that was frozen");
    need(same(body.scope, x.conflict.scope) && same(x.scope, x.conflict.scope)
      && body.deficit_gpus === x.conflict.deficit_gpus, "scope or deficit are not those of the conflict");
    need(await digest(x.notice) === body.notice_digest, "the notice is not the one that was given");
    const recorded = answered ? answered.body.result_digest : null;
    need(recorded === (x.result && await digest(x.result)), "the result is not the one that was recorded");
    if (turnOf(commit) !== null) {
      const sized = async (documents) => Object.fromEntries(await Promise.all(
        documents.map(async (each) => [await digest(each), utf8(canonical(each)).length])));
      need(same(body.blobs, await sized([x.conflict, x.notice]))
        && (!answered || same(answered.body.blobs ?? {}, await sized(x.result ? [x.result] : []))),
      "an entry names documents that are not these");
    }
    say(`Entry ${commit.seq} froze the conflict at ${at(commit)}: ${body.deficit_gpus} GPUs missing, `
      + `${x.conflict.runs.length} runs with ${x.conflict.leases.length} leases.`);
  },

  order({ x, say, previous, commit, answered }) {
    const before = previous.body;
    const turn = turnOf(commit);
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
      ? x.k === 0 && before.flavor === x.scope.flavor && same(before.location, turn === null ? x.scope.location : {})
        && before.capped === (turn === null && x.scope.cap !== null) && previous.plan_id === sequence && previous.effect === "scope"
      : before.k === x.k - 1 && previous.plan_id === `${sequence}.${x.k - 1}` && previous.effect === "outcome";
    if (turn !== null) { // a turn ends with a draw; after a void it goes on with the same luck
      need(previous.kind === "gpu.resolve.scope" || hasTurn(previous.body), "the outcome before is of no turn");
      const carry = previous.kind === "gpu.resolve.void" ? before.carry : null;
      const due = previous.kind === "gpu.resolve.scope" ? 0 : turnOf(previous) + (carry === null ? 1 : 0);
      need(turn === due, "the outcome is of another turn");
      need(commit.body.continued === (carry !== null), "it continues a void, or says so without one");
      need(carry === null || same(carry, { beacon: commit.body.beacon, nonces: commit.body.nonces }),
        "a void was followed by another beacon or nonces");
      need(!answered || answered.body.turn === turn, "the outcome answers another turn");
      if (x.k > turn) say(`Before it, ${x.k - turn} outcomes of this sequence were voided.`);
    }
    need(follows, "the entry before is of another scope or outcome");
    need(!answered || (answered.body.commit_seq === commit.seq && commit.seq < answered.seq),
      "the outcome answers another commitment");
  },

  async commitment({ x, say, previous, commit, answered }) {
    const before = previous.body;
    need(turnOf(commit) === null || previous.kind !== "gpu.resolve.void"
      || toHex(await sha256(hex(before.entropy))) === before.next_commitment,
    "the void before it hands on another entropy than it discloses");
    if (!answered) return say("Its entropy is not revealed: no run may have been preempted for it yet.");
    need(toHex(await sha256(hex(answered.body.entropy))) === previous.body.next_commitment,
      "the entropy is not the one promised before the conflict");
    need(turnOf(commit) === null || (answered.body.next_commitment === previous.body.next_commitment) === (x.void !== null),
      "a void must hand on its entropy, a draw a new one");
    return say(`The hash of its entropy was out since ${at(previous)} (entry ${previous.seq}).`);
  },

  async seed(state) {
    const { x, say, commit, answered } = state;
    if (!answered) return undefined;
    const { body } = answered;
    const { beacon, nonces } = commit.body;
    const turn = turnOf(commit);
    const owners = new Set(x.conflict.runs.map((run) => run.owner));
    const continued = turn !== null && commit.body.continued;
    need(continued || nonces.every((each) => owners.has(each.owner)),
      "a nonce is of an owner without a run in the conflict: a free salt");
    const kinds = turn === null ? ["verifiable", "verifiable"] : ["beacon", "owner-nonced"];
    let label = "operator-trusted";
    if (!continued && nonces.length > 0) [, label] = kinds;
    if (!continued && beacon) [label] = kinds;
    need(body.label === label, `the outcome is called ${body.label}, and is ${label}`);
    if (turn !== null && x.void) {
      const hands = (each) => same(body.carry, { beacon: each, nonces });
      need(hands(beacon) || (body.beacon_value === null && hands(null)), "the void does not hand on its beacon and its nonces");
    }
    if (beacon && body.beacon_value === null) {
      need(x.void !== null && body.seed === null && body.result_digest === null,
        "there is an outcome without the beacon that it was to depend on");
      return say("It was voided before the value of its round was recorded.");
    }
    need(beacon !== null || body.beacon_value === null, "there is a beacon that was not announced");
    const luck = [hex(body.entropy), hex(body.beacon_value ?? ""), nonces.map((each) => [each.owner, hex(each.nonce)])];
    const seed = await (turn === null
      ? seedOf(hex(commit.body.conflict_digest), x.k, ...luck) : turnSeedOf(hex(x.chain), turn, ...luck));
    need(body.seed === toHex(seed) && x.result !== null, "the seed is another one");
    const from = beacon ? `round ${beacon.round} of ${beacon.source}` : "no beacon";
    say(`The seed follows from entropy, ${nonces.length} nonces and ${from}.`);
    if (beacon && turn === null) say(`That round is said to be ${body.beacon_value}; it has no signature, so compare it.`);
    if (beacon && turn !== null) await checkRound(state, beacon, body.beacon_value);
    return undefined;
  },

  async decision({ x, say, commit, answered }) {
    const weighting = weightingOf(commit);
    const known = new Set(x.conflict.leases.map((lease) => lease.id));
    const leftOut = x.notice.exclusions.filter((row) => !known.has(row.lease));
    need(same(x.notice, await noticeOf(x.conflict, leftOut, weighting)), "candidates, exclusions or odds were not announced as they were");
    const atStake = new Set(x.conflict.leases.filter((lease) => !difference(lease, x.scope)).map((lease) => lease.run));
    need(x.conflict.runs.every((run) => atStake.has(run.id)), "there is a run without a candidate in the conflict: a free salt");
    for (const row of leftOut) {
      need(LEFT_OUT.includes(row.reason), `lease ${row.lease} was left out for no reason there is`);
      say(`Lease ${row.lease} was left out: ${row.reason}.`);
    }
    need(turnOf(commit) === null || x.conflict.leases.every((lease) =>
      Object.keys(lease.location).every((key) => Object.hasOwn(x.scope.location, key))), "a lease has a label that decides nothing");
    if (x.result === null) return;
    if (weighting === "tokens") say("Every run was as likely as the next, however many its owner had.");
    if (weighting === "stake") say("Every GPU was as likely as the next, however its owner divided them.");
    const { result } = await resolve(x.conflict, hex(answered.body.seed), weighting);
    need(same(result, x.result), "decided again, the result is another");
    say(`Decided again, the result is the same: ${counted(result.freed_gpus, "GPU")} freed, `
      + `${counted(result.actions.length, "lease")} cut, ${counted(result.draws.length, "draw")}.`);
    if (x.void) say(`It was voided, no run was preempted. The reason given: ${answered.body.reason}.`);
  },

  async openings(state) {
    const { x, say, commit, opened } = state;
    const index = turnOf(commit) ?? x.k;
    const ownerOf = new Map(x.conflict.runs.map((run) => [run.id, run.owner]));
    const owners = new Set(ownerOf.values());
    for (const lease of x.conflict.leases) ownerOf.set(lease.id, ownerOf.get(lease.run));
    const cap = x.scope.cap;
    const there = new Set([
      ...ownerOf.keys(), ...x.notice.exclusions.map((row) => row.lease),
      ...x.conflict.leases.flatMap((lease) => [lease.budget, lease.envelope]),
      ...(cap ? [cap.budget, cap.name, ...cap.envelopes] : []),
    ]);
    for (const each of x.openings) {
      const { entry: { entry: fixing }, owner, secret: text_, names } = each;
      const secret = hex(text_);
      const fixed = toHex(await sha256(lp("fairlead/owner/v1"), lp(secret)));
      need(fixing.body.owner === owner && fixing.body.commitment === fixed,
        `the secret of ${owner} is not the one that was fixed`);
      need(fixing.plan_id === `owner.${owner}` && fixing.effect === "pseudonym",
        `the secret of ${owner} is fixed by an entry of another plan`);
      need(fixing.seq < commit.seq, `the secret of ${owner} was fixed too late`);
      const me = await pseudonym(secret, x.chain, index, "owner", [owner]);
      need(names.length > 0 || owners.has(me), `nothing of ${owner} is in this outcome`);
      for (const { kind, parts } of names) {
        const hidden = await pseudonym(secret, x.chain, index, kind, parts);
        need(there.has(hidden) && (ownerOf.get(hidden) ?? me) === me, `${kind} ${parts.join("/")} of ${owner} is not here`);
        opened.set(hidden, { kind, parts, secret });
      }
      const mine = [...ownerOf.keys()].filter((name) => ownerOf.get(name) === me);
      need(mine.every((name) => opened.has(name)), `there are runs or leases of ${owner} that are not opened`);
      say(`${owner} is ${me} here; its pseudonyms are fixed since ${at(fixing)} (entry ${fixing.seq}), `
        + "which should be before its first run.");
      const used = commit.body.nonces.find((row) => row.owner === me)?.nonce;
      say(`The nonce of ${owner} in the seed: ${used ?? "none"}.`);
      if (turnOf(commit) !== null) await checkNonce(state, each, used);
    }
  },

  async scope({ x, say, commit, opened }) {
    if (turnOf(commit) !== null) {
      const chain = toHex(await sha256(lp("fairlead/chain/v2"), lp(x.scope.flavor)));
      return need(chain === x.chain, "the sequence is not the one of this scope");
    }
    let [clear, salt] = [x.scope, new Uint8Array(0)];
    const { cap } = x.scope;
    if (cap) {
      if (![cap.budget, cap.name, ...cap.envelopes].every((each) => opened.has(each))) {
        return say("The scope is a cap of another's budget; you cannot check its name.");
      }
      const nameOf = (hidden) => opened.get(hidden).parts.at(-1);
      const envelopes = sortedBy(cap.envelopes.map(nameOf), (name) => name);
      clear = { ...x.scope, cap: { budget: nameOf(cap.budget), name: nameOf(cap.name), envelopes } };
      salt = await hmac(opened.get(cap.budget).secret, lp("fairlead/chain-salt/v1"));
    }
    const chain = toHex(await sha256(lp("fairlead/chain/v1"), lp(salt), lp(canonical(clear))));
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
        && body.outcome === commit.seq && answered.seq < each.seq && each.plan_id === body.lease && each.effect === "close"
        && body.end_ms <= each.time_ms;
      need(good, `lease ${body.lease} was not to end like this`);
      ended.set(body.lease, `ended ${at(each)}`);
    }
    for (const [lease, action] of cut) {
      const draw = action.draw === null ? "" : ` in draw ${action.draw}`;
      say(`Yours: lease ${lease}, ${action.gpus} GPUs, ${action.kind}${draw}; ${ended.get(lease) ?? "not ended yet"}.`);
    }
  },

  async signatures({ x, say, answered }) {
    const heads = answered ? [x.head, answered.body.commit_head] : [x.head];
    const ids = [...new Set(heads.map((each) => each.key_id))].sort();
    need(same(ids, Object.keys(x.keys).sort()), "a key is missing or useless");
    for (const { signature, ...unsigned } of heads) {
      const key = hex(x.keys[unsigned.key_id]);
      need(await idOfKey(key) === unsigned.key_id, "a key does not have the id it is given");
      const message = utf8(`fairlead/head/v1\n${canonical(unsigned)}`);
      need(await signatureHolds(key, message, hex(signature)), `the signature of the head of ${unsigned.size} entries does not hold`);
    }
    await checkChanges({ x, answered });
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

const NAMES = ["bytes", "form", ...Object.keys(CHECKS)];

/** Check the bytes of an export. Heads as "SIZE:ROOT", keys as public keys or key ids in hex. `checks` has every check in
 *  order: its name, what it said, and whether it holds; null for those after one that does not. */
export async function verify(data, keptHeads = [], keptKeys = [], networks = [], ownerKeys = []) {
  const checks = NAMES.map((name) => ({ name, holds: null, said: [] }));
  const last = [];
  let place = 0;
  const told = (code) => {
    for (const each of checks) each.said = each.said.map(plain);
    return { code, check: code === 0 ? "" : NAMES[place], checks, account: [...checks.flatMap((each) => each.said), ...last.map(plain)] };
  };
  const passed = () => { checks[place++].holds = true; };
  const say = (sentence) => { checks[place].said.push(sentence); };
  try {
    const x = readExport(data);
    passed();
    checkForm(x);
    say(`Outcome ${x.k} of ${x.scope.flavor} ${canonical(x.scope.location)}, sequence ${x.chain.slice(0, 16)}.`);
    passed();
    const answered = (x.draw ?? x.void)?.entry ?? null;
    const state = {
      x, answered, previous: x.previous.entry, commit: x.commit.entry, trees: new Set(), opened: new Map(),
      say, keptHeads, keptKeys, networks, ownerKeys, label: "operator-trusted",
    };
    for (const check of Object.values(CHECKS)) {
      await check(state);
      passed();
    }
    const recorded = answered?.body.label;
    if (answered && recorded !== state.label) {
      let why = recorded === "owner-nonced" ? "none of its nonces is yours" : "see above";
      if (recorded === "verifiable") why = "its protocol let the operator choose";
      last.push(`It is recorded as ${recorded}; to you it is ${state.label}: ${why}.`);
    }
    last.push(`Everything holds; ${answered ? `this outcome is ${state.label}` : "the outcome is open"}.`);
    return told(0);
  } catch (error) {
    if (!(error instanceof DoesNotHold || error instanceof Malformed)) throw error;
    checks[place].holds = false;
    const verdict = error instanceof DoesNotHold ? "DOES NOT HOLD" : "CANNOT BE CHECKED";
    say(`${verdict} (${NAMES[place]}): ${error.message}.`);
    return told(error instanceof DoesNotHold ? 1 : 2);
  }
}

async function main(words) {
  const { readFileSync } = await import("node:fs");
  const given = { "--head": [], "--key": [], "--network": [], "--owner-key": [], file: [] };
  for (let i = 0; i < words.length; i++) {
    if (words[i] !== "file" && Object.hasOwn(given, words[i])) given[words[i]].push(words[++i]);
    else given.file.push(words[i]);
  }
  const badHead = given["--head"].some((each) => !/^[1-9][0-9]{0,15}:[0-9a-f]{64}$/.test(each));
  if (given.file.length !== 1 || given.file[0].startsWith("-") || badHead || Object.values(given).flat().includes(undefined)) {
    console.error("usage: node verify.mjs OUTCOME.json [--head SIZE:ROOT]... [--key HEX]... [--network HEX]... [--owner-key HEX]...");
    return 2;
  }
  let data;
  try {
    data = readFileSync(given.file[0]);
  } catch (error) {
    console.error(error.message);
    return 2;
  }
  const { code, account } = await verify(data, given["--head"], given["--key"], given["--network"], given["--owner-key"]);
  console.log(account.join("\n"));
  return code;
}

/** As a command; not where another module imports this one, and not in a browser. */
async function isCommand() {
  const started = globalThis.process?.argv?.[1];
  if (!started) return false;
  const [{ realpathSync }, { fileURLToPath }] = await Promise.all([import("node:fs"), import("node:url")]);
  return realpathSync(started) === fileURLToPath(import.meta.url);
}

if (await isCommand()) process.exitCode = await main(process.argv.slice(2));
