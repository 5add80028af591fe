// The end of a run's output, read on from where it was, for readers that may: others are asked to sign in.
import * as api from "./api.js";
import {el, link} from "./dom.js";

const LINES = 200, KEPT_CHARS = 200_000;
const COLOURS = /\x1b\[[0-9;?]*[ -/]*[@-~]/g;  // what a terminal would take as colours and moves

export class Output {
  constructor(run) {
    Object.assign(this, {run, job: null, after: 0});
    this.note = el("p", {class: "soft"});
    this.text = el("pre", {class: "log", tabindex: "0", role: "log", "aria-label": `Output of ${run}`, "aria-live": "off"});
    this.text.hidden = true;
    this.root = el("div", null, this.note, this.text);
  }

  say(...words) {
    this.note.replaceChildren(...words);
    this.note.hidden = !words.length;
  }

  async refresh(owner) {
    const who = await api.read("/v1/whoami");
    this.allowed = who.admin || who.owners.includes(owner) || who.run === this.run;
    if (!this.allowed) {
      this.text.hidden = true;
      this.say(...(who.anonymous ? [link("/signin", "Sign in"), ` as a user of ${owner} to read the output.`] : [`Only users of ${owner} read the output; you are ${who.user}.`]));
      return;
    }
    try {
      while (await this.more()) { /* there is more at once */ }
      this.text.hidden = !this.text.textContent;
      this.say(...(this.text.hidden ? ["It has written nothing yet."] : []));
    } catch (error) {
      this.say(error.message);
    }
  }

  async more() {
    const query = new URLSearchParams(this.job ? {job: this.job, after: this.after} : {tail: LINES});
    const session = api.key(), path = `/v1/runs/${encodeURIComponent(this.run)}/output`;
    const reply = await fetch(`${path}?${query}`, {headers: session ? {"Fairlead-Session": session} : {}});
    if (!reply.ok) throw new Error((await reply.json()).error.message);
    const job = reply.headers.get("Fairlead-Job"), text = (await reply.text()).replace(COLOURS, "");
    const next = Number(reply.headers.get("Fairlead-Next"));
    if (this.job && job !== this.job) this.text.append(`\n– ${job} –\n`);
    const grew = job && (job !== this.job || next > this.after) && text;
    [this.job, this.after] = [job || null, next];
    if (!grew) return false;
    const atEnd = this.text.scrollTop + this.text.clientHeight >= this.text.scrollHeight - 8;
    this.text.textContent = (this.text.textContent + text).slice(-KEPT_CHARS);
    this.text.hidden = false;
    if (atEnd) this.text.scrollTop = this.text.scrollHeight;
    return text.length > 100_000;
  }
}
