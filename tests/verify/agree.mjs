// Asks verify.mjs many things at once: a JSON list of requests on standard input, the list of answers on output.

import { readFileSync } from "node:fs";
import {
  beaconHolds, canonical, continues, digest, fairNumber, hex, includes, pseudonym, resolve, seedOf, signatureHolds, toHex,
  turnSeedOf, verify,
} from "../../verify/verify.mjs";

const bytes = (text) => new Uint8Array(Buffer.from(text, "base64"));
const verdict = async (data, ...kept) => {
  const { code, check, checks, account } = await verify(data, ...kept);
  const failed = checks.filter((each) => each.holds === false).map((each) => each.name);
  const whole = code === 0 ? checks.every((each) => each.holds) : failed.length === 1 && failed[0] === check;
  if (!whole || account.length === 0) throw new Error(`the list of checks says something else than ${code} ${check}`);
  return [code, check];
};

const ANSWERS = {
  canonical: ({ value }) => canonical(value),
  digest: ({ value }) => digest(value),
  fair_number: ({ n, seed, stage, k }) => fairNumber(n, hex(seed), stage, k),
  seed: async (each) => toHex(await seedOf(
    hex(each.conflict_digest), each.k, hex(each.entropy), hex(each.beacon_value),
    each.nonces.map(({ owner, nonce }) => [owner, hex(nonce)]),
  )),
  pseudonym: ({ secret, chain, k, kind, parts }) => pseudonym(hex(secret), chain, k, kind, parts),
  ed25519: (each) => signatureHolds(hex(each.public_key), hex(each.message), hex(each.signature)),
  inclusion: ({ leaf, index, size, proof, root }) => includes(hex(leaf), index, size, proof.map(hex), hex(root)),
  consistency: (each) => continues(
    each.old_size, hex(each.old_root), each.new_size, hex(each.new_root), each.proof.map(hex),
  ),
  resolve: async ({ conflict, seed, owner_weighting: weighting }) => (await resolve(conflict, hex(seed), weighting)).result,
  turn_seed: async (each) => toHex(await turnSeedOf(
    hex(each.chain), each.turn, hex(each.entropy), hex(each.beacon_value),
    each.nonces.map(({ owner, nonce }) => [owner, hex(nonce)]),
  )),
  beacon: (each) => beaconHolds(hex(each.public_key), each.round, hex(each.signature)),
  verify: ({ data, heads, keys }) => verdict(bytes(data), heads, keys),
  flips: async ({ data, mask, places }) => {
    const answers = [];
    for (const place of places) {
      const flipped = bytes(data);
      flipped[place] ^= mask;
      answers.push(await verdict(flipped));
    }
    return answers;
  },
};

const answers = [];
for (const [what, request] of JSON.parse(readFileSync(0, "utf8"))) answers.push(await ANSWERS[what](request));
process.stdout.write(JSON.stringify(answers));
