// Each owner has a colour and two letters, the same in every drawing: colour is never the only sign.
import {el, nameClass} from "./dom.js";

const COLOURS = 8;
const marks = new Map(), taken = new Set();

function code(name) {
  const letters = [...name.toUpperCase().replace(/[^A-Z0-9]/g, "") || "?"];
  const tries = letters.slice(1).map((each) => letters[0] + each);
  for (let number = 2; number < 10; number += 1) tries.push(letters[0] + number);
  return tries.find((each) => !taken.has(each)) || letters[0];
}

export function ownerMark(name) {
  if (!marks.has(name)) {
    const letters = code(name);
    taken.add(letters);
    marks.set(name, {letters, colour: `own-${marks.size % COLOURS}`});
  }
  return marks.get(name);
}

// Owners in a fixed order first, so that colours do not depend on who is drawn first.
export const introduce = (names) => [...new Set(names)].sort().forEach(ownerMark);

export function ownerKey(name, ...more) {
  const mark = ownerMark(name);
  return el("span", {class: nameClass("owner", name)}, el("span", {class: `swatch ${mark.colour}`, "aria-hidden": "true"}, mark.letters), name, ...more);
}
