// What the engine says, for people. The record keeps its words; the page says the same in plain ones.

const LIMITS = {
  "envelope-concurrency": "the GPUs at once of envelope", "aggregate-concurrency": "the GPUs at once of cap", "envelope-hours": "the GPU-hours of envelope", "aggregate-hours": "the GPU-hours of cap",
  "lending-concurrency": "the GPUs lent at once by envelope", "lending-hours": "the GPU-hours lent by envelope", "lending-acl": "the borrowers of envelope", "borrow-limit": "the run's",
};
const CAPS = {envelope: "envelope", aggregate: "cap", lending: "lending of envelope", acl: "owners that may borrow from", borrow: "borrowing:"};
const REMEDY = /([a-z]+-[a-z]+) of (\S+) from (.+?) to (.+?)( would do)?$/;

// The words of a code. Codes come from agents and may be any text, such as "constructor", which every object has.
export const said = (words, code) => Object.hasOwn(words, code) ? words[code] : code;

const changed = (change, target, from, to) => `${LIMITS[change]} ${target} were ${to} instead of ${from}`;

// "… ; envelope-concurrency of a/b from 4 to 6 would do" says what to change, and how.
export function plain(text) {
  return text.replace(/\b1 GPUs\b/g, "1 GPU").replace(/\b1 draws\b/g, "1 draw").replace(REMEDY, (whole, change, target, from, to) =>
    Object.hasOwn(LIMITS, change) ? `it would be funded if ${changed(change, target, from, to)}` : whole);
}

export const remedy = (found) => `It would be funded if ${changed(found.change, found.budget ? `${found.budget}/${found.name}` : found.name, found.from, found.to)}.`;
export const cap = (found) => `${CAPS[found.kind] || found.kind} ${found.budget ? `${found.budget}/` : ""}${found.name}: ${found.used ?? "–"} of ${found.limit ?? "no"} in use`;
