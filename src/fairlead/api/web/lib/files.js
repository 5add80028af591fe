// Files that the reader keeps.
import {el} from "./dom.js";

// Saves bytes or text under a name; they never leave this browser.
export function save(name, data, type = "application/json") {
  const address = URL.createObjectURL(new Blob([data], {type}));
  el("a", {href: address, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}
