// Asks verify.mjs many things at once: a JSON list of requests on standard input, the list of answers on output.

import { readFileSync } from "node:fs";
import {
  beaconHolds, canonical, continues, digest, fairNumber, includes, pseudonym, resolve, seedOf, signatureHolds, turnSeedOf,
  verify,
} from "../../verify/verify.mjs";

const hex = (text) => Buffer.from(text, "hex");
const verdict = ({ code, check }) => [code, check];

const ANSWERS = {
  canonical: ({ value }) => canonical(value),
  digest: ({ value }) => digest(value),
  fair_number: ({ n, seed, stage, k }) => fairNumber(n, hex(seed), stage, k),
  seed: (each) => seedOf(
    hex(each.conflict_digest), each.k, hex(each.entropy), hex(each.beacon_value),
    each.nonces.map(({ owner, nonce }) => [owner, hex(nonce)]),
  ).toString("hex"),
  pseudonym: ({ secret, chain, k, kind, parts }) => pseudonym(hex(secret), chain, k, kind, parts),
  ed25519: (each) => signatureHolds(hex(each.public_key), hex(each.message), hex(each.signature)),
  inclusion: ({ leaf, index, size, proof, root }) => includes(hex(leaf), index, size, proof.map(hex), hex(root)),
  consistency: (each) => continues(
    each.old_size, hex(each.old_root), each.new_size, hex(each.new_root), each.proof.map(hex),
  ),
  resolve: ({ conflict, seed, owner_weighting: weighting }) => resolve(conflict, hex(seed), weighting).result,
  turn_seed: (each) => turnSeedOf(
    hex(each.chain), each.turn, hex(each.entropy), hex(each.beacon_value),
    each.nonces.map(({ owner, nonce }) => [owner, hex(nonce)]),
  ).toString("hex"),
  beacon: (each) => beaconHolds(hex(each.public_key), each.round, hex(each.signature)),
  verify: ({ data, heads, keys }) => verdict(verify(Buffer.from(data, "base64"), heads, keys)),
  flips: ({ data, mask, places }) => {
    const whole = Buffer.from(data, "base64");
    return places.map((place) => {
      const flipped = Buffer.from(whole);
      flipped[place] ^= mask;
      return verdict(verify(flipped));
    });
  },
};

const requests = JSON.parse(readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify(requests.map(([what, request]) => ANSWERS[what](request))));
