// The list of runs: a filter box, phases with their counts, pages. The server filters; the address has the
// filters, so that a list can be linked to.
import {readdress} from "./address.js";
import {read} from "./api.js";
import {count, el, moment, nameClass, number, onPhone, Table} from "./dom.js";
import {ownerKey} from "./owners.js";
import {plain} from "./words.js";

const LIMIT = onPhone ? 20 : 50, TYPING_MS = 250, FILTERS = ["text", "phase", "owner", "flavor", "ended", "cursor"];
const PHASES = {Running: "good", Completed: "soft", Failed: "bad"};
const ENDED = ["Failed", "Completed"];

export const runLink = (name) => el("a", {class: nameClass("run", name), href: `/runs/${encodeURIComponent(name)}`}, name);
export const phaseWord = (run) => el("span", {class: PHASES[run.paused ? "Paused" : run.phase] || "warn"}, run.paused ? "Paused" : run.phase);
export const amount = (text) => el("span", {class: "amount"}, text);
const whyOf = (run) => run.phase === "Reserved" ? `starts by reservation ${run.reservation}` : plain(run.message || run.reason || "");

// As many lines as a list has room for; the run's own view has all.
export const whyCell = (run) => el("span", {class: "why", title: whyOf(run)}, whyOf(run));

const cells = (run) => [runLink(run.name), ownerKey(run.owner), amount(`${run.width} of ${run.gpus} ${run.flavor}`), phaseWord(run), whyCell(run), moment(run.since)];

export class RunList {
  constructor(query) {
    this.filters = Object.fromEntries(FILTERS.filter((name) => query[name]).map((name) => [name, query[name]]));
    this.back = [];
    this.table = new Table("Runs", ["Run", "Owner", "GPUs", "Phase", "Why", "Since"], {key: (run) => run.uid, cells, nothing: "No run matches.", brief: true});
    this.table.body.id = "run-rows";
    this.box = el("input", {type: "search", id: "run-filter", placeholder: "name or owner", autocomplete: "off", maxlength: 200, input: () => this.typed()});
    this.box.value = this.filters.text || "";
    this.chips = el("div", {class: "choices", role: "group", "aria-label": "Phases"});
    this.chosen = el("div", {class: "choices"});
    this.said = el("p", {class: "soft", role: "status"});
    this.older = el("button", {type: "button", click: () => this.page(this.next)}, "Older");
    this.newest = el("button", {type: "button", click: () => this.page(null)}, "Newest");
    this.root = el("div", null,
      el("div", {class: "run-filters"}, el("label", {for: "run-filter"}, "Filter"), this.box, this.chips, this.chosen),
      this.table.root, el("div", {class: "pages"}, this.newest, this.older, this.said));
  }

  typed() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.set({text: this.box.value.trim(), cursor: null}, {replace: true}), TYPING_MS);
  }

  page(cursor) { this.set({cursor}); }

  set(changes, {replace = false} = {}) {
    this.filters = Object.fromEntries(Object.entries({...this.filters, ...changes}).filter(([, value]) => value));
    readdress(Object.fromEntries(FILTERS.map((name) => [name, this.filters[name]])), {push: !replace});
    return this.refresh();
  }

  // `known`: owners are introduced when it is done.
  async refresh(known) {
    const turn = this.turn = (this.turn || 0) + 1, ended = this.filters.ended || "fold";
    const page = await read("/v1/runs", {...this.filters, ended, limit: LIMIT});
    await known;
    if (turn !== this.turn) return;
    this.next = page.next;
    const all = Object.values(page.phases).reduce((sum, each) => sum + each, 0);
    this.table.nothing = all || this.filters.text || this.filters.owner ? "No run matches." : "No runs yet: fairlead submit -f run.yaml";
    this.table.show(page.items);
    this.showChips(page, ended);
    const folded = !this.filters.phase && ended === "fold" ? ENDED.reduce((sum, phase) => sum + page.phases[phase], 0) : 0;
    this.said.textContent = `${count(page.items.length, "run")} of ${number(page.total)}${folded ? `; ${count(folded, "finished run is", "finished runs are")} folded` : ""}`;
    this.older.disabled = page.next === null;
    this.newest.disabled = !this.filters.cursor;
  }

  chip(label, pressed, act) {
    return el("button", {type: "button", class: "chip", "aria-pressed": String(pressed), click: act}, label);
  }

  showChips(page, ended) {
    const said = JSON.stringify([page.phases, this.filters]);
    if (said === this.chipsSaid) return;
    this.chipsSaid = said;
    const chosen = new Set((this.filters.phase || "").split(",").filter(Boolean)), focused = document.activeElement?.textContent;
    const toggle = (phase) => () => {
      const next = new Set(chosen);
      if (!next.delete(phase)) next.add(phase);
      this.set({phase: [...next].join(","), cursor: null});
    };
    const here = this.chips.contains(document.activeElement);
    this.chips.replaceChildren(...Object.entries(page.phases).map(([phase, amount]) => this.chip([phase, " ", el("b", null, number(amount))], chosen.has(phase), toggle(phase))),
      this.chip("Show finished", ended === "show", () => this.set({ended: ended === "show" ? null : "show", cursor: null})));
    if (here) [...this.chips.children].find((each) => each.textContent.split(" ")[0] === focused.split(" ")[0])?.focus();
    this.chosen.replaceChildren(...["owner", "flavor"].filter((name) => this.filters[name]).map((name) =>
      this.chip(`${name}: ${this.filters[name]} ✕`, true, () => this.set({[name]: null, cursor: null}))));
  }
}
