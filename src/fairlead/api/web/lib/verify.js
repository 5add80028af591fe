// "Verify": the published verifier, run in this browser on the exported outcome. The file that was checked can be
// downloaded, to check it again with nothing of ours.
import {read, readBytes} from "./api.js";
import {cannotSign, examine, kept, settle, unable, verifier} from "./checkpoint.js";
import {el, soft} from "./dom.js";
import {save} from "./files.js";
import {plain} from "./words.js";

const CHECKS = {
  bytes: "The file is canonical JSON: not one byte can be written differently",
  form: "It has the fields of an outcome, and no others",
  proofs: "Every entry shown is in the log of the signed checkpoint",
  entries: "The entries are in order, and each effect is recorded once",
  consistency: "The commitment was in the log before its outcome, and the log only grew",
  digests: "Conflict, odds and result are those whose hashes were recorded",
  order: "The outcome follows the one before it in its sequence",
  commitment: "The entropy is the one that was promised before the conflict",
  seed: "The seed follows from entropy, nonces and beacon, and the label is true",
  decision: "Decided again in this browser, the result is the same",
  openings: "Opened names belong to their pseudonyms",
  scope: "The sequence is the one of this scope",
  closures: "Leases ended as this outcome says",
  signatures: "The ledger’s key signed the checkpoints",
  kept: "It is the log that this browser saw before",
};
const SIGNS = new Map([[true, ["✓", "good", "holds"]], [false, ["✗", "bad", "does not hold"]], [null, ["–", "soft", "not checked"]]]);

async function exported(outcome) {
  await settle();
  const who = await read("/v1/whoami"), {ledger} = await read("/v1/head"), before = kept(ledger);
  const head = before ? `${before.head.size}:${before.head.root}` : null;
  const data = await readBytes(`/v1/outcomes/${encodeURIComponent(outcome)}/export`, {public: who.owners.length ? null : true, head});
  return {data, heads: head ? [head] : []};
}

function line({name, holds, said}, heads) {
  const [sign, style, words] = SIGNS.get(name === "kept" && holds && !heads.length ? null : holds);  // nothing was kept before
  return el("li", {class: "check", "data-check": name, "data-holds": String(holds)}, el("span", {class: `sign ${style}`, role: "img", "aria-label": words}, sign),
    el("div", null, el("strong", null, name), " ", CHECKS[name] || "", (name === "kept" && !heads.length ? ["This browser had kept no checkpoint of this ledger before. It keeps this one, and the next verification compares with it."] : said.map(plain)).map((sentence) => el("p", {class: holds === false ? "bad" : "soft"}, sentence))));
}

export function verifyPanel(outcome) {
  const verdict = el("p", {role: "status", class: "verdict"}), list = el("ol", {class: "checks"});
  const run = async () => {
    button.disabled = true;
    verdict.className = "verdict";
    verdict.textContent = "Verifying…";
    list.replaceChildren();
    try {
      const v = await verifier(), {data, heads} = await exported(outcome);
      const {code, checks, account} = await v.verify(data, heads);
      list.replaceChildren(...checks.map((each) => line(each, heads)));
      verdict.className = `verdict ${code ? "bad" : "good"}`;
      verdict.textContent = `${code ? "✗ Verification failed" : "✓ Verified in this browser"}: ${account.at(-1)}`;
      await examine(await read("/v1/head"));  // the next verification compares with this checkpoint
    } catch (error) {
      verdict.className = "verdict warn";
      verdict.textContent = `Could not be verified here. ${cannotSign(error) || error.message}`;
    } finally {
      button.disabled = false;
    }
  };
  const download = async () => {
    try {
      save(`outcome-${outcome}.json`, (await exported(outcome)).data);
    } catch (error) {
      verdict.className = "verdict warn";
      verdict.textContent = `Could not be exported. ${error.message}`;
    }
  };
  const button = el("button", {type: "button", id: "verify", click: run, disabled: unable() !== null}, "Verify");
  return el("section", {class: "panel", "aria-labelledby": "verify-title"}, el("h2", {id: "verify-title"}, "Verify it yourself"),
    el("p", null, "Runs the published verifier in this browser: it believes nothing that this server says, and decides again. ",
      soft("The same file checks the download with Node: "), el("code", null, `node verify.mjs outcome-${outcome}.json`)),
    unable() && el("p", {class: "warn"}, unable()),
    el("p", {class: "buttons"}, button, " ", el("button", {type: "button", id: "download", click: download}, "Download the outcome"), " ",
      el("button", {type: "button", id: "download-verifier", click: async () => save("verify.mjs", await readBytes("/web/verify.mjs"), "text/javascript")}, "Download the verifier")),
    verdict, list);
}
