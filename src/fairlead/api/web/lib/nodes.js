// Which nodes the map and the timeline show: a filter by name and pages, both of the server. The address has them.
import {readdress} from "./address.js";
import {count, el, number} from "./dom.js";

const TYPING_MS = 250;

export class NodePages {
  constructor(query, changed) {
    Object.assign(this, {text: query.node || "", after: query.after || "", next: null, changed});
    this.box = el("input", {type: "search", id: "node-filter", placeholder: "a part of its name", autocomplete: "off", maxlength: 200, input: () => this.typed()});
    this.box.value = this.text;
    this.first = el("button", {type: "button", click: () => this.set({after: ""}, true)}, "First nodes");
    this.onward = el("button", {type: "button", click: () => this.set({after: this.next}, true)}, "Next nodes");
    this.said = el("p", {class: "soft", role: "status"});
    this.filter = el("div", {class: "run-filters"}, el("label", {for: "node-filter"}, "Nodes"), this.box);
    this.pages = el("div", {class: "pages"}, this.first, this.onward, this.said);
    this.filter.hidden = this.pages.hidden = true;
  }

  get query() { return {text: this.text, cursor: this.after}; }

  typed() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.set({text: this.box.value.trim(), after: ""}), TYPING_MS);
  }

  set(changes, push = false) {
    Object.assign(this, changes);
    readdress({node: this.text, after: this.after}, {push});
    this.changed();
  }

  // `page`: of /v1/devices. A fleet that fits needs neither filter nor pages.
  show(page) {
    this.next = page.next;
    const whole = page.next === null && !this.after;
    this.filter.hidden = whole && !this.text;
    this.pages.hidden = whole;
    this.onward.disabled = page.next === null;
    this.first.disabled = !this.after;
    const words = `${number(page.items.length)} of ${count(page.nodes, "node")}`;
    if (this.said.textContent !== words) this.said.textContent = words;
  }
}
