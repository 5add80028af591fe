// The ledger's checkpoint, checked here: its signature, its keys, and that it continues the one that this
// browser kept. The arithmetic is the published verifier's.
import {read} from "./api.js";

const HERE = "fairlead.ledger", PLACE = "fairlead.checkpoint.";

// Something about the log is not true.
export class Doubt extends Error {}

export const verifier = () => import("../verify.mjs");

// Why nothing can be checked in this browser; null where it can.
export function unable() {
  return globalThis.crypto && crypto.subtle ? null
    : "This browser checks nothing on a page that came over plain HTTP from another machine. Open the page over HTTPS, or through an SSH tunnel.";
}

export const cannotSign = (error) => (error.name === "NotSupportedError"
  ? "This browser cannot check Ed25519 signatures; a newer one can." : null);

// A demo's ledger ends with it, and the next demo at its address has another one: this tab keeps its checkpoint,
// and compares it with nothing but itself.
let demo = false;
export async function settle() { demo = demo || (await read("/healthz")).demo; }
const shelf = () => demo ? sessionStorage : localStorage;

function stored(key, from = shelf) {
  try { return from().getItem(key); } catch { return null; }  // a browser may keep nothing
}

// What this browser kept of a ledger: the checkpoint, its keys, and when it was seen. null: nothing.
export function kept(ledger) {
  try { return JSON.parse(stored(PLACE + ledger)); } catch { return null; }
}

export const keptLedger = () => demo ? null : stored(HERE);

export function forget() {
  const ledger = keptLedger() || (last && last.head.ledger);
  if (ledger) shelf().removeItem(PLACE + ledger);
  if (!demo) localStorage.removeItem(HERE);
  last = null;
  origin = undefined;
}

function keep(head, keys) {
  try {
    shelf().setItem(PLACE + head.ledger, JSON.stringify({head, keys, seen: new Date().toISOString()}));
    if (!demo) localStorage.setItem(HERE, head.ledger);
    return true;
  } catch { return false; }
}

function need(good, sentence) {
  if (good !== true) throw new Doubt(sentence);
}

async function signed(v, key, {signature, ...unsigned}) {
  return v.signatureHolds(v.hex(key), new TextEncoder().encode(`fairlead/head/v1\n${v.canonical(unsigned)}`), v.hex(signature));
}

// Whether an entry, as its exact bytes or by its hash, is in the log of a checkpoint.
export async function isIn(v, head, seq, entry, leaf, proof) {
  const hash = entry === null ? v.hex(leaf) : await v.leafHash(entry);
  return v.includes(hash, seq - 1, head.size, proof.map(v.hex), v.hex(head.root));
}

// The keys that the log itself introduces, each signed by the one before; the last is in force.
async function introduced(v, head) {
  const keys = {};
  let force = null, epoch = 0;
  for (const {seq, entry, proof} of await read("/v1/ledger", {size: head.size})) {
    need(await isIn(v, head, seq, entry, null, proof), `entry ${seq}, about its keys, is not in the log`);
    const {kind, body} = JSON.parse(entry), {signature, ...unsigned} = body;
    need((kind === "ledger.created") === (seq === 1) && (seq !== 1 || body.ledger === head.ledger), "it begins with another ledger");
    const fresh = seq === 1 || kind === "key.rotated" ? body.public_key : null;
    const signer = seq === 1 ? fresh : keys[force];
    const statement = v.canonical({ledger: head.ledger, statement: {kind, ...unsigned}});
    need(seq === 1 || body.key_id === force, `entry ${seq} is not signed with the key in force`);
    need(await v.signatureHolds(v.hex(signer), new TextEncoder().encode(`fairlead/statement/v1\n${statement}`), v.hex(signature)),
      `the signature of entry ${seq} does not hold`);
    if (fresh !== null) {
      force = await v.idOfKey(v.hex(fresh));
      need(force === (seq === 1 ? body.key_id : body.new_key_id), `entry ${seq} gives its key another id`);
      keys[force] = fresh;
    }
    if (kind === "ledger.epoch") epoch += 1;
  }
  need(force === head.key_id && epoch === head.epoch, "the checkpoint has another key or epoch than its log says");
  return keys;
}

async function continued(v, old, now) {
  const [small, large] = old.size <= now.size ? [old, now] : [now, old];
  // Another tab may have kept a newer one; but the server has at least what was kept.
  if (large === old && small !== large && (await read("/v1/head")).size < large.size) return false;
  const {proof} = small.size === large.size ? {proof: []} : await read("/v1/consistency", {old: small.size, new: large.size});
  return v.continues(small.size, v.hex(small.root), large.size, v.hex(large.root), proof.map(v.hex));
}

async function check(v, head) {
  const here = keptLedger(), before = kept(here || head.ledger);
  need(!here || here === head.ledger, `this browser saw ledger ${here} at this address, and now it is ${head.ledger}`);
  need(!before || before.head.epoch === head.epoch, "it was restored from a backup since");
  const known = before && before.keys[head.key_id];
  need(!known || head.size < before.head.size || head.key_id === before.head.key_id, `the checkpoint is signed with key ${head.key_id}, which was replaced`);
  const keys = known ? before.keys : await introduced(v, head);
  need(await signed(v, keys[head.key_id], head), "the signature of the checkpoint does not hold");
  need(!before || Object.entries(before.keys).every(([id, key]) => keys[id] === key), "it is signed with a key that no known key introduced");
  need(!before || await continued(v, before.head, head), before && before.head.size > head.size
    ? `the log has ${head.size} entries, and had ${before.head.size}` : `the log of ${head.size} entries does not continue the one of ${before && before.head.size}`);
  const keeps = before && before.head.size >= head.size ? true : keep(head, keys);
  if (origin === undefined) origin = before;
  return {state: origin ? "continues" : "first", head, before: origin, keeps, demo, other: demo ? stored(HERE, () => localStorage) : null};
}

let last = null, origin;  // what was kept before this visit: step by step, each checkpoint continues it

// {state, head, before?, keeps?, why?}: "first", "continues", "alarm" or "unchecked".
export async function examine(head) {
  await settle();
  if (last && last.head.size === head.size && last.head.root === head.root && last.head.signature === head.signature && kept(head.ledger)) return last;
  const why = unable();
  if (why) return {state: "unchecked", head, why};
  try {
    const found = await check(await verifier(), head);
    last = found;
    return found;
  } catch (error) {
    last = null;
    if (error instanceof Doubt) return {state: "alarm", head, before: kept(keptLedger() || head.ledger), why: error.message};
    if (cannotSign(error)) return {state: "unchecked", head, why: cannotSign(error)};
    throw error;
  }
}
